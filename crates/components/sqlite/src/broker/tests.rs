//! Deletion while consumers run.

use std::{num::NonZeroUsize, time::Duration};

use outrigger_component::{Metadata, pubsub::Event};
use rusqlite::Connection;

use super::*;

/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

async fn broker(path: &str, group: &str, sweep: Duration) -> SqliteBroker {
    let properties = [("connectionString", path), ("consumerID", group)];
    let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let setup = Setup {
        metadata: Metadata::new("broker", properties).unwrap(),
        app_id: "app".to_owned(),
    };
    let mut broker = open(&setup).await.unwrap();
    Arc::get_mut(&mut broker.0).unwrap().options.sweep = sweep;
    broker
}

async fn subscribe(broker: &SqliteBroker) -> Subscription {
    let request = Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::new(4).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

/// A group that looks abandoned, as all groups do after a clock jump.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_recovers_after_group_removal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db").to_str().unwrap().to_owned();
    let sweeping = broker(&path, "sweeping", Duration::from_millis(20)).await;
    let removed = broker(&path, "removed", Duration::from_secs(2)).await;
    let _sweeping = subscribe(&sweeping).await;
    let mut subscription = subscribe(&removed).await;
    let database = Connection::open(&path).unwrap();
    database.busy_timeout(SOON).unwrap();
    let age = "UPDATE pubsub_groups SET seen_ms = 0 WHERE name = 'removed'";
    let aging = async {
        while database.execute(age, []).unwrap() == 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, aging).await.unwrap();

    let ended = tokio::time::timeout(SOON, subscription.next()).await.unwrap();
    assert!(ended.is_none(), "{ended:?}");
    let error = subscription.ended().await.unwrap_err();
    assert!(
        error.to_string().contains("group removed of topic orders"),
        "{error}"
    );
    let mut subscription = subscribe(&removed).await;
    let message = Publish {
        topic: "orders".to_owned(),
        data: "after".into(),
        ..Publish::default()
    };
    sweeping.publish(&message).await.unwrap();
    let next = tokio::time::timeout(SOON, subscription.next()).await.unwrap();
    let Some(Event::Message(delivery)) = next else {
        panic!("{next:?}")
    };
    assert_eq!(delivery.message.data, "after");
    delivery.receipt.acknowledge();
    subscription.ended().await.unwrap();
}

#[test]
fn sweep_without_retention_removes_nothing() {
    let database = Connection::open_in_memory().unwrap();
    let tables = Tables::new("pubsub");
    for step in tables.create() {
        database.execute_batch(&step).unwrap();
    }
    let own = tables.join(&database, "orders", "own").unwrap();
    let other = tables.join(&database, "orders", "other").unwrap();
    let age = "UPDATE pubsub_groups SET seen_ms = 0 WHERE name = 'other'";
    let month = Some(Duration::from_secs(30 * 24 * 3600));
    database.execute(age, []).unwrap();
    assert!(tables.sweep(&database, own, None).unwrap());
    assert!(tables.sweep(&database, other, None).unwrap());
    database.execute(age, []).unwrap();
    assert!(tables.sweep(&database, own, month).unwrap());
    assert!(!tables.sweep(&database, other, month).unwrap());
    let next = tables.join(&database, "orders", "next").unwrap();
    assert!(next != other && next != own);
}
