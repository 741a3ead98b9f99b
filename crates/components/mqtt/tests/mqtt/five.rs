//! Features of MQTT 5.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
};

use outrigger_component::{Kind, PubSub, Result, pubsub::Publish};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::{Components, server::Mosquitto};
use tempfile::TempDir;

use super::{
    broker::{RULES, message, next, open, quiet, subscribe},
    components,
};

const MQTT5: &str = "pubsub.mqtt5";

/// Replicas of an app: each has its own name, and a replacement takes over the name.
#[derive(Default)]
struct Replicas(Mutex<HashMap<String, Vec<Weak<dyn PubSub>>>>);

impl Replicas {
    async fn open(&self, url: &str, group: &str) -> Result<Arc<dyn PubSub>> {
        let places = self
            .0
            .lock()
            .unwrap()
            .entry(group.to_owned())
            .or_default()
            .clone();
        let mut place = 0;
        for taken in &places {
            match taken.upgrade() {
                Some(replica) if replica.ping().await.is_ok() => place += 1,
                _ => break,
            }
        }
        let name = format!("{group}-{place}");
        let more = [("clientID", name.as_str()), ("sharedSubscriptions", "true")];
        let replica = open(MQTT5, url, group, &more).await?;
        let mut groups = self.0.lock().unwrap();
        let places = groups.entry(group.to_owned()).or_default();
        if let Some(taken) = places.get_mut(place) {
            *taken = Arc::downgrade(&replica);
        } else {
            places.push(Arc::downgrade(&replica));
        }
        Ok(replica)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share() {
    let rules = PubSubRules {
        groups: true,
        ..RULES
    };
    let Some(broker) = Mosquitto::start() else { return };
    let url = broker.url();
    let replicas = Replicas::default();
    conformance::pubsub(rules, async |group: &str| replicas.open(&url, group).await).await;
    conformance::pubsub_members(rules, async |group: &str| replicas.open(&url, group).await).await;
}

/// Two components without names and with equal settings share the messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unnamed_consumers_share() {
    let Some(server) = Mosquitto::start() else { return };
    let shared = [("sharedSubscriptions", "true")];
    let one = open(MQTT5, &server.url(), "app", &shared).await.unwrap();
    let two = open(MQTT5, &server.url(), "app", &shared).await.unwrap();
    let mut first = subscribe(&one, "orders", &[]).await;
    let mut second = subscribe(&two, "orders", &[]).await;
    let (mut came, mut each) = (Vec::new(), [0, 0]);
    for number in 0..10 {
        one.publish(&message("orders", &number.to_string(), &[]))
            .await
            .unwrap();
        let (index, delivery) = tokio::select! {
            delivery = next(&mut first) => (0, delivery),
            delivery = next(&mut second) => (1, delivery),
        };
        each[index] += 1;
        came.push(String::from_utf8(delivery.message.data.to_vec()).unwrap());
        delivery.receipt.acknowledge();
    }
    let expected: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(came, expected);
    assert!(each.iter().all(|count| *count > 0), "{each:?}");
    quiet(&mut first).await;
    quiet(&mut second).await;
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_is_sent_as_properties() {
    let Some(server) = Mosquitto::start() else { return };
    let broker = open(MQTT5, &server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders", &[]).await;
    let metadata = [
        ("colour", "red"),
        ("Straße", "ü"),
        ("responseTopic", "answers/7"),
        ("correlationDataBase64", "/wA="),
        ("rawPayload", "true"),
        ("retained", "true"),
    ];
    let published = Publish {
        declared: Some("text/plain".to_owned()),
        ..message("orders", "hello", &metadata)
    };
    broker.publish(&published).await.unwrap();
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message.content_type.as_deref(), Some("text/plain"));
    let mut found: Vec<(&str, &str)> = delivery
        .message
        .metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    found.sort_unstable();
    let expected = [
        ("Straße", "ü"),
        ("colour", "red"),
        ("correlationDataBase64", "/wA="),
        ("responseTopic", "answers/7"),
        ("retained", "false"),
    ];
    assert_eq!(found, expected);
    delivery.receipt.acknowledge();
    broker.close().await;
}

/// Requests that would make the broker disconnect are rejected first; the connection stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn does_not_send_unaccepted_messages() {
    let Some(server) = Mosquitto::start_with("max_packet_size 2000\nretain_available false\n") else {
        return;
    };
    let broker = open(MQTT5, &server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders", &[]).await;
    for (refused, parts) in [
        (message("orders", &"x".repeat(1_990), &[]), ["2004 bytes", "2000"]),
        (
            message("orders", "x", &[("retain", "true")]),
            ["retain", "orders"],
        ),
        (
            message("orders", "x", &[("colour", "red\n")]),
            ["colour", "control"],
        ),
        (message("orders/\u{1}", "x", &[]), ["orders", "topic"]),
    ] {
        let error = broker.publish(&refused).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
    broker
        .publish(&message("orders", &"x".repeat(1_980), &[]))
        .await
        .unwrap();
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message.data.len(), 1_980);
    delivery.receipt.acknowledge();
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_reason_and_remedy() {
    let folder = TempDir::new().unwrap();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "topic readwrite allowed/#\n").unwrap();
    let Some(server) = Mosquitto::start_with(&format!("acl_file {}\n", rules.display())) else {
        return;
    };
    for qos in ["1", "2"] {
        let broker = open(MQTT5, &server.url(), "app", &[("qos", qos)]).await.unwrap();
        let error = broker.publish(&message("secret", "x", &[])).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        for part in ["secret", "not authorized", "0x87", "permissions", "127.0.0.1"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        // A publish without subscribers is a success.
        broker.publish(&message("allowed/a", "x", &[])).await.unwrap();
        broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_login_fails_at_once() {
    let Some(server) = Mosquitto::start_with("allow_anonymous false\n") else {
        return;
    };
    let started = std::time::Instant::now();
    let error = open(MQTT5, &server.url(), "app", &[])
        .await
        .map(drop)
        .unwrap_err();
    assert!(started.elapsed().as_secs() < 8, "{:?}", started.elapsed());
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    for part in ["not authorized", "0x87", "user and password in url"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// Each matching subscription gets its own copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_by_subscription_identifier() {
    let Some(server) = Mosquitto::start() else { return };
    let broker = open(MQTT5, &server.url(), "app", &[]).await.unwrap();
    let mut all = subscribe(&broker, "orders/#", &[]).await;
    let mut one = subscribe(&broker, "orders/a", &[]).await;
    let mut group = subscribe(&broker, "$share/group/orders/+", &[]).await;
    for number in 0..3 {
        broker
            .publish(&message("orders/a", &number.to_string(), &[]))
            .await
            .unwrap();
        for subscription in [&mut all, &mut one, &mut group] {
            let delivery = next(subscription).await;
            assert_eq!(delivery.message.data, number.to_string());
            delivery.receipt.acknowledge();
        }
    }
    for subscription in [&mut all, &mut one, &mut group] {
        quiet(subscription).await;
    }
    broker.close().await;
}

/// A restarted sidecar still has its subscription, so it gets retained messages again only on request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retained_messages_follow_options() {
    let Some(server) = Mosquitto::start() else { return };
    let greeted = async |handling: &str| {
        let broker = open(MQTT5, &server.url(), "app", &[]).await.unwrap();
        broker
            .publish(&message("state", "kept", &[("retain", "true")]))
            .await
            .unwrap();
        let mut subscription = subscribe(&broker, "state", &[("retainHandling", handling)]).await;
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(500), next(&mut subscription));
        let mut retained = Vec::new();
        if let Ok(delivery) = waiting.await {
            retained.push(delivery.message.metadata["retained"].clone());
            delivery.receipt.acknowledge();
        }
        subscription.ended().await.unwrap();
        broker.close().await;
        retained
    };
    assert!(greeted("never").await.is_empty());
    // The subscription exists, so it gets published messages as usual.
    assert_eq!(greeted("new").await, ["false"]);
    let broker = open(MQTT5, &server.url(), "other", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "state", &[("retainHandling", "new")]).await;
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message.metadata["retained"], "true");
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    let mut again = subscribe(&broker, "state", &[]).await;
    quiet(&mut again).await;
    again.ended().await.unwrap();
    let mut again = subscribe(&broker, "state", &[("retainHandling", "always")]).await;
    let delivery = next(&mut again).await;
    assert_eq!(delivery.message.metadata["retained"], "true");
    delivery.receipt.acknowledge();
    broker.close().await;
}

/// Messages sent to a session are lost when it ends, and only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_expire_as_configured() {
    let Some(server) = Mosquitto::start() else { return };
    let url = server.url();
    let publisher = open(MQTT5, &url, "publisher", &[]).await.unwrap();
    let kept = &[][..];
    for (settings, then, comes) in [
        (kept, kept, true),
        (kept, &[("cleanStart", "true")], false),
        (&[("sessionExpiryInterval", "0")], kept, false),
    ] {
        let broker = open(MQTT5, &url, "app", settings).await.unwrap();
        subscribe(&broker, "orders", &[]).await.ended().await.unwrap();
        broker.close().await;
        publisher.publish(&message("orders", "x", &[])).await.unwrap();
        let broker = open(MQTT5, &url, "app", then).await.unwrap();
        let mut subscription = subscribe(&broker, "orders", &[]).await;
        if comes {
            next(&mut subscription).await.receipt.acknowledge();
        }
        quiet(&mut subscription).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    publisher.close().await;
}

/// The window applies to all subscriptions together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_respects_receive_window() {
    let Some(server) = Mosquitto::start() else { return };
    let broker = open(MQTT5, &server.url(), "app", &[("receiveMaximum", "2")])
        .await
        .unwrap();
    let mut subscription = subscribe(&broker, "orders", &[]).await;
    for number in 0..4 {
        broker
            .publish(&message("orders", &number.to_string(), &[]))
            .await
            .unwrap();
    }
    let held = [next(&mut subscription).await, next(&mut subscription).await];
    assert_eq!(subscription.window().get(), held.len());
    quiet(&mut subscription).await;
    for delivery in held {
        delivery.receipt.acknowledge();
    }
    for number in 2..4 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, number.to_string());
        delivery.receipt.acknowledge();
    }
    broker.close().await;
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = components();
    let entry = catalog.pubsub.find(MQTT5, "v1").unwrap();
    let url = ("url", "tcp://127.0.0.1:1");
    conformance::settings(
        &entry,
        &[
            ("url", &[]),
            ("qos", &[url, ("qos", "3")]),
            ("receiveMaximum", &[url, ("receiveMaximum", "0")]),
            ("sessionExpiryInterval", &[url, ("sessionExpiryInterval", "soon")]),
        ],
    )
    .await;
}
