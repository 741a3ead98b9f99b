//! Subscription types and their guarantees.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

pub(super) async fn reads_all_partitions(pulsar: &Pulsar) {
    admin(pulsar, "PUT", "parts/partitions", "3").await;
    let settings = [("subscribeType", "failover"), ("disableBatching", "true")];
    let broker = open(&pulsar.address(), "parts", &settings).await.unwrap();
    let mut subscription = subscribe(&broker, "parts").await;
    for number in 0..30 {
        let key = format!("key-{}", number % 6);
        publish(
            &broker,
            "parts",
            &[&number.to_string()],
            &[("partitionKey", &key)],
        )
        .await;
    }
    let mut by_key: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    for _ in 0..30 {
        let delivery = next(&mut subscription).await;
        let ordering_key = delivery.message.ordering_key.clone().unwrap();
        by_key
            .entry(ordering_key)
            .or_default()
            .push(text(&delivery).parse().unwrap());
        delivery.receipt.acknowledge();
    }
    assert_eq!(by_key.len(), 6);
    assert!(by_key.values().all(|numbers| numbers.is_sorted()), "{by_key:?}");
    let partitions: BTreeSet<_> = by_key.keys().map(|ordering_key| ordering_key.partition).collect();
    assert!(partitions.len() > 1, "{partitions:?}");
    subscription.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn subscription_starts_at_earliest(address: &str) {
    let publisher = open(address, "nobody", &[]).await.unwrap();
    publish(&publisher, "begin", &["a", "b"], &[]).await;
    for (group, position, expected) in [
        ("begin-latest", "latest", vec!["c"]),
        ("begin-earliest", "earliest", vec!["a", "b", "c"]),
    ] {
        let settings = [("subscribeInitialPosition", position)];
        let broker = open(address, group, &settings).await.unwrap();
        let mut subscription = subscribe(&broker, "begin").await;
        if position == "latest" {
            publish(&publisher, "begin", &["c"], &[]).await;
        }
        assert_eq!(texts(&mut subscription, expected.len()).await, expected);
        quiet(&mut subscription).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    publisher.close().await;
}

/// The first member refuses everything.
pub(super) async fn refused_message_may_change_member(address: &str) {
    let broker = open(address, "elsewhere", &[]).await.unwrap();
    let mut refusing = subscribe(&broker, "elsewhere").await;
    let mut willing = subscribe(&broker, "elsewhere").await;
    publish(&broker, "elsewhere", &["1", "2", "3", "4"], &[]).await;
    let mut missing = BTreeSet::from(["1", "2", "3", "4"]);
    let mut refused = BTreeSet::new();
    while !missing.is_empty() {
        tokio::select! {
            delivery = next(&mut refusing) => {
                refused.insert(text(&delivery));
                delivery.receipt.reject();
            }
            delivery = next(&mut willing) => {
                missing.remove(text(&delivery).as_str());
                delivery.receipt.acknowledge();
            }
        }
    }
    assert!(!refused.is_empty(), "the first got nothing");
    refusing.ended().await.unwrap();
    willing.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn exclusive_member_gets_all(address: &str) {
    let broker = open(address, "alone", &[]).await.unwrap();
    let exclusive = request("alone", 8, &[("subscribeType", "exclusive")]);
    let mut first = broker.subscribe(exclusive.clone()).await.unwrap();
    let refused = broker.subscribe(exclusive.clone()).await.map(drop).unwrap_err();
    assert!(
        refused.to_string().contains("subscription \"alone\""),
        "{refused}"
    );
    publish(&broker, "alone", &["1", "2"], &[]).await;
    assert_eq!(texts(&mut first, 2).await, ["1", "2"]);
    first.ended().await.unwrap();
    broker.subscribe(exclusive).await.unwrap().ended().await.unwrap();
    broker.close().await;
    let broker = open(address, "failover", &[("subscribeType", "failover")])
        .await
        .unwrap();
    let mut active = subscribe(&broker, "failover").await;
    let mut waiting = subscribe(&broker, "failover").await;
    publish(&broker, "failover", &["1", "2"], &[]).await;
    // The broker chooses by the names it assigned.
    let held = tokio::select! {
        held = next(&mut active) => held,
        held = next(&mut waiting) => {
            std::mem::swap(&mut active, &mut waiting);
            held
        }
    };
    assert_eq!(text(&held), "1");
    quiet(&mut waiting).await;
    drop(held);
    drop(active);
    assert_eq!(texts(&mut waiting, 2).await, ["1", "2"]);
    waiting.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn refused_message_blocks_key(address: &str) {
    for kind in ["key_shared", "failover", "exclusive"] {
        let topic = format!("key-{kind}");
        let settings = [("subscribeType", kind), ("redeliveryDelay", "1s")];
        let broker = open(address, "key", &settings).await.unwrap();
        let mut subscription = subscribe(&broker, &topic).await;
        publish(&broker, &topic, &["a1"], &[("partitionKey", "a")]).await;
        next(&mut subscription).await.receipt.reject();
        publish(&broker, &topic, &["a2"], &[("partitionKey", "a")]).await;
        publish(&broker, &topic, &["b1"], &[("partitionKey", "b")]).await;
        assert_eq!(texts(&mut subscription, 3).await, ["b1", "a1", "a2"], "{kind}");
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

pub(super) async fn subscription_sets_concurrency(address: &str) {
    let broker = open(address, "many", &[("maxConcurrentHandlers", "7")])
        .await
        .unwrap();
    for (metadata, handlers) in [(&[] as &[(&str, &str)], 7), (&[("processMode", "sync")], 1)] {
        let subscription = broker.subscribe(request("many", 8, metadata)).await.unwrap();
        assert_eq!(subscription.concurrency().map(NonZeroUsize::get), Some(handlers));
        subscription.ended().await.unwrap();
    }
    let wrong = request("many", 8, &[("subscribeType", "some")]);
    let error = broker.subscribe(wrong).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
    assert!(error.to_string().contains("subscribeType"), "{error}");
    broker.close().await;
}

pub(super) async fn non_durable_subscription_keeps_nothing(address: &str) {
    for settings in [("subscribeMode", "non_durable"), ("persistent", "false")] {
        let broker = open(address, "passing", &[settings]).await.unwrap();
        assert!(!broker.features().at_least_once);
        let mut subscription = subscribe(&broker, "passing").await;
        publish(&broker, "passing", &["1"], &[]).await;
        assert_eq!(texts(&mut subscription, 1).await, ["1"]);
        subscription.ended().await.unwrap();
        publish(&broker, "passing", &["2"], &[]).await;
        let mut subscription = subscribe(&broker, "passing").await;
        quiet(&mut subscription).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}
