//! Pub/sub on a real NATS server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod acknowledgements;
mod delivery;
mod resuming;
mod settings;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use async_nats::jetstream::{self, stream};
use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{DEAD_LETTER_HOPS, Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, Link, PubSubRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::Nats, tls::Certificates};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: Some((".below.*", ".below.b")),
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

/// A consumer group is a durable consumer with a deliver group.
async fn open(url: &str, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![
        ("natsURL", url),
        ("durableName", group),
        ("queueGroupName", group),
        ("ackWait", "3s"),
    ];
    for (name, value) in more {
        properties.retain(|(other, _)| other != name);
        properties.push((name, value));
    }
    Components::of(outrigger_components_nats::add)
        .pubsub("pubsub.jetstream", "v1", &properties)
        .await
}

/// A component without a durable name.
async fn anonymous(url: &str, more: &[(&str, &str)]) -> Arc<dyn PubSub> {
    let mut properties = vec![("natsURL", url), ("concurrencyMode", "parallel")];
    properties.extend_from_slice(more);
    Components::of(outrigger_components_nats::add)
        .pubsub("pubsub.jetstream", "v1", &properties)
        .await
        .unwrap()
}

/// A server with a stream for all topics of the tests.
async fn started() -> Option<Nats> {
    let server = Nats::start("")?;
    make_stream(&server).await;
    Some(server)
}

async fn make_stream(server: &Nats) {
    let client = async_nats::connect(server.url()).await.unwrap();
    let config = stream::Config {
        name: "all".to_owned(),
        subjects: vec!["*".to_owned(), "*.below.*".to_owned()],
        ..stream::Config::default()
    };
    jetstream::new(client).create_stream(config).await.unwrap();
}

fn message(topic: &str, data: &str) -> Publish {
    Publish {
        topic: topic.to_owned(),
        data: data.to_owned().into(),
        ..Publish::default()
    }
}

async fn subscribe(broker: &Arc<dyn PubSub>, topic: &str) -> Result<Subscription> {
    let request = Subscribe {
        topic: topic.to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(4).unwrap(),
    };
    broker.subscribe(request).await
}

async fn next(subscription: &mut Subscription) -> Delivery {
    match tokio::time::timeout(SOON, subscription.next()).await.unwrap() {
        Some(Event::Message(delivery)) => delivery,
        other => panic!("{other:?}"),
    }
}

