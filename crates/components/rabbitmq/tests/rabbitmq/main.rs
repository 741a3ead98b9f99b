//! Pub/sub on a real RabbitMQ, started once because it is slow.
#![allow(clippy::unwrap_used, reason = "tests")]

mod existing;
mod raw;
mod settings;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use futures::future::join_all;
use lapin::{
    Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::FieldTable,
};
use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{DEAD_LETTER_HOPS, Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, Link, PubSubRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::RabbitMq, tls::Certificates};

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: None,
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(30);
/// Queues and messages that survive their consumers and the broker.
const LASTING: [(&str, &str); 3] = [
    ("deletedWhenUnused", "false"),
    ("deliveryMode", "2"),
    ("reconnectWaitSeconds", "200ms"),
];

async fn open(url: &str, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![("connectionString", url), ("consumerID", group)];
    properties.extend_from_slice(more);
    Components::of(outrigger_components_rabbitmq::add)
        .pubsub("pubsub.rabbitmq", "v1", &properties)
        .await
}

fn message(topic: &str, data: &str, metadata: &[(&str, &str)]) -> Publish {
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

async fn subscribe(broker: &Arc<dyn PubSub>, topic: &str, metadata: &[(&str, &str)]) -> Result<Subscription> {
    let metadata = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let request = Subscribe {
        topic: topic.to_owned(),
        metadata: metadata.collect(),
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

/// One server for all parts. Each part has its own topics; parts that cut connections come last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_passes_conformance() {
    let certificates = Certificates::new();
    let Some(mut rabbit) = RabbitMq::start(&certificates) else {
        return;
    };
    let url = rabbit.url();
    conformance::pubsub(RULES, async |group: &str| open(&url, group, &LASTING).await).await;
    conformance::pubsub_members(RULES, async |group: &str| open(&url, group, &LASTING).await).await;
    default_queues_are_auto_deleted(&url).await;
    exclusive_consumer_ends_on_pause(&url).await;
    bounds_prefetched_bytes(&url).await;
    names_and_properties_match_dapr(&url).await;
    dead_letters_failed_messages(&url).await;
    stores_dead_letter_count(&url).await;
    routing_keys_choose(&url).await;
    names_conflicting_properties(&url).await;
    existing::uses_compatible_existing_queues(&url).await;
    existing::quorum_queue_works_with_defaults(&url).await;
    existing::names_missing_requirement_and_remedy(&url).await;
    raw::rejects_unparsable_message_only(&url, &rabbit).await;
    conflicting_topic_fails_alone(&url).await;
    settings::settings_take_effect(&url, &rabbit).await;
    rejects_oversized_message_only(&url).await;
    reports_rejected_credentials(&rabbit).await;
    connects_over_tls(&rabbit.tls_url(), &certificates).await;
    let mut proxy = Proxy::start(rabbit.port()).await;
    let through = format!("amqp://guest:guest@127.0.0.1:{}", proxy.port);
    missing_confirm_fails_call(&through, &proxy).await;
    settings::broken_connections_do_not_block_acknowledgements(&url, &mut proxy).await;
    let opener = async |group: &str| open(&through, group, &LASTING).await;
    conformance::pubsub_outlives(RULES, &opener, &mut proxy).await;
    conformance::pubsub_outlives_long(RULES, opener, &mut proxy).await;
    // The broker also uses the heartbeat to drop silent clients.
    let mut brief = LASTING.to_vec();
    brief.push(("heartBeat", "2s"));
    let opener = async |group: &str| open(&through, group, &brief).await;
    conformance::pubsub_outlives_silence(RULES, opener, &mut proxy.silence()).await;
    let opener = async |group: &str| open(&url, group, &LASTING).await;
    conformance::pubsub_outlives(RULES, opener, &mut rabbit).await;
}

async fn default_queues_are_auto_deleted(url: &str) {
    let broker = open(url, "default", &[]).await.unwrap();
    let mut first = subscribe(&broker, "passing", &[]).await.unwrap();
    assert!(first.needs_consumer());
    // Unattempted messages return to their queue, which stays.
    broker
        .publish(&message("passing", "returned", &[]))
        .await
        .unwrap();
    next(&mut first).await.receipt.release(false);
    let again = next(&mut first).await;
    assert_eq!(again.message.data, "returned");
    again.receipt.acknowledge();
    first.ended().await.unwrap();
    broker.publish(&message("passing", "nobody", &[])).await.unwrap();
    let mut second = subscribe(&broker, "passing", &[]).await.unwrap();
    broker
        .publish(&message("passing", "somebody", &[]))
        .await
        .unwrap();
    let delivery = next(&mut second).await;
    assert_eq!(delivery.message.data, "somebody");
    delivery.receipt.acknowledge();
    second.ended().await.unwrap();
    broker.close().await;
}

async fn exclusive_consumer_ends_on_pause(url: &str) {
    for (group, settings, metadata) in [
        ("acknowledging", &[("autoAck", "true")][..], &[][..]),
        ("active", &[], &[("singleActiveConsumer", "true")]),
    ] {
        let broker = open(url, group, settings).await.unwrap();
        let subscription = subscribe(&broker, "paused", metadata).await.unwrap();
        assert!(!subscription.needs_consumer(), "{group}");
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

/// As with a memory or disk alarm: heartbeats continue, confirmations stop.
async fn missing_confirm_fails_call(url: &str, proxy: &Proxy) {
    let mut settings = LASTING.to_vec();
    settings.push(("heartBeat", "0"));
    let broker = open(url, "unconfirmed", &settings).await.unwrap();
    broker
        .publish(&message("unconfirmed", "before", &[]))
        .await
        .unwrap();
    proxy.hold();
    let unconfirmed = message("unconfirmed", "meanwhile", &[]);
    let error = tokio::time::timeout(SOON, broker.publish(&unconfirmed)).await;
    proxy.go_on();
    let error = error.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout, "{error}");
    let after = message("unconfirmed", "after", &[]);
    tokio::time::timeout(SOON, broker.publish(&after))
        .await
        .unwrap()
        .unwrap();
    broker.close().await;
}

/// The prefetch count follows message sizes. The order is preserved, and so is the queue, which is deleted
/// with its last consumer.
async fn bounds_prefetched_bytes(url: &str) {
    const LARGE: usize = 4 * 1024 * 1024;
    let broker = open(url, "sizes", &[]).await.unwrap();
    let request = Subscribe {
        topic: "sizes".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(500).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let publish = async |data: String| broker.publish(&message("sizes", &data, &[])).await.unwrap();
    publish("x".repeat(LARGE)).await;
    let first = next(&mut subscription).await;
    for _ in 0..23 {
        publish("x".repeat(LARGE)).await;
    }
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare("sizes-sizes".into(), passive, FieldTable::default());
    let kept = queue.await.unwrap().message_count();
    assert!(kept >= 23 - 8, "the queue keeps {kept} of 23");
    first.receipt.acknowledge();
    for _ in 0..23 {
        next(&mut subscription).await.receipt.acknowledge();
    }
    // Small messages are waiting while the prefetch count grows.
    for number in 0..400 {
        publish(number.to_string()).await;
    }
    for number in 0..400 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, number.to_string());
        assert_eq!(delivery.message.redelivered, Some(0));
        delivery.receipt.acknowledge();
    }
    for number in 0..200 {
        publish(number.to_string()).await;
    }
    let mut held = Vec::new();
    assert!(subscription.window().get() >= 200, "the window has not grown");
    for number in 0..200 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, number.to_string());
        held.push(delivery);
    }
    held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
    subscription.ended().await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
    broker.close().await;
}

