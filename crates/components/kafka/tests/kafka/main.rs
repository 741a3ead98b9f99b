//! Pub/sub and bindings on a real Kafka, started once because it is slow.
#![allow(clippy::unwrap_used, reason = "tests")]

mod avro;
mod backlog;
mod bindings;
mod faults;
mod form;
mod group;
mod security;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use krafka::admin::{AdminClient, CreateTopicsOptions, NewTopic};
use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::{Components, proxy::Proxy, server::Kafka, tls::Certificates};
use tokio::net::TcpListener;

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: true,
    wildcard: None,
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(30);
/// How long to wait for events that must not happen.
const A_WHILE: Duration = Duration::from_millis(700);

/// With short timers.
async fn open(address: &str, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
    let mut properties = vec![
        ("brokers", address),
        ("authType", "none"),
        ("consumerID", group),
        ("heartbeatInterval", "200ms"),
        ("sessionTimeout", "3s"),
        ("backOffDuration", "200ms"),
    ];
    for (name, value) in more {
        properties.retain(|(other, _)| other != name);
        properties.push((name, value));
    }
    Components::of(outrigger_components_kafka::add)
        .pubsub("pubsub.kafka", "v1", &properties)
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

async fn publish(broker: &Arc<dyn PubSub>, topic: &str, key: &str, texts: &[&str]) {
    for text in texts {
        let message = message(topic, text, &[("partitionKey", key)]);
        broker.publish(&message).await.unwrap();
    }
}

async fn subscribe(broker: &Arc<dyn PubSub>, topic: &str, in_flight: usize) -> Subscription {
    let request = Subscribe {
        topic: topic.to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(in_flight).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

/// The next message; revocations are recorded.
async fn next(subscription: &mut Subscription) -> Delivery {
    next_within(subscription, SOON).await.expect("a message comes")
}

async fn next_within(subscription: &mut Subscription, limit: Duration) -> Option<Delivery> {
    let waiting = async {
        loop {
            match subscription.next().await {
                Some(Event::Message(delivery)) => return delivery,
                Some(Event::Revoked(_) | Event::Reopened(_)) => {}
                None => panic!("the subscription ended"),
            }
        }
    };
    tokio::time::timeout(limit, waiting).await.ok()
}

async fn quiet(subscription: &mut Subscription) {
    let came = next_within(subscription, A_WHILE).await;
    assert!(came.is_none(), "{came:?}");
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.data.to_vec()).unwrap()
}

/// A client independent of the component.
async fn client(address: &str) -> krafka::Kafka {
    krafka::Kafka::builder(address).connect().await.unwrap()
}

async fn make_topic(admin: &AdminClient, topic: &str, partitions: i32) {
    let topic = NewTopic::new(topic, partitions, 1).unwrap();
    let made = admin
        .create_topics(vec![topic], CreateTopicsOptions::default())
        .await;
    // Another component of the test may have created it.
    let _made = made.unwrap();
}

/// Opens components for the conformance suite. Topics for shared groups have several partitions, all others
/// one, because order is per partition.
async fn open_for_rules(admin: &AdminClient, address: &str, group: &str) -> Result<Arc<dyn PubSub>> {
    if group.starts_with("share-") || group.starts_with("keys-") {
        make_topic(admin, group, 4).await;
    }
    open(address, group, &[]).await
}

/// One server for all parts. Each part has its own topics; parts that cut connections come last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_passes_conformance() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let proxied = listener.local_addr().unwrap();
    let Some(mut kafka) = Kafka::start(&certificates, proxied.port()) else {
        return;
    };
    let address = kafka.address();
    let admin = client(&address).await.admin();
    let opener = async |group: &str| open_for_rules(&admin, &address, group).await;
    backlog::waiting_records_do_not_starve_tasks(&address).await;
    bindings::pass_conformance(&address).await;
    conformance::pubsub(RULES, &opener).await;
    conformance::pubsub_members(RULES, opener).await;
    form::records_match_dapr(&address, &admin).await;
    form::compresses_payloads_and_tombstones(&address).await;
    form::settings_are_kept(&address, &admin).await;
    form::isolation_level_follows_settings(&address, &admin).await;
    group::commits_after_app_is_done(&address, &admin).await;
    group::poison_blocks_its_key_only(&address).await;
    group::skips_records_after_retry_limit(&address).await;
    group::oversized_batch_blocks_its_partition_only(&address, &admin).await;
    group::rebalance_loses_and_repeats_nothing(&address, &admin).await;
    group::rebalance_does_not_wait_for_retry(&address, &admin).await;
    group::handles_added_partitions(&address, &admin).await;
    group::rolling_restarts_lose_nothing(&address, &admin).await;
    avro::payloads_use_registry_schemas(&address).await;
    avro::unreadable_record_blocks_its_key_only(&address).await;
    avro::loses_nothing_while_registry_is_down(&address).await;
    avro::avro_needs_registry(&address).await;
    security::passwords_let_in(&kafka).await;
    security::tokens_let_in(&kafka).await;
    security::certificates_let_in(&kafka, &certificates).await;
    let mut proxy = Proxy::serve(listener, kafka.proxied_port());
    let through = format!("127.0.0.1:{}", proxied.port());
    faults::silent_connection_loses_nothing(&through, &mut proxy).await;
    let opener = async |group: &str| open(&through, group, &[]).await;
    conformance::pubsub_outlives(RULES, &opener, &mut proxy).await;
    conformance::pubsub_outlives_long(RULES, &opener, &mut proxy).await;
    conformance::pubsub_outlives_silence(RULES, opener, &mut proxy.silence()).await;
    let opener = async |group: &str| open(&address, group, &[]).await;
    conformance::pubsub_outlives(RULES, opener, &mut kafka).await;
    faults::killed_consumer_loses_nothing(&address).await;
}

#[tokio::test]
async fn names_unreachable_broker() {
    let error = open("127.0.0.1:1", "app", &[]).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_kafka::add);
    let entry = catalog.pubsub.find("pubsub.kafka", "v1").unwrap();
    let (brokers, none) = (("brokers", "127.0.0.1:1"), ("authType", "none"));
    conformance::settings(
        &entry,
        &[
            ("brokers", &[none]),
            ("authType", &[brokers]),
            ("initialOffset", &[brokers, none, ("initialOffset", "middle")]),
            ("compression", &[brokers, none, ("compression", "zip")]),
            (
                "caCert",
                &[brokers, ("authType", "certificate"), ("caCert", "no PEM")],
            ),
            (
                "schemaRegistryURL",
                &[brokers, none, ("schemaRegistryURL", "registry:8081")],
            ),
        ],
    )
    .await;
}
