//! Pub/sub on SQLite.
use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use outrigger_component::{
    PubSub, Result,
    pubsub::{BulkEntry, BulkPublish, Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::Components;
use rusqlite::Connection;
use tempfile::TempDir;

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: true,
    wildcard: None,
};
/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

struct File(TempDir);

impl File {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> String {
        self.0.path().join("data.db").to_str().unwrap().to_owned()
    }

    async fn open(&self, group: &str, more: &[(&str, &str)]) -> Result<Arc<dyn PubSub>> {
        let path = self.path();
        let mut properties = vec![("connectionString", path.as_str()), ("consumerID", group)];
        properties.extend(more);
        let components = Components::of(outrigger_components_sqlite::add);
        components.pubsub("pubsub.sqlite", "v1", &properties).await
    }
}

fn message(data: &str) -> Publish {
    Publish {
        topic: "orders".to_owned(),
        data: data.to_owned().into(),
        ..Publish::default()
    }
}

async fn subscribe(broker: &Arc<dyn PubSub>) -> Subscription {
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(4).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

async fn next(subscription: &mut Subscription) -> Delivery {
    match tokio::time::timeout(SOON, subscription.next()).await.unwrap() {
        Some(Event::Message(delivery)) => delivery,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_passes_conformance() {
    let file = File::new();
    conformance::pubsub(RULES, async |group: &str| file.open(group, &[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_group_starts_at_latest() {
    let file = File::new();
    let old = file.open("old", &[]).await.unwrap();
    let mut first = subscribe(&old).await;
    old.publish(&message("before")).await.unwrap();
    let new = file.open("new", &[]).await.unwrap();
    let mut second = subscribe(&new).await;
    old.publish(&message("after")).await.unwrap();
    for (subscription, texts) in [(&mut first, &["before", "after"][..]), (&mut second, &["after"])] {
        for text in texts {
            let delivery = next(subscription).await;
            assert_eq!(delivery.message.data, *text);
            delivery.receipt.acknowledge();
        }
    }
    first.ended().await.unwrap();
    second.ended().await.unwrap();
    old.close().await;
    new.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tolerates_failing_consumers() {
    let file = File::new();
    conformance::pubsub_members(RULES, async |group: &str| file.open(group, &[]).await).await;
}

/// Messages leased by a killed sidecar are not lost, and wait no longer than the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_after_consumer_loss() {
    let file = File::new();
    let short = [("visibilityTimeout", "1s")];
    let vanishing = file.open("app", &short).await.unwrap();
    let mut subscription = subscribe(&vanishing).await;
    vanishing.publish(&message("a")).await.unwrap();
    let held = next(&mut subscription).await;
    assert_eq!(held.message.redelivered, Some(0));
    // The task ends without notifying the database, like a killed process.
    drop(subscription);
    let other = file.open("app", &short).await.unwrap();
    let mut subscription = subscribe(&other).await;
    let again = next(&mut subscription).await;
    assert_eq!(again.message.data, "a");
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    held.receipt.reject();
    subscription.ended().await.unwrap();
}

/// Even after small messages, whose size says nothing about later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bounds_leased_bytes() {
    const LARGE: usize = 2 * 1024 * 1024;
    let file = File::new();
    let broker = file.open("app", &[]).await.unwrap();
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(1000).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let bulk = async |count: usize, size: usize| {
        let data = bytes::Bytes::from(vec![b'x'; size]);
        let entry = |number: usize| BulkEntry {
            id: number.to_string(),
            data: data.clone(),
            ..BulkEntry::default()
        };
        let request = BulkPublish {
            topic: "orders".to_owned(),
            entries: (0..count).map(entry).collect(),
            ..BulkPublish::default()
        };
        assert!(broker.publish_bulk(&request).await.unwrap().is_empty());
    };
    bulk(200, 1).await;
    for _ in 0..200 {
        next(&mut subscription).await.receipt.acknowledge();
    }
    // In one transaction, so that one lease could take all.
    bulk(24, LARGE).await;
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(next(&mut subscription).await);
    }
    let more = tokio::time::timeout(Duration::from_millis(500), subscription.next()).await;
    assert!(more.is_err(), "more than 32 MiB");
    let database = Connection::open(file.path()).unwrap();
    let leased = "SELECT COUNT(*) FROM pubsub_deliveries WHERE owner <> ''";
    let leased: i64 = database.query_row(leased, [], |row| row.get(0)).unwrap();
    assert_eq!(leased, 16);
    // A single message passes whatever its size.
    bulk(1, 20 * LARGE).await;
    held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
    for size in std::iter::repeat_n(LARGE, 8).chain([20 * LARGE]) {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.data.len(), size);
        delivery.receipt.acknowledge();
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handler_keeps_message() {
    let file = File::new();
    let short = [("visibilityTimeout", "2s")];
    let (slow, other) = (
        file.open("app", &short).await.unwrap(),
        file.open("app", &short).await.unwrap(),
    );
    let mut subscription = subscribe(&slow).await;
    slow.publish(&message("a")).await.unwrap();
    let held = next(&mut subscription).await;
    let mut waiting = subscribe(&other).await;
    let early = tokio::time::timeout(Duration::from_secs(5), waiting.next()).await;
    assert!(early.is_err(), "{early:?}");
    held.receipt.acknowledge();
    subscription.ended().await.unwrap();
    let late = tokio::time::timeout(Duration::from_secs(3), waiting.next()).await;
    assert!(late.is_err(), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_fully_acknowledged_messages() {
    let file = File::new();
    let (one, two) = (
        file.open("one", &[]).await.unwrap(),
        file.open("two", &[]).await.unwrap(),
    );
    // Without a group the message is not kept.
    one.publish(&message("too early")).await.unwrap();
    let mut subscriptions = [subscribe(&one).await, subscribe(&two).await];
    one.publish(&message("a")).await.unwrap();
    let count = || {
        let database = Connection::open(file.path()).unwrap();
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT COUNT(*) FROM pubsub_{table}");
            database.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        (count("messages"), count("deliveries"))
    };
    for subscription in &mut subscriptions {
        next(subscription).await.receipt.acknowledge();
    }
    for subscription in subscriptions {
        subscription.ended().await.unwrap();
    }
    assert_eq!(count(), (0, 0));
}

#[tokio::test]
async fn invalid_settings_are_named() {
    let Components(catalog) = Components::of(outrigger_components_sqlite::add);
    let entry = catalog.pubsub.find("pubsub.sqlite", "v1").unwrap();
    let memory = ("connectionString", ":memory:");
    conformance::settings(
        &entry,
        &[
            ("connectionString", &[]),
            ("tableName", &[memory, ("tableName", "x; DROP TABLE y")]),
            ("visibilityTimeout", &[memory, ("visibilityTimeout", "soon")]),
            ("redeliverInterval", &[memory, ("redeliverInterval", "soon")]),
            ("pollInterval", &[memory, ("pollInterval", "soon")]),
            ("retention", &[memory, ("retention", "1s")]),
        ],
    )
    .await;
}

/// Invariant: a key whose first message keeps failing, with more messages than a subscription holds, does not
/// delay other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_backlog_does_not_delay_other_keys() {
    const BEHIND: usize = 2000;
    const OTHERS: usize = 100;
    let file = File::new();
    let broker = file.open("app", &[("redeliverInterval", "100ms")]).await.unwrap();
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(1024).unwrap(),
    };
    let mut subscription = broker.subscribe(request).await.unwrap();
    let bulk = async |key: &str, count: usize| {
        let entry = |number: usize| BulkEntry {
            id: number.to_string(),
            data: format!("{key}{number}").into(),
            metadata: [("partitionKey".to_owned(), key.to_owned())].into(),
            ..BulkEntry::default()
        };
        let request = BulkPublish {
            topic: "orders".to_owned(),
            entries: (0..count).map(entry).collect(),
            ..BulkPublish::default()
        };
        assert!(broker.publish_bulk(&request).await.unwrap().is_empty());
    };
    bulk("poison", 1 + BEHIND).await;
    // Deliveries of the poison message and of messages behind it.
    let (mut failed, mut behind, mut others) = (0_usize, 0_usize, Vec::new());
    let mut take = async |failed: &mut usize, behind: &mut usize, others: &mut Vec<String>| {
        let next = tokio::time::timeout(SOON, subscription.next()).await.unwrap();
        match next.unwrap() {
            Event::Message(delivery) if delivery.message.data == "poison0" => {
                *failed += 1;
                delivery.receipt.reject_key();
            }
            Event::Message(delivery) if delivery.message.data.starts_with(b"poison") => {
                *behind += 1;
                delivery.receipt.release(true);
            }
            Event::Message(delivery) => {
                others.push(String::from_utf8_lossy(&delivery.message.data).into_owned());
                delivery.receipt.acknowledge();
            }
            Event::Reopened(_) => {}
            Event::Revoked(_) => panic!("there are no partitions"),
        }
    };
    while failed < 3 {
        take(&mut failed, &mut behind, &mut others).await;
    }
    let in_vain = behind;
    bulk("other", OTHERS).await;
    let published = std::time::Instant::now();
    while others.len() < OTHERS {
        take(&mut failed, &mut behind, &mut others).await;
    }
    let expected: Vec<String> = (0..OTHERS).map(|number| format!("other{number}")).collect();
    assert_eq!(others, expected);
    assert!(published.elapsed() < SOON / 4, "{:?}", published.elapsed());
    assert_eq!(
        behind, in_vain,
        "they were leased behind a message that had failed"
    );
    assert!(behind <= 1024, "{behind}");
    // Once the poison message is done, the others of its key follow in order.
    let mut came = 0;
    while came <= BEHIND {
        match tokio::time::timeout(SOON, subscription.next())
            .await
            .unwrap()
            .unwrap()
        {
            Event::Message(delivery) => {
                assert_eq!(delivery.message.data, format!("poison{came}"));
                came += 1;
                delivery.receipt.acknowledge();
            }
            Event::Reopened(_) => {}
            Event::Revoked(_) => panic!("there are no partitions"),
        }
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}
