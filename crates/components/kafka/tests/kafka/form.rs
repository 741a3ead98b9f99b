//! Records in the topic equal those of Dapr's components.

use krafka::{Record, admin::AdminClient, consumer::AutoOffsetReset};
use outrigger_component::pubsub::{BulkEntry, BulkPublish};

use super::*;

pub(super) async fn records(address: &str, topic: &str, count: usize) -> Vec<krafka::ConsumerRecord> {
    let consumer = client(address).await.consumer_without_group();
    let consumer = consumer.auto_offset_reset(AutoOffsetReset::Earliest);
    let consumer = consumer.build().await.unwrap();
    consumer.subscribe([topic]).await.unwrap();
    let reading = async {
        let mut records = Vec::new();
        while records.len() < count {
            records.extend(consumer.recv().await.unwrap());
        }
        records
    };
    let records = tokio::time::timeout(SOON, reading).await.unwrap();
    consumer.close().await.unwrap();
    records
}

pub(super) async fn records_match_dapr(address: &str, admin: &AdminClient) {
    make_topic(admin, "form", 10).await;
    let broker = open(address, "form", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "form", 8).await;
    let sent = message(
        "form",
        "{}",
        &[("partitionKey", "a"), ("other", "b c"), ("ttlInSeconds", "9")],
    );
    broker.publish(&sent).await.unwrap();
    let [record] = &records(address, "form", 1).await[..] else {
        panic!("one record");
    };
    assert_eq!((record.key_str(), record.value_str()), (Some("a"), Some("{}")));
    let headers: Vec<(&str, Option<&[u8]>)> = record
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    let expected: [(&str, Option<&[u8]>); 3] = [
        ("other", Some(b"b c")),
        ("partitionKey", Some(b"a")),
        ("ttlInSeconds", Some(b"9")),
    ];
    assert_eq!(headers, expected);
    assert_eq!(record.partition, 6, "the hash of the client of Dapr");
    let delivery = next(&mut subscription).await;
    let metadata = &delivery.message.metadata;
    for (name, value) in [
        ("__key", "a"),
        ("__topic", "form"),
        ("__partition", "6"),
        ("__offset", "0"),
    ] {
        assert_eq!(metadata[name], value, "{name}");
    }
    assert_eq!(
        (metadata["other"].as_str(), metadata["partitionKey"].as_str()),
        ("b c", "a")
    );
    let stamp: i64 = metadata["__timestamp"].parse().unwrap();
    assert_eq!(stamp, record.timestamp);
    let ordering_key = delivery.message.ordering_key.as_ref().unwrap();
    assert_eq!(
        (ordering_key.partition, ordering_key.key.as_deref()),
        (Some(6), Some(&b"a"[..]))
    );
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn compresses_payloads_and_tombstones(address: &str) {
    let long = "again and ".repeat(2000);
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("compressed-{compression}");
        let more = [("compression", compression), ("initialOffset", "oldest")];
        let broker = open(address, "compressed", &more).await.unwrap();
        broker.publish(&message(&topic, &long, &[])).await.unwrap();
        let mut subscription = subscribe(&broker, &topic, 8).await;
        let delivery = next(&mut subscription).await;
        assert_eq!(text(&delivery), long, "{compression}");
        delivery.receipt.acknowledge();
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    let broker = open(address, "tombstone", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "tombstone", 8).await;
    let producer = client(address).await.producer().build().await.unwrap();
    let _sent = producer
        .send(Record::tombstone("tombstone", "gone"))
        .await
        .unwrap();
    let ours = message("tombstone", "null", &[("partitionKey", "gone")]);
    broker.publish(&ours).await.unwrap();
    for _ in 0..2 {
        let delivery = next(&mut subscription).await;
        assert_eq!(
            (
                text(&delivery).as_str(),
                delivery.message.metadata["__key"].as_str()
            ),
            ("null", "gone")
        );
        delivery.receipt.acknowledge();
    }
    let written = records(address, "tombstone", 2).await;
    assert!(written.iter().all(|record| record.value.is_none()));
    subscription.ended().await.unwrap();
    broker.close().await;
}

pub(super) async fn settings_are_kept(address: &str, admin: &AdminClient) {
    make_topic(admin, "settings", 1).await;
    let more = [
        ("maxMessageBytes", "1000"),
        ("escapeHeaders", "true"),
        ("excludeHeaderMetaRegex", "^secret"),
        ("initialOffset", "oldest"),
    ];
    let broker = open(address, "settings", &more).await.unwrap();
    let metadata = message("", "", &[("secret-key", "s"), ("open", "a b")]).metadata;
    let entry = |id: &str, data: String| BulkEntry {
        id: id.to_owned(),
        data: data.into(),
        metadata: metadata.clone(),
        ..BulkEntry::default()
    };
    let bulk = BulkPublish {
        topic: "settings".to_owned(),
        entries: vec![
            entry("one", "1".to_owned()),
            entry("large", "x".repeat(1001)),
            entry("two", "2".to_owned()),
        ],
        ..BulkPublish::default()
    };
    let failed = broker.publish_bulk(&bulk).await.unwrap();
    let ids: Vec<_> = failed.iter().map(|failed| failed.id.as_str()).collect();
    assert_eq!(ids, ["large"]);
    assert_eq!(failed[0].error.kind(), Kind::InvalidRequest);
    assert!(
        failed[0].error.to_string().contains("maxMessageBytes"),
        "{}",
        failed[0].error
    );
    let mut subscription = subscribe(&broker, "settings", 8).await;
    for expected in ["1", "2"] {
        let delivery = next(&mut subscription).await;
        assert_eq!(text(&delivery), expected, "the oldest first");
        let metadata = &delivery.message.metadata;
        assert_eq!(metadata["open"], "a+b");
        assert!(!metadata.contains_key("secret-key"), "{metadata:?}");
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    let error = broker
        .publish(&message("no such topic!", "x", &[]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    assert!(error.to_string().contains("no such topic!"), "{error}");
    broker.close().await;
}

/// With `readCommitted`, the app gets only committed records of transactions.
pub(super) async fn isolation_level_follows_settings(address: &str, admin: &AdminClient) {
    make_topic(admin, "isolated", 1).await;
    let writer = client(address).await.producer();
    let writer = writer.build_transactional("isolated").await.unwrap();
    let begin = async |text: &str| {
        writer.begin().unwrap();
        let record = krafka::Record::new("isolated", text.to_owned());
        let _sent = writer.send(record).await.unwrap();
    };
    begin("aborted").await;
    writer.abort().await.unwrap();
    begin("committed").await;
    writer.commit().await.unwrap();
    begin("open").await;
    let mut readers = Vec::new();
    for (level, texts) in [
        ("readUncommitted", &["aborted", "committed", "open"][..]),
        ("readCommitted", &["committed"]),
    ] {
        let more = [("isolationLevel", level), ("initialOffset", "oldest")];
        let broker = open(address, level, &more).await.unwrap();
        let mut subscription = subscribe(&broker, "isolated", 8).await;
        for expected in texts {
            let delivery = next(&mut subscription).await;
            assert_eq!(text(&delivery), *expected, "{level}");
            delivery.receipt.acknowledge();
        }
        quiet(&mut subscription).await;
        readers.push((broker, subscription));
    }
    writer.commit().await.unwrap();
    let delivery = next(&mut readers[1].1).await;
    assert_eq!(text(&delivery), "open");
    delivery.receipt.acknowledge();
    quiet(&mut readers[0].1).await;
    for (broker, subscription) in readers {
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    writer.close().await.unwrap();
}