async fn quiet(subscription: &mut Subscription, time: Duration) {
    let event = tokio::time::timeout(time, subscription.next()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jetstream_passes_conformance() {
    let Some(server) = started().await else { return };
    let url = server.url();
    conformance::pubsub(RULES, async |group: &str| open(&url, group, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_when_server_is_killed() {
    let Some(mut server) = started().await else { return };
    let url = server.url();
    conformance::pubsub_outlives(
        RULES,
        async |group: &str| open(&url, group, &[]).await,
        &mut server,
    )
    .await;
}

/// A sidecar has five seconds for its shutdown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_ends_during_outage() {
    let Some(mut server) = started().await else { return };
    let broker = open(&server.url(), "ends", &[]).await.unwrap();
    let subscription = subscribe(&broker, "ends").await.unwrap();
    Link::cut(&mut server);
    subscription.drain();
    let ended = tokio::time::timeout(Duration::from_secs(3), subscription.ended()).await;
    ended.expect("it waits for the server").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_when_connections_break() {
    let Some(server) = started().await else { return };
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    conformance::pubsub_outlives(
        RULES,
        async |group: &str| open(&url, group, &[]).await,
        &mut proxy,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_over_long_outage() {
    let Some(server) = started().await else { return };
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    let opener = async |group: &str| open(&url, group, &[]).await;
    conformance::pubsub_outlives_long(RULES, opener, &mut proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_on_silent_connections() {
    let Some(server) = started().await else { return };
    let proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    let opener = async |group: &str| open(&url, group, &[]).await;
    conformance::pubsub_outlives_silence(RULES, opener, &mut proxy.silence()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tolerates_failing_consumers() {
    let Some(server) = started().await else { return };
    let url = server.url();
    conformance::pubsub_members(RULES, async |group: &str| open(&url, group, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduplicates_stored_events() {
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    let event = r#"{"specversion":"1.0","id":"one","data":1}"#;
    for text in [event, event, "another"] {
        broker.publish(&message("orders", text)).await.unwrap();
    }
    let first = next(&mut subscription).await;
    assert_eq!(first.message.data, event);
    assert_eq!(first.message.metadata["Topic"], "orders");
    assert_eq!(first.message.redelivered, Some(0));
    first.receipt.acknowledge();
    let second = next(&mut subscription).await;
    assert_eq!(second.message.data, "another");
    second.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// The server deduplicates ids across the stream: an outbox event or a dead letter has the same id in two
/// topics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduplicates_per_topic_of_stream() {
    let Some(server) = started().await else { return };
    let topics = ["orders", "orders-dead", "orders-dead-too"];
    let event = r#"{"specversion":"1.0","id":"one","data":1}"#;
    let mut subscriptions = Vec::new();
    for topic in topics {
        let broker = open(&server.url(), topic, &[]).await.unwrap();
        let subscription = subscribe(&broker, topic).await.unwrap();
        for text in [event, event, "another"] {
            broker.publish(&message(topic, text)).await.unwrap();
        }
        subscriptions.push((broker, subscription));
    }
    for (broker, mut subscription) in subscriptions {
        for text in [event, "another"] {
            let delivery = next(&mut subscription).await;
            assert_eq!(delivery.message.data, text);
            delivery.receipt.acknowledge();
        }
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_dead_letter_count() {
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    let mut counted = message("orders", "no envelope");
    counted
        .metadata
        .insert(DEAD_LETTER_HOPS.to_owned(), "7".to_owned());
    broker.publish(&counted).await.unwrap();
    broker.publish(&message("orders", "first")).await.unwrap();
    for expected in [Some("7"), None] {
        let delivery = next(&mut subscription).await;
        let hops = delivery.message.metadata.get(DEAD_LETTER_HOPS);
        assert_eq!(hops.map(String::as_str), expected);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// The server limits prefetched messages, not bytes. Payloads over the limit are read from the stream later;
/// messages deleted before that are not delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_prefetched_bytes() {
    const LARGE: usize = 1_000_000;
    const COUNT: usize = 60;
    const DELETED: usize = 50;
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[("ackWait", "60s")]).await.unwrap();
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(1000).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    for number in 0..COUNT {
        let text = format!("{}{number:06}", "0".repeat(LARGE - 6));
        broker.publish(&message("orders", &text)).await.unwrap();
    }
    let client = async_nats::connect(server.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream("all").await.unwrap();
    let sent = async {
        while stream.consumer_info("app").await.unwrap().num_ack_pending < COUNT {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, sent).await.unwrap();
    let mut held = std::collections::VecDeque::new();
    while let Ok(event) = tokio::time::timeout(Duration::from_secs(1), subscription.next()).await {
        let Some(Event::Message(delivery)) = event else {
            panic!("{event:?}");
        };
        held.push_back(delivery);
    }
    assert!((20..40).contains(&held.len()), "{} are with the app", held.len());
    let sequence = u64::try_from(DELETED + 1).unwrap();
    assert!(stream.delete_message(sequence).await.unwrap());
    for number in (0..COUNT).filter(|number| *number != DELETED) {
        let delivery = match held.pop_front() {
            Some(delivery) => delivery,
            None => next(&mut subscription).await,
        };
        let text = std::str::from_utf8(&delivery.message.data).unwrap();
        assert_eq!((text.len(), text.parse()), (LARGE, Ok(number)));
        assert_eq!(delivery.message.redelivered, Some(0));
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    let left = stream.consumer_info("app").await.unwrap();
    assert_eq!((left.num_ack_pending, left.num_pending), (0, 0));
    broker.close().await;
}

/// The server would redeliver it after `ackWait`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handler_keeps_message() {
    let Some(server) = started().await else { return };
    let short = [("ackWait", "1s")];
    let broker = open(&server.url(), "app", &short).await.unwrap();
    let other = open(&server.url(), "app", &short).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", "slow")).await.unwrap();
    let held = next(&mut subscription).await;
    let mut waiting = subscribe(&other, "orders").await.unwrap();
    quiet(&mut waiting, Duration::from_secs(4)).await;
    held.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_missing_stream() {
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let error = broker.publish(&message("no.stream.has", "x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert!(error.to_string().contains("no.stream.has"), "{error}");
    let error = subscribe(&broker, "no.stream.has").await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    // A durable consumer has one topic.
    let first = subscribe(&broker, "orders").await.unwrap();
    let error = subscribe(&broker, "bills").await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration, "{error}");
    assert!(error.to_string().contains("durableName"), "{error}");
    first.ended().await.unwrap();
    broker.close().await;
}

/// The server's limit is 1 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_oversized_message_only() {
    const MAX_PAYLOAD: usize = 1 << 20;
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", "before")).await.unwrap();
    let large = "x".repeat(MAX_PAYLOAD + 1);
    let error = broker.publish(&message("orders", &large)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    for part in [MAX_PAYLOAD, MAX_PAYLOAD + 1] {
        assert!(error.to_string().contains(&part.to_string()), "{part}: {error}");
    }
    broker.publish(&message("orders", "after")).await.unwrap();
    for data in ["before", "after"] {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, data);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_rejected_credentials() {
    let Some(server) = Nats::start("secret") else {
        return;
    };
    let broker = open(&server.url(), "app", &[("token", "secret")]).await.unwrap();
    broker.ping().await.unwrap();
    broker.close().await;
    let error = open(&server.url(), "app", &[("token", "wrong")])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

/// Like a server advertised by the first one, whose address has no scheme: no credentials are sent before
/// TLS.
#[tokio::test]
async fn sends_no_credentials_without_tls() {
    let certificates = Certificates::new();
    let (certificate, key) = (certificates.text("client.pem"), certificates.text("client.key"));
    let mutual = [
        ("tls_client_cert", certificate.as_str()),
        ("tls_client_key", key.as_str()),
    ];
    for (others, more) in [
        (",tls://127.0.0.1:1", &[("token", "secret")][..]),
        ("", &mutual[..]),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("nats://{}{others}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let info = b"INFO {\"server_id\":\"a\",\"version\":\"2.10.0\",\"max_payload\":1048576}\r\n";
            stream.write_all(info).await.unwrap();
            let mut told = [0; 7];
            // If the connection ends first, nothing was sent.
            let _ended = stream.read_exact(&mut told).await;
            told
        });
        let opened = open(&url, "app", more).await;
        assert!(opened.is_err(), "{url}");
        let told = serving.await.unwrap();
        assert_ne!(&told, b"CONNECT", "{url}");
    }
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_nats::add);
    let entry = catalog.pubsub.find("pubsub.jetstream", "v1").unwrap();
    let url = ("natsURL", "nats://127.0.0.1:1");
    conformance::settings(
        &entry,
        &[
            ("natsURL", &[]),
            ("ackPolicy", &[url, ("ackPolicy", "some")]),
            (
                "ackPolicy",
                &[url, ("ackPolicy", "all"), ("queueGroupName", "members")],
            ),
            ("deliverPolicy", &[url, ("deliverPolicy", "first")]),
            ("maxDeliver", &[url, ("maxDeliver", "often")]),
            (
                "tls_client_cert",
                &[
                    url,
                    ("tls_client_cert", "/no/file"),
                    ("tls_client_key", "/no/file"),
                ],
            ),
            ("seedKey", &[url, ("jwt", "x"), ("seedKey", "x")]),
        ],
    )
    .await;
    let error = open("nats://127.0.0.1:1", "app", &[])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
