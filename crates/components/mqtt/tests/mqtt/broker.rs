//! Pub/sub over both MQTT versions.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, Link, PubSubRules};
use outrigger_components_testing::{proxy::Proxy, server::Mosquitto};

use super::components;

pub(super) const RULES: PubSubRules = PubSubRules {
    // Each consumer is a broker client: two with the same name disconnect each other.
    groups: false,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: Some(("/+", "/b")),
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

/// Turns a test of a component type into one per version.
macro_rules! both {
    ($($(#[$attribute:meta])* async fn $name:ident($kind:ident: &str) $body:block)*) => {
        $(
            $(#[$attribute])*
            mod $name {
                use super::*;

                async fn run($kind: &str) $body

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn mqtt3() {
                    run("pubsub.mqtt3").await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn mqtt5() {
                    run("pubsub.mqtt5").await;
                }
            }
        )*
    };
}

pub(super) async fn open(
    kind: &str,
    url: &str,
    group: &str,
    more: &[(&str, &str)],
) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![("url", url), ("consumerID", group)];
    properties.extend_from_slice(more);
    components().pubsub(kind, "v1", &properties).await
}

pub(super) fn message(topic: &str, data: &str, metadata: &[(&str, &str)]) -> Publish {
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Publish {
        topic: topic.to_owned(),
        data: data.to_owned().into(),
        metadata: metadata.collect(),
        ..Publish::default()
    }
}

pub(super) async fn subscribe(
    broker: &Arc<dyn PubSub>,
    topic: &str,
    metadata: &[(&str, &str)],
) -> Subscription {
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let request = Subscribe {
        topic: topic.to_owned(),
        metadata: metadata.collect(),
        in_flight: NonZeroUsize::new(4).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

pub(super) async fn next(subscription: &mut Subscription) -> Delivery {
    match tokio::time::timeout(SOON, subscription.next()).await.unwrap() {
        Some(Event::Message(delivery)) => delivery,
        other => panic!("{other:?}"),
    }
}

/// Checks that no message comes for a while.
pub(super) async fn quiet(subscription: &mut Subscription) {
    let event = tokio::time::timeout(Duration::from_millis(500), subscription.next()).await;
    assert!(event.is_err(), "{event:?}");
}

both! {
    async fn broker_passes_conformance(kind: &str) {
        let Some(broker) = Mosquitto::start() else { return };
        let url = broker.url();
        for qos in ["1", "2"] {
            conformance::pubsub(RULES, async |group: &str| {
                open(kind, &url, group, &[("qos", qos)]).await
            })
            .await;
        }
    }

    async fn loses_nothing_when_broker_is_killed(kind: &str) {
        let Some(mut broker) = Mosquitto::start() else {
            return;
        };
        let url = broker.url();
        conformance::pubsub_outlives(
            RULES,
            async |group: &str| open(kind, &url, group, &[]).await,
            &mut broker,
        )
        .await;
    }

    /// Mosquitto persists sessions, but not their shared subscriptions.
    async fn group_survives_lost_broker_state(kind: &str) {
        let Some(mut broker) = Mosquitto::start() else { return };
        let member = open(kind, &broker.url(), "app", &[]).await.unwrap();
        let mut subscription = subscribe(&member, "$share/group/orders", &[]).await;
        broker.cut();
        broker.restore();
        let delivery = tokio::time::timeout(SOON, async {
            loop {
                // Messages published before the member is back are lost.
                let _away = member.publish(&message("orders", "after", &[])).await;
                let waiting = tokio::time::timeout(Duration::from_millis(200), next(&mut subscription));
                if let Ok(delivery) = waiting.await {
                    break delivery;
                }
            }
        });
        delivery.await.unwrap().receipt.acknowledge();
        member.close().await;
    }

    async fn loses_nothing_when_connections_break(kind: &str) {
        let Some(broker) = Mosquitto::start() else { return };
        let mut proxy = Proxy::start(broker.port()).await;
        let url = format!("tcp://127.0.0.1:{}", proxy.port);
        conformance::pubsub_outlives(
            RULES,
            async |group: &str| open(kind, &url, group, &[]).await,
            &mut proxy,
        )
        .await;
    }

    async fn loses_nothing_over_long_outage(kind: &str) {
        let Some(broker) = Mosquitto::start() else { return };
        let mut proxy = Proxy::start(broker.port()).await;
        let url = format!("mqtt://127.0.0.1:{}", proxy.port);
        let opener = async |group: &str| open(kind, &url, group, &[]).await;
        conformance::pubsub_outlives_long(RULES, opener, &mut proxy).await;
    }

    async fn loses_nothing_on_silent_connections(kind: &str) {
        let Some(broker) = Mosquitto::start() else { return };
        let proxy = Proxy::start(broker.port()).await;
        let url = format!("mqtt://127.0.0.1:{}", proxy.port);
        let opener = async |group: &str| open(kind, &url, group, &[]).await;
        conformance::pubsub_outlives_silence(RULES, opener, &mut proxy.silence()).await;
    }

    async fn poison_blocks_no_other_message(kind: &str) {
        let Some(broker) = Mosquitto::start() else { return };
        let url = broker.url();
        conformance::pubsub_members(RULES, async |group: &str| open(kind, &url, group, &[]).await).await;
    }

    /// Messages that the broker resends while the app holds them are not delivered twice, and are
    /// acknowledged once handled.
    async fn reconnect_does_not_duplicate_held_messages(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let mut proxy = Proxy::start(server.port()).await;
        let url = format!("tcp://127.0.0.1:{}", proxy.port);
        let broker = open(kind, &url, "app", &[]).await.unwrap();
        let mut subscription = subscribe(&broker, "orders", &[]).await;
        broker.publish(&message("orders", "kept", &[])).await.unwrap();
        let kept = next(&mut subscription).await;
        proxy.cut();
        proxy.restore();
        broker.publish(&message("orders", "after", &[])).await.unwrap();
        let after = next(&mut subscription).await;
        assert_eq!(after.message.data, "after");
        after.receipt.acknowledge();
        kept.receipt.acknowledge();
        subscription.ended().await.unwrap();
        broker.close().await;
        // The broker holds none of them.
        let broker = open(kind, &url, "app", &[]).await.unwrap();
        let mut subscription = subscribe(&broker, "orders", &[]).await;
        quiet(&mut subscription).await;
        broker.close().await;
    }

    /// Messages that are unfinished at shutdown or arrive while the sidecar is down are lost; with QoS 1 they
    /// are not.
    async fn qos_0_is_at_most_once(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let url = server.url();
        for (qos, again) in [("0", false), ("1", true)] {
            let settings = [("qos", qos)];
            let broker = open(kind, &url, qos, &settings).await.unwrap();
            let publisher = open(kind, &url, "publisher", &settings).await.unwrap();
            assert_eq!(broker.features().at_least_once, again);
            let mut subscription = subscribe(&broker, qos, &[]).await;
            publisher.publish(&message(qos, "held", &[])).await.unwrap();
            let held = next(&mut subscription).await;
            broker.close().await;
            drop((held, subscription));
            publisher.publish(&message(qos, "missed", &[])).await.unwrap();
            let broker = open(kind, &url, qos, &settings).await.unwrap();
            let mut subscription = subscribe(&broker, qos, &[]).await;
            for text in ["held", "missed"].into_iter().filter(|_| again) {
                let delivery = next(&mut subscription).await;
                assert_eq!(delivery.message.data, text);
                delivery.receipt.acknowledge();
            }
            quiet(&mut subscription).await;
            subscription.ended().await.unwrap();
            broker.close().await;
            publisher.close().await;
        }
    }

    /// With `$share/<group>/<topic>`, consumers of different names share messages.
    async fn shared_subscriptions_are_consumer_groups(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let url = server.url();
        let one = open(kind, &url, "one", &[]).await.unwrap();
        let two = open(kind, &url, "two", &[]).await.unwrap();
        let mut first = subscribe(&one, "$share/group/orders", &[]).await;
        let mut second = subscribe(&two, "$share/group/orders", &[]).await;
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
        one.close().await;
        two.close().await;
    }

    async fn new_subscription_gets_retained_messages(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let broker = open(kind, &server.url(), "app", &[]).await.unwrap();
        broker
            .publish(&message("state", "kept", &[("retain", "true")]))
            .await
            .unwrap();
        let mut subscription = subscribe(&broker, "state", &[]).await;
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, "kept");
        assert_eq!(delivery.message.metadata["retained"], "true");
        delivery.receipt.acknowledge();
        broker.publish(&message("state", "passing", &[])).await.unwrap();
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.metadata["retained"], "false");
        delivery.receipt.acknowledge();
        subscription.ended().await.unwrap();
        broker.close().await;
    }

    /// 96 MiB queued at the broker: messages over the limit arrive later, in order and once.
    async fn delivers_large_messages_as_capacity_allows(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let broker = open(kind, &server.url(), "app", &[]).await.unwrap();
        subscribe(&broker, "large", &[]).await.ended().await.unwrap();
        for number in 0..24_u8 {
            let large = Publish {
                topic: "large".to_owned(),
                data: vec![number; 4 << 20].into(),
                ..Publish::default()
            };
            broker.publish(&large).await.unwrap();
        }
        let mut subscription = subscribe(&broker, "large", &[]).await;
        for number in 0..24_u8 {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.data[0], number);
            assert_eq!(delivery.message.data.len(), 4 << 20);
            delivery.receipt.acknowledge();
        }
        quiet(&mut subscription).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }

    async fn unsubscribes_unused_filters(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let broker = open(kind, &server.url(), "app", &[]).await.unwrap();
        let forget = [("unsubscribeOnClose", "true")];
        subscribe(&broker, "orders", &forget).await.ended().await.unwrap();
        subscribe(&broker, "kept", &[]).await.ended().await.unwrap();
        for topic in ["orders", "kept"] {
            broker.publish(&message(topic, "x", &[])).await.unwrap();
        }
        let mut kept = subscribe(&broker, "kept", &[]).await;
        next(&mut kept).await.receipt.acknowledge();
        let mut orders = subscribe(&broker, "orders", &[]).await;
        quiet(&mut orders).await;
        broker.close().await;
    }

    /// As when a client resubscribes before its dead first stream is noticed.
    async fn keeps_filter_of_other_subscription(kind: &str) {
        let Some(server) = Mosquitto::start() else { return };
        let broker = open(kind, &server.url(), "app", &[]).await.unwrap();
        let forget = [("unsubscribeOnClose", "true")];
        let first = subscribe(&broker, "orders", &forget).await;
        let mut second = subscribe(&broker, "orders", &forget).await;
        first.ended().await.unwrap();
        broker.publish(&message("orders", "x", &[])).await.unwrap();
        next(&mut second).await.receipt.acknowledge();
        second.ended().await.unwrap();
        broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_session_keeps_nothing() {
    const MQTT3: &str = "pubsub.mqtt3";
    let Some(server) = Mosquitto::start() else { return };
    let url = server.url();
    let publisher = open(MQTT3, &url, "publisher", &[]).await.unwrap();
    let (kept, clean) = (&[][..], &[("cleanSession", "true")][..]);
    for (settings, then, comes) in [(kept, kept, true), (kept, clean, false), (clean, kept, false)] {
        let broker = open(MQTT3, &url, "app", settings).await.unwrap();
        subscribe(&broker, "orders", &[]).await.ended().await.unwrap();
        broker.close().await;
        publisher.publish(&message("orders", "x", &[])).await.unwrap();
        let broker = open(MQTT3, &url, "app", then).await.unwrap();
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

/// The more specific of two subscriptions gets a message; when one ends, the other gets its unsettled
/// messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_share_connection() {
    let Some(server) = Mosquitto::start() else { return };
    let broker = open("pubsub.mqtt3", &server.url(), "app", &[]).await.unwrap();
    let mut all = subscribe(&broker, "orders/#", &[]).await;
    let mut one = subscribe(&broker, "orders/a", &[]).await;
    broker.publish(&message("orders/a", "a", &[])).await.unwrap();
    broker.publish(&message("orders/b", "b", &[])).await.unwrap();
    let (a, b) = (next(&mut one).await, next(&mut all).await);
    assert_eq!((a.message.data, &*a.message.topic), ("a".into(), "orders/a"));
    assert_eq!((b.message.data, &*b.message.topic), ("b".into(), "orders/b"));
    b.receipt.acknowledge();
    // Dropped without unsubscribing.
    drop(one);
    drop(a.receipt);
    let again = next(&mut all).await;
    assert_eq!(again.message.data, "a");
    again.receipt.acknowledge();
    quiet(&mut all).await;
    all.ended().await.unwrap();
    broker.close().await;
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let outrigger_components_testing::Components(catalog) = components();
    let entry = catalog.pubsub.find("pubsub.mqtt", "v1").unwrap();
    conformance::settings(
        &entry,
        &[
            ("url", &[]),
            ("url", &[("url", "ws://broker")]),
            ("qos", &[("url", "tcp://127.0.0.1:1"), ("qos", "3")]),
            ("caCert", &[("url", "ssl://127.0.0.1:1"), ("caCert", "none")]),
        ],
    )
    .await;
    let error = open("pubsub.mqtt3", "tcp://127.0.0.1:1", "app", &[])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt3_rejected_login_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let accounts = folder.path().join("accounts");
    std::fs::write(&accounts, "").unwrap();
    let rules = format!("allow_anonymous false\npassword_file {}\n", accounts.display());
    let Some(server) = Mosquitto::start_with(&rules) else {
        return;
    };
    let guessing = server.url().replace("tcp://", "tcp://somebody:guess@");
    for url in [server.url(), guessing] {
        let started = std::time::Instant::now();
        let error = open("pubsub.mqtt3", &url, "app", &[])
            .await
            .map(drop)
            .unwrap_err();
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        for part in ["user and password in url", "127.0.0.1"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        assert!(!error.to_string().contains("guess"), "{error}");
    }
}

/// Oversized messages are never sent: the broker would disconnect, and again after the resend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt3_rejects_oversized_message_only() {
    const MAX_MESSAGE: usize = 64 << 20;
    let Some(server) = Mosquitto::start() else { return };
    let broker = open("pubsub.mqtt3", &server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders", &[]).await;
    let large = message("orders", &"x".repeat(MAX_MESSAGE), &[]);
    let small = message("orders", "small", &[]);
    let (refused, published) = tokio::join!(broker.publish(&large), broker.publish(&small));
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    assert!(error.to_string().contains(&MAX_MESSAGE.to_string()), "{error}");
    published.unwrap();
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message.data, "small");
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}
