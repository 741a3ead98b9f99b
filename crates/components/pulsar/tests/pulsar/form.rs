//! Stored form of messages, and reading them back.

use outrigger_component::pubsub::{BulkEntry, BulkPublish};

use super::*;

pub(super) async fn messages_match_dapr(address: &str) {
    let broker = open(address, "form", &[("subscribeType", "key_shared")])
        .await
        .unwrap();
    let mut subscription = subscribe(&broker, "form").await;
    let metadata = [("partitionKey", "k"), ("deliverAfter", "10ms"), ("color", "blue")];
    publish(&broker, "form", &["a"], &metadata).await;
    let delivery = next(&mut subscription).await;
    let came = &delivery.message;
    assert_eq!((text(&delivery).as_str(), &*came.topic), ("a", "form"));
    assert_eq!(came.metadata, message("", "", &[("color", "blue")]).metadata);
    let ordering_key = came.ordering_key.clone().unwrap();
    assert_eq!(ordering_key.key.as_deref(), Some(&b"k"[..]));
    assert_eq!(came.redelivered, Some(0));
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Publishes a batch as one entry.
async fn publish_batch(broker: &Arc<dyn PubSub>, topic: &str, count: usize) {
    let entry = |number: usize| BulkEntry {
        id: number.to_string(),
        data: number.to_string().into(),
        ..BulkEntry::default()
    };
    let bulk = BulkPublish {
        topic: topic.to_owned(),
        entries: (0..count).map(entry).collect(),
        ..BulkPublish::default()
    };
    let failed = broker.publish_bulk(&bulk).await.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

pub(super) async fn acknowledges_fully_done_batch(pulsar: &Pulsar) {
    // The message limit is reached long before the delay.
    let batches = [("batchingMaxPublishDelay", "3s"), ("batchingMaxMessages", "10")];
    let broker = open(&pulsar.address(), "batches", &batches).await.unwrap();
    let mut first = subscribe(&broker, "batches").await;
    publish_batch(&broker, "batches", 10).await;
    let stored = admin(pulsar, "GET", "batches/internalStats", "").await;
    assert!(stored.contains(r#""numberOfEntries":1,"#), "{stored}");
    let mut held = Vec::new();
    for number in 0..10 {
        let delivery = next(&mut first).await;
        assert_eq!(text(&delivery), number.to_string());
        held.push(delivery);
    }
    let last = held.pop().unwrap();
    for delivery in held {
        delivery.receipt.acknowledge();
    }
    // As if it were killed: the broker still has all messages.
    drop(first);
    drop(last);
    let mut second = subscribe(&broker, "batches").await;
    assert_eq!(texts(&mut second, 9).await.len(), 9);
    // Only the refused message is redelivered.
    let refused = next(&mut second).await;
    assert_eq!(text(&refused), "9");
    refused.receipt.reject();
    let again = next(&mut second).await;
    assert_eq!(
        (text(&again).as_str(), again.message.redelivered > Some(0)),
        ("9", true)
    );
    again.receipt.acknowledge();
    second.ended().await.unwrap();
    let mut third = subscribe(&broker, "batches").await;
    quiet(&mut third).await;
    third.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn compresses_payloads(address: &str) {
    for kind in ["lz4", "zlib", "zstd"] {
        for batching in ["true", "false"] {
            let settings = [("compressionType", kind), ("disableBatching", batching)];
            let broker = open(address, "compressed", &settings).await.unwrap();
            let mut subscription = subscribe(&broker, "compressed").await;
            let text = kind.repeat(1000);
            let expected = [text.as_str(), ""];
            let (first, second) = (
                message("compressed", expected[0], &[]),
                message("compressed", "", &[]),
            );
            let (one, two) = tokio::join!(broker.publish(&first), broker.publish(&second));
            one.and(two).unwrap();
            assert_eq!(texts(&mut subscription, 2).await, expected, "{kind}");
            subscription.ended().await.unwrap();
            broker.close().await;
        }
    }
}

pub(super) async fn delayed_messages_arrive_later(address: &str) {
    let broker = open(address, "later", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "later").await;
    let begun = std::time::Instant::now();
    publish(&broker, "later", &["later"], &[("deliverAfter", "2s")]).await;
    publish(
        &broker,
        "later",
        &["past"],
        &[("deliverAt", "2020-01-01T00:00:00Z")],
    )
    .await;
    publish(&broker, "later", &["now"], &[]).await;
    assert_eq!(texts(&mut subscription, 3).await, ["past", "now", "later"]);
    assert!(
        begun.elapsed() >= Duration::from_millis(1800),
        "{:?}",
        begun.elapsed()
    );
    let error = broker
        .publish(&message("later", "", &[("deliverAfter", "soon")]))
        .await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    subscription.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn rejects_oversized_or_invalid_topic(address: &str) {
    let broker = open(address, "refused", &[]).await.unwrap();
    let large = "x".repeat(6 * 1024 * 1024);
    for message in [
        message("refused", &large, &[]),
        message("a/b", "", &[]),
        message("", "", &[]),
    ] {
        let error = broker.publish(&message).await.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    }
    let nearly = "x".repeat(5 * 1024 * 1024 - 1024);
    let mut subscription = subscribe(&broker, "refused").await;
    publish(&broker, "refused", &[&nearly, "small"], &[]).await;
    assert_eq!(texts(&mut subscription, 2).await, [nearly.as_str(), "small"]);
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Another member gets the messages that exceed the first one's capacity, although it requested a thousand.
pub(super) async fn bounds_prefetched_bytes(address: &str) {
    let broker = open(address, "ahead", &[]).await.unwrap();
    let mut slow = broker.subscribe(request("ahead", 1, &[])).await.unwrap();
    let large = "x".repeat(2 * 1024 * 1024);
    for _ in 0..40 {
        publish(&broker, "ahead", &[&large], &[]).await;
    }
    let held = next(&mut slow).await;
    let mut fast = subscribe(&broker, "ahead").await;
    // Only 16 were prefetched, before their size was known.
    assert_eq!(texts(&mut fast, 20).await.len(), 20);
    held.receipt.acknowledge();
    slow.ended().await.unwrap();
    assert_eq!(texts(&mut fast, 10).await.len(), 10);
    fast.ended().await.unwrap();
    broker.close().await;
}
