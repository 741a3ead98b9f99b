//! Interaction of group members, and the group's positions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use krafka::admin::{AdminClient, CreatePartitionsOptions, ListConsumerGroupOffsetsOptions};
use krafka::{Compression, KrafkaError};
use tokio_util::sync::CancellationToken;

use super::*;

/// Positions of a group by partition.
pub(super) async fn positions(address: &str, group: &str, topic: &str) -> BTreeMap<i32, i64> {
    let admin = client(address).await.admin();
    let options = ListConsumerGroupOffsetsOptions::default();
    let listed = admin.list_consumer_group_offsets(group, options).await.unwrap();
    let of_topic = listed.into_iter().filter(|(place, _)| place.topic == topic);
    of_topic
        .filter_map(|(place, found)| Some((place.partition, found.unwrap().offset?)))
        .collect()
}

async fn until_position(address: &str, group: &str, topic: &str, partition: i32, expected: i64) {
    let waiting = async {
        while positions(address, group, topic).await.get(&partition) != Some(&expected) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, waiting).await;
    assert!(waited.is_ok(), "{:?}", positions(address, group, topic).await);
}

/// A broker reports a new partition with a delay, and a producer caches the earlier report.
async fn produce(address: &str, topic: &str, records: &[(i32, &str)]) {
    let made = async || {
        let producer = client(address).await.producer();
        let producer = producer.compression(Compression::Gzip).buffer_memory(128 << 20);
        producer.build().await.unwrap()
    };
    let mut producer = made().await;
    let sending = async {
        for (partition, text) in records {
            let record = || krafka::Record::new(topic, (*text).to_owned()).partition(*partition);
            while let Err(error) = producer.send(record()).await {
                assert!(matches!(error, KrafkaError::Config { .. }), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                producer = made().await;
            }
        }
    };
    let sent = tokio::time::timeout(SOON, sending).await;
    assert!(
        sent.is_ok(),
        "{topic} has not all of these partitions: {records:?}"
    );
}

pub(super) async fn commits_after_app_is_done(address: &str, admin: &AdminClient) {
    make_topic(admin, "done", 2).await;
    let broker = open(address, "done", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "done", 8).await;
    assert_eq!(
        positions(address, "done", "done").await[&0],
        0,
        "the group stands"
    );
    produce(address, "done", &[(0, "1"), (0, "2")]).await;
    let first = next(&mut subscription).await;
    let second = next(&mut subscription).await;
    second.receipt.acknowledge();
    // An acknowledgement in another partition is committed later.
    produce(address, "done", &[(1, "beside")]).await;
    let beside = next(&mut subscription).await;
    assert_eq!(text(&beside), "beside");
    beside.receipt.acknowledge();
    until_position(address, "done", "done", 1, 1).await;
    assert_eq!(
        positions(address, "done", "done").await[&0],
        0,
        "the first is open"
    );
    first.receipt.acknowledge();
    until_position(address, "done", "done", 0, 2).await;
    // The next member gets records that the app has not finished.
    produce(address, "done", &[(0, "3")]).await;
    let third = next(&mut subscription).await;
    assert_eq!(text(&third), "3");
    drop(third);
    subscription.ended().await.unwrap();
    let mut subscription = subscribe(&broker, "done", 8).await;
    let third = next(&mut subscription).await;
    assert_eq!(text(&third), "3");
    third.receipt.acknowledge();
    subscription.ended().await.unwrap();
    assert_eq!(positions(address, "done", "done").await[&0], 3);
    broker.close().await;
}

pub(super) async fn poison_blocks_its_key_only(address: &str) {
    let broker = open(address, "poison", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "poison", 1).await;
    publish(&broker, "poison", "a", &["poison"]).await;
    publish(&broker, "poison", "a", &["after"]).await;
    publish(&broker, "poison", "b", &["beside"]).await;
    let mut came = Vec::new();
    while came.len() < 5 {
        let delivery = next(&mut subscription).await;
        let text = text(&delivery);
        // It fails three times.
        if text == "poison" && came.iter().filter(|it| *it == "poison").count() < 2 {
            delivery.receipt.reject();
        } else {
            delivery.receipt.acknowledge();
        }
        came.push(text);
    }
    let of_a: Vec<_> = came.iter().filter(|text| *text != "beside").collect();
    assert_eq!(of_a, ["poison", "poison", "poison", "after"], "{came:?}");
    assert_ne!(came[4], "beside", "it does not wait for the poison: {came:?}");
    subscription.ended().await.unwrap();
    assert_eq!(positions(address, "poison", "poison").await[&0], 3);
    broker.close().await;
}

/// A batch of a few kilobytes may decompress to gigabytes of zeros.
pub(super) async fn oversized_batch_blocks_its_partition_only(address: &str, admin: &AdminClient) {
    const MAX_UNPACKED: usize = 32 << 20;
    make_topic(admin, "unpacked", 2).await;
    let (fits, large) = ("0".repeat(MAX_UNPACKED / 2), "0".repeat(MAX_UNPACKED));
    let oldest = [("initialOffset", "oldest")];
    let broker = open(address, "unpacked", &oldest).await.unwrap();
    produce(
        address,
        "unpacked",
        &[(0, fits.as_str()), (0, large.as_str()), (0, "behind")],
    )
    .await;
    let mut subscription = subscribe(&broker, "unpacked", 8).await;
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message.data.len(), fits.len());
    delivery.receipt.acknowledge();
    for text in ["a", "b", "c"] {
        produce(address, "unpacked", &[(1, text)]).await;
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data, text);
        delivery.receipt.acknowledge();
    }
    quiet(&mut subscription).await;
    subscription.ended().await.unwrap();
    let positions = positions(address, "unpacked", "unpacked").await;
    assert_eq!((positions.get(&0), positions.get(&1)), (Some(&1), Some(&3)));
    broker.close().await;
}