async fn names_and_properties_match_dapr(url: &str) {
    let mut settings = LASTING.to_vec();
    settings.push(("publishMessagePropertiesToMetadata", "true"));
    let broker = open(url, "app", &settings).await.unwrap();
    let subscription = subscribe(&broker, "named", &[]).await.unwrap();
    subscription.ended().await.unwrap();
    let metadata = [
        ("messageID", "m1"),
        ("correlationid", "c1"),
        ("type", "kind"),
        ("priority", "3"),
        ("ttlInSeconds", "60"),
    ];
    broker.publish(&message("named", "x", &metadata)).await.unwrap();
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let got = channel.basic_get("app-named".into(), BasicGetOptions::default());
    let got = got.await.unwrap().unwrap().delivery;
    let properties = &got.properties;
    assert_eq!(got.exchange.as_str(), "named");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "text/plain");
    assert_eq!(properties.expiration().as_ref().unwrap().as_str(), "60000");
    assert_eq!(
        (*properties.priority(), *properties.delivery_mode()),
        (Some(3), Some(2))
    );
    connection.close(200, "OK".into()).await.unwrap();
    let mut subscription = subscribe(&broker, "named", &[]).await.unwrap();
    let delivery = next(&mut subscription).await;
    let metadata = &delivery.message.metadata;
    assert_eq!(metadata["metadata.messageid"], "m1");
    assert_eq!(metadata["metadata.correlationid"], "c1");
    assert_eq!(metadata["metadata.type"], "kind");
    assert_eq!(metadata["metadata.contenttype"], "text/plain");
    assert_eq!(delivery.message.redelivered, Some(1));
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    let long = "x".repeat(256);
    let wrong = [("messageID", long.as_str())];
    let error = broker.publish(&message("named", "x", &wrong)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    broker.close().await;
}

