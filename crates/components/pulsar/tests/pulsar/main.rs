//! Pub/sub on a real Pulsar, started once because it is slow.
#![allow(clippy::unwrap_used, reason = "tests")]

mod faults;
mod form;
mod security;
mod subscriptions;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::Pulsar, tls::Certificates};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const SHARED: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: None,
};
const BY_KEY: PubSubRules = PubSubRules { keys: true, ..SHARED };
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(30);
/// How long to wait for events that must not happen.
const A_WHILE: Duration = Duration::from_millis(700);

/// With short timers.
async fn open(address: &str, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![
        ("host", address),
        ("consumerID", group),
        ("redeliveryDelay", "200ms"),
    ];
    for (name, value) in more {
        properties.retain(|(other, _)| other != name);
        properties.push((name, value));
    }
    Components::of(outrigger_components_pulsar::add)
        .pubsub("pubsub.pulsar", "v1", &properties)
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

async fn publish(broker: &Arc<dyn PubSub>, topic: &str, texts: &[&str], metadata: &[(&str, &str)]) {
    for text in texts {
        broker.publish(&message(topic, text, metadata)).await.unwrap();
    }
}

fn request(topic: &str, in_flight: usize, metadata: &[(&str, &str)]) -> Subscribe {
    Subscribe {
        topic: topic.to_owned(),
        metadata: message(topic, "", metadata).metadata,
        in_flight: NonZeroUsize::new(in_flight).unwrap(),
    }
}

async fn subscribe(broker: &Arc<dyn PubSub>, topic: &str) -> Subscription {
    broker.subscribe(request(topic, 100, &[])).await.unwrap()
}

async fn next(subscription: &mut Subscription) -> Delivery {
    next_within(subscription, SOON).await.expect("a message comes")
}

async fn next_within(subscription: &mut Subscription, limit: Duration) -> Option<Delivery> {
    match tokio::time::timeout(limit, subscription.next()).await {
        Ok(Some(Event::Message(delivery))) => Some(delivery),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

async fn quiet(subscription: &mut Subscription) {
    let came = next_within(subscription, A_WHILE).await;
    assert!(came.is_none(), "{came:?}");
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.data.to_vec()).unwrap()
}

/// Takes and acknowledges `count` messages.
async fn texts(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let delivery = next(subscription).await;
        texts.push(text(&delivery));
        delivery.receipt.acknowledge();
    }
    texts
}

/// An admin request to the broker; returns the complete answer.
async fn admin(pulsar: &Pulsar, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(pulsar.admin_address()).await.unwrap();
    let request = format!(
        "{method} /admin/v2/persistent/public/default/{path} HTTP/1.0\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
    answer
}

/// One server for all parts. Each part has its own topics; parts that cut connections come last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulsar_passes_conformance() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let proxied = listener.local_addr().unwrap();
    let Some(mut pulsar) = Pulsar::start(&certificates, proxied.port()) else {
        return;
    };
    let address = pulsar.address();
    let shared = async |group: &str| open(&address, group, &[]).await;
    let by_key = async |group: &str| open(&address, group, &[("subscribeType", "key_shared")]).await;
    // Concurrent, because they mostly wait.
    tokio::join!(
        conformance::pubsub(SHARED, shared),
        conformance::pubsub(BY_KEY, by_key),
    );
    tokio::join!(
        conformance::pubsub_members(SHARED, shared),
        conformance::pubsub_members(BY_KEY, by_key),
    );
    form::messages_match_dapr(&address).await;
    form::acknowledges_fully_done_batch(&pulsar).await;
    form::compresses_payloads(&address).await;
    form::delayed_messages_arrive_later(&address).await;
    form::rejects_oversized_or_invalid_topic(&address).await;
    form::bounds_prefetched_bytes(&address).await;
    subscriptions::reads_all_partitions(&pulsar).await;
    subscriptions::subscription_starts_at_earliest(&address).await;
    subscriptions::refused_message_may_change_member(&address).await;
    subscriptions::exclusive_member_gets_all(&address).await;
    subscriptions::refused_message_blocks_key(&address).await;
    subscriptions::subscription_sets_concurrency(&address).await;
    subscriptions::non_durable_subscription_keeps_nothing(&address).await;
    security::tokens_let_in(&pulsar).await;
    security::issuers_give_tokens(&pulsar).await;
    security::verifies_certificates_if_configured(&pulsar).await;
    let mut proxy = Proxy::serve(listener, pulsar.proxied_port());
    let through = format!("127.0.0.1:{}", proxied.port());
    let opener = async |group: &str| open(&through, group, &[]).await;
    conformance::pubsub_outlives(SHARED, opener, &mut proxy).await;
    conformance::pubsub_outlives_long(SHARED, opener, &mut proxy).await;
    conformance::pubsub_outlives_silence(SHARED, opener, &mut proxy.silence()).await;
    faults::killed_member_loses_nothing(&address).await;
    faults::does_not_redeliver_held_messages(&through, &mut proxy).await;
    conformance::pubsub_outlives(SHARED, shared, &mut pulsar).await;
}

#[tokio::test]
async fn names_unreachable_broker() {
    let error = open("127.0.0.1:1", "app", &[]).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_pulsar::add);
    let entry = catalog.pubsub.find("pubsub.pulsar", "v1").unwrap();
    let host = ("host", "127.0.0.1:1");
    conformance::settings(
        &entry,
        &[
            ("host", &[]),
            ("host", &[("host", "http://127.0.0.1:8080")]),
            ("subscribeType", &[host, ("subscribeType", "some")]),
            ("processMode", &[host, ("processMode", "some")]),
            ("compressionType", &[host, ("compressionType", "zip")]),
            ("privateKey", &[host, ("privateKey", "-----BEGIN")]),
            ("orders.avroschema", &[host, ("orders.avroschema", "{}")]),
            (
                "oauth2ClientID",
                &[host, ("oauth2TokenURL", "https://127.0.0.1:1")],
            ),
        ],
    )
    .await;
}