pub(super) async fn skips_records_after_retry_limit(address: &str) {
    for (topic, more, attempts) in [
        ("twice", ("backOffMaxRetries", "1"), 2),
        ("once", ("consumeRetryEnabled", "false"), 1),
    ] {
        let broker = open(address, topic, &[more]).await.unwrap();
        let mut subscription = subscribe(&broker, topic, 8).await;
        publish(&broker, topic, "a", &["poison"]).await;
        for attempt in 0..attempts {
            let delivery = next(&mut subscription).await;
            let before = delivery.message.redelivered.unwrap_or(0);
            assert_eq!((text(&delivery).as_str(), before), ("poison", attempt));
            delivery.receipt.reject();
        }
        quiet(&mut subscription).await;
        until_position(address, topic, topic, 0, 1).await;
        subscription.ended().await.unwrap();
        broker.close().await;
    }
}

pub(super) async fn rebalance_loses_and_repeats_nothing(address: &str, admin: &AdminClient) {
    for (topic, strategy) in [
        ("range", "range"),
        ("roundrobin", "roundrobin"),
        ("sticky", "sticky"),
    ] {
        make_topic(admin, topic, 4).await;
        let more = [("consumerGroupRebalanceStrategy", strategy)];
        let one = open(address, topic, &more).await.unwrap();
        let two = open(address, topic, &more).await.unwrap();
        let mut first = subscribe(&one, topic, 64).await;
        for number in 0..40 {
            let key = format!("key-{}", number % 8);
            one.publish(&message(topic, &number.to_string(), &[("partitionKey", &key)]))
                .await
                .unwrap();
        }
        let mut came = Vec::new();
        for _ in 0..10 {
            let delivery = next(&mut first).await;
            came.push(text(&delivery));
            delivery.receipt.acknowledge();
        }
        // The app handles these while the other member joins, then finishes them.
        let mut handling = Vec::new();
        for _ in 0..3 {
            let delivery = next(&mut first).await;
            came.push(text(&delivery));
            handling.push(delivery.receipt);
        }
        let finishing = async {
            loop {
                match first.next().await {
                    Some(Event::Reopened(_)) => {}
                    Some(Event::Revoked(revoked)) => {
                        drop(revoked.noted);
                        tokio::time::sleep(Duration::from_millis(300)).await;
                        handling.drain(..).for_each(|receipt| receipt.acknowledge());
                        return;
                    }
                    // The engine returns queued messages during the rebalance.
                    Some(Event::Message(delivery)) => drop(delivery),
                    None => panic!("the subscription ended"),
                }
            }
        };
        let (mut second, ()) = tokio::join!(subscribe(&two, topic, 64), async {
            // The sticky strategy may keep all partitions in progress.
            let _quiet = tokio::time::timeout(Duration::from_secs(5), finishing).await;
        });
        handling.drain(..).for_each(|receipt| receipt.acknowledge());
        let mut both = [0, 0];
        while came.iter().collect::<BTreeSet<_>>().len() < 40 {
            let (who, delivery) = tokio::select! {
                delivery = next(&mut first) => (0, delivery),
                delivery = next(&mut second) => (1, delivery),
            };
            both[who] += 1;
            came.push(text(&delivery));
            delivery.receipt.acknowledge();
        }
        // Members that join concurrently may be considered gone; then their records are redelivered.
        assert!(came.len() == 40 || strategy == "sticky", "{strategy}: {came:?}");
        first.ended().await.unwrap();
        second.ended().await.unwrap();
        let total: i64 = positions(address, topic, topic).await.values().sum();
        assert_eq!(total, 40, "{strategy}: {both:?}");
        one.close().await;
        two.close().await;
    }
}