async fn dead_letters_failed_messages(url: &str) {
    let mut settings = LASTING.to_vec();
    settings.push(("enableDeadLetter", "true"));
    let broker = open(url, "app", &settings).await.unwrap();
    let mut subscription = subscribe(&broker, "dead", &[]).await.unwrap();
    assert!(!subscription.needs_consumer());
    broker.publish(&message("dead", "bad", &[])).await.unwrap();
    // It was not attempted.
    next(&mut subscription).await.receipt.release(false);
    next(&mut subscription).await.receipt.reject();
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let waiting = async {
        loop {
            let got = channel.basic_get("dlq-app-dead".into(), BasicGetOptions { no_ack: true });
            if let Some(got) = got.await.unwrap() {
                break got.delivery.data;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(tokio::time::timeout(SOON, waiting).await.unwrap(), b"bad");
    // Unfinished messages are not dead-lettered.
    broker.publish(&message("dead", "unfinished", &[])).await.unwrap();
    let held = next(&mut subscription).await;
    broker.close().await;
    drop(held);
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let waiting = async {
        loop {
            let queue = channel.queue_declare("app-dead".into(), passive, FieldTable::default());
            if queue.await.unwrap().message_count() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
}

async fn stores_dead_letter_count(url: &str) {
    let broker = open(url, "hops", &LASTING).await.unwrap();
    let mut subscription = subscribe(&broker, "hops", &[]).await.unwrap();
    let counted = message("hops", "x", &[(DEAD_LETTER_HOPS, "7")]);
    broker.publish(&counted).await.unwrap();
    broker.publish(&message("hops", "x", &[])).await.unwrap();
    for expected in [Some("7"), None] {
        let delivery = next(&mut subscription).await;
        let hops = delivery.message.metadata.get(DEAD_LETTER_HOPS);
        assert_eq!(hops.map(String::as_str), expected);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn routing_keys_choose(url: &str) {
    let mut settings = LASTING.to_vec();
    settings.push(("exchangeKind", "topic"));
    let broker = open(url, "app", &settings).await.unwrap();
    let keys = [("routingKey", "eu.*,us.orders"), ("queueType", "quorum")];
    let mut subscription = subscribe(&broker, "routed", &keys).await.unwrap();
    for key in ["asia.orders", "eu.orders", "us.orders"] {
        let metadata = [("routingKey", key)];
        broker.publish(&message("routed", key, &metadata)).await.unwrap();
    }
    for key in ["eu.orders", "us.orders"] {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, key);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn names_conflicting_properties(url: &str) {
    let mut settings = LASTING.to_vec();
    settings.push(("maxLen", "10"));
    // The queue was created without that limit.
    let broker = open(url, "app", &settings).await.unwrap();
    let error = subscribe(&broker, "named", &[]).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration, "{error}");
    assert!(error.to_string().contains("x-max-length"), "{error}");
    let error = subscribe(&broker, "t", &[("queueType", "round")])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    broker.publish(&message("t", "x", &[])).await.unwrap();
    broker.close().await;
}

/// The server closes the channel of such a declaration, so it must not carry messages of other topics.
async fn conflicting_topic_fails_alone(url: &str) {
    let kind = [("exchangeKind", "topic")];
    let other = open(url, "beside", &[&LASTING[..], &kind].concat())
        .await
        .unwrap();
    other.publish(&message("taken", "x", &[])).await.unwrap();
    other.close().await;
    let broker = open(url, "beside", &LASTING).await.unwrap();
    let subscription = subscribe(&broker, "beside", &[]).await.unwrap();
    // Confirmed once on disk.
    let (fine, taken) = (message("beside", "x", &[]), message("taken", "x", &[]));
    broker.publish(&fine).await.unwrap();
    let publishing = join_all((0..100).map(|_| broker.publish(&fine)));
    let (published, refused) = tokio::join!(publishing, broker.publish(&taken));
    for published in published {
        published.unwrap();
    }
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration, "{error}");
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// The server closes the channel, which other publishers share.
async fn rejects_oversized_message_only(url: &str) {
    const MAX_MESSAGE: usize = RabbitMq::MAX_MESSAGE;
    let broker = open(url, "large", &LASTING).await.unwrap();
    let mut subscription = subscribe(&broker, "large", &[]).await.unwrap();
    let large = "x".repeat(MAX_MESSAGE + 1);
    let large = message("large", &large, &[]);
    let small = message("large", "small", &[]);
    let (refused, one, two) = tokio::join!(
        broker.publish(&large),
        broker.publish(&small),
        broker.publish(&small)
    );
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    for part in [
        (MAX_MESSAGE + 1).to_string(),
        MAX_MESSAGE.to_string(),
        "max_message_size".to_owned(),
    ] {
        assert!(error.to_string().contains(&part), "{part}: {error}");
    }
    one.unwrap();
    two.unwrap();
    broker.publish(&small).await.unwrap();
    // Retried messages may be duplicated.
    for _ in 0..3 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, "small");
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

async fn reports_rejected_credentials(rabbit: &RabbitMq) {
    let url = format!("amqp://guest:wrong@127.0.0.1:{}", rabbit.port());
    let error = open(&url, "app", &[]).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("refuses the credentials"), "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");
}

async fn connects_over_tls(url: &str, certificates: &Certificates) {
    let with = async |root: &str| {
        let tls = [
            ("caCert", root),
            ("clientCert", certificates.client.as_str()),
            ("clientKey", certificates.client_key.as_str()),
        ];
        open(url, "app", &tls).await
    };
    let broker = with(&certificates.root).await.unwrap();
    broker.publish(&message("secret", "x", &[])).await.unwrap();
    broker.close().await;
    let error = with(&Certificates::new().root).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_rabbitmq::add);
    let entry = catalog.pubsub.find("pubsub.rabbitmq", "v1").unwrap();
    conformance::settings(
        &entry,
        &[
            ("connectionString", &[("connectionString", "http://x")]),
            (
                "protocol",
                &[("connectionString", "amqp://x"), ("protocol", "amqps")],
            ),
            (
                "clientKey",
                &[("connectionString", "amqps://x"), ("clientCert", "-----BEGIN x")],
            ),
            ("caCert", &[("connectionString", "amqps://x"), ("caCert", "none")]),
            (
                "saslExternal",
                &[("connectionString", "amqp://x"), ("saslExternal", "true")],
            ),
            ("deliveryMode", &[("deliveryMode", "7")]),
        ],
    )
    .await;
    let error = open("amqp://127.0.0.1:1", "app", &[])
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}