/// A record that waits for a retry goes to the new owner of its partition.
pub(super) async fn rebalance_does_not_wait_for_retry(address: &str, admin: &AdminClient) {
    make_topic(admin, "retry", 1).await;
    let more = [("backOffDuration", "10m")];
    let one = open(address, "retry", &more).await.unwrap();
    let two = open(address, "retry", &more).await.unwrap();
    let mut first = subscribe(&one, "retry", 8).await;
    publish(&one, "retry", "a", &["poison", "after"]).await;
    next(&mut first).await.receipt.reject();
    let begun = tokio::time::Instant::now();
    let second = subscribe(&two, "retry", 8);
    let noting = async {
        loop {
            let _held = next(&mut first).await;
        }
    };
    let mut second = tokio::select! {
        second = second => second,
        () = noting => unreachable!(),
    };
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    first.ended().await.unwrap();
    for expected in ["poison", "after"] {
        let delivery = next(&mut second).await;
        assert_eq!(text(&delivery), expected);
        delivery.receipt.acknowledge();
    }
    second.ended().await.unwrap();
    one.close().await;
    two.close().await;
}

pub(super) async fn handles_added_partitions(address: &str, admin: &AdminClient) {
    make_topic(admin, "growing", 1).await;
    let more = [("clientConnectionTopicMetadataRefreshInterval", "500ms")];
    let broker = open(address, "growing", &more).await.unwrap();
    let mut subscription = subscribe(&broker, "growing", 8).await;
    let grown = admin.create_partitions([("growing", 3)], CreatePartitionsOptions::default());
    for (_, outcome) in grown.await.unwrap() {
        outcome.unwrap();
    }
    produce(address, "growing", &[(0, "0"), (1, "1"), (2, "2")]).await;
    let mut came = BTreeSet::new();
    while came.len() < 3 {
        let delivery = next(&mut subscription).await;
        came.insert(text(&delivery));
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Replaces three members under load. Every record arrives, in order for each key, and the group ends without
/// lag.
pub(super) async fn rolling_restarts_lose_nothing(address: &str, admin: &AdminClient) {
    const RECORDS: usize = 600;
    make_topic(admin, "rolling", 6).await;
    let seen: Arc<Mutex<BTreeMap<String, Vec<usize>>>> = Arc::default();
    let start = async || {
        let broker = open(address, "rolling", &[]).await.unwrap();
        let subscription = subscribe(&broker, "rolling", 32).await;
        let stop = CancellationToken::new();
        let working = tokio::spawn(work(subscription, Arc::clone(&seen), stop.clone()));
        (broker, stop, working)
    };
    let mut members = vec![start().await, start().await, start().await];
    let publisher = open(address, "rolling", &[]).await.unwrap();
    let publishing = async {
        for number in 0..RECORDS {
            let key = format!("key-{}", number % 12);
            publisher
                .publish(&message(
                    "rolling",
                    &number.to_string(),
                    &[("partitionKey", &key)],
                ))
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let restarting = async {
        for _ in 0..3 {
            let (broker, stop, working) = members.remove(0);
            stop.cancel();
            working.await.unwrap();
            broker.close().await;
            members.push(start().await);
        }
    };
    tokio::join!(publishing, restarting);
    let count = || {
        let seen = seen.lock().unwrap();
        let mut all: Vec<usize> = seen.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    let complete = async {
        while count() < RECORDS {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let complete = tokio::time::timeout(SOON * 2, complete).await;
    assert!(complete.is_ok(), "{} of {RECORDS} arrived", count());
    for (broker, stop, working) in members {
        stop.cancel();
        working.await.unwrap();
        broker.close().await;
    }
    for (key, numbers) in seen.lock().unwrap().iter() {
        // Records may be duplicated; only the first delivery counts.
        let mut first = Vec::new();
        for number in numbers {
            if !first.contains(number) {
                first.push(*number);
            }
        }
        assert!(first.is_sorted(), "{key} came as {numbers:?}");
    }
    let total: i64 = positions(address, "rolling", "rolling").await.values().sum();
    assert_eq!(total, i64::try_from(RECORDS).unwrap());
    publisher.close().await;
}

/// An app that takes a few milliseconds per record, one at a time.
async fn work(
    mut subscription: Subscription,
    seen: Arc<Mutex<BTreeMap<String, Vec<usize>>>>,
    stop: CancellationToken,
) {
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            event = subscription.next() => event,
        };
        let Some(Event::Message(delivery)) = event else {
            continue;
        };
        tokio::time::sleep(Duration::from_millis(2)).await;
        let key = delivery.message.metadata["__key"].clone();
        let number = text(&delivery).parse().unwrap();
        seen.lock().unwrap().entry(key).or_default().push(number);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
}
