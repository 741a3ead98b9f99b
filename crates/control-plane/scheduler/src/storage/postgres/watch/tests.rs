//! Watches on a real server whose tables are changed by hand.

use outrigger_components_testing::server;

use super::*;
use crate::storage::postgres::Postgres;
use crate::storage::shared::backend::{Backend, Write};

/// Deadline for expected events.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn store(server: &server::Postgres) -> (Postgres, tokio_postgres::Client) {
    let store = Postgres::new(&server.text()).unwrap();
    put(&store, "dapr/jobs/first").await;
    let (client, connection) = tokio_postgres::connect(&server.text(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    (store, client)
}

async fn put(store: &Postgres, key: &str) {
    let put = Write::Put {
        key: key.into(),
        value: b"value".to_vec(),
        lease: None,
    };
    assert!(store.commit(&[], &[put]).await.unwrap());
}

/// Like `put`, with retries over broken connections.
async fn put_again(store: &Postgres, key: &str) {
    let put = [Write::Put {
        key: key.into(),
        value: b"value".to_vec(),
        lease: None,
    }];
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while let Err(error) = store.commit(&[], &put).await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
        tokio::time::sleep(PAUSE).await;
    }
}

async fn next(watch: &mut Box<dyn Watch>) -> Result<Vec<Event>, StorageError> {
    let told = tokio::time::timeout(TIMEOUT, watch.next()).await;
    told.expect("nothing is told")
}

/// Invariant: a watch does not skip changes of a new server under revisions that the previous one had used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_on_lower_revision() {
    let Some(server) = server::Postgres::start() else {
        return;
    };
    let (store, control) = store(&server).await;
    let set = "UPDATE scheduler_meta SET value = $1 WHERE name = 'revision'";
    control.execute(set, &[&1000_i64]).await.unwrap();
    let mut watch = store.watch(Range::prefix("dapr/jobs/"), 1000);
    put(&store, "dapr/jobs/second").await;
    assert_eq!(next(&mut watch).await.unwrap().len(), 1);

    control.execute(set, &[&950_i64]).await.unwrap();
    put(&store, "dapr/jobs/third").await;
    let error = next(&mut watch).await.unwrap_err();
    assert!(
        matches!(&error, StorageError::Failed(why) if why.contains("went back from 1001 to 951")),
        "{error}"
    );
}

/// Invariant: a watch ends when another server with less data takes over, even if the revision has passed the
/// old one. A restarted server is the same server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_on_failover() {
    let Some(mut server) = server::Postgres::start() else {
        return;
    };
    let connect = async |server: &server::Postgres| {
        let (client, connection) = tokio_postgres::connect(&server.text(), tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client
    };
    // An account with the rights of a scheduler.
    let sql = "CREATE ROLE plain LOGIN; GRANT CREATE ON SCHEMA public TO plain";
    connect(&server).await.batch_execute(sql).await.unwrap();
    let store = Postgres::new(&server.text().replace("user=postgres", "user=plain")).unwrap();
    put(&store, "dapr/jobs/first").await;
    let mut watch = store.watch(Range::prefix("dapr/jobs/"), 0);
    assert_eq!(next(&mut watch).await.unwrap().len(), 1);

    server.kill();
    server.start_again();
    put_again(&store, "dapr/jobs/second").await;
    assert_eq!(next(&mut watch).await.unwrap().len(), 1);

    server.kill();
    server.take_over();
    let lost = "DELETE FROM scheduler_pairs WHERE key = convert_to('dapr/jobs/second', 'UTF8');
                UPDATE scheduler_meta SET value = value + 100 WHERE name = 'revision'";
    connect(&server).await.batch_execute(lost).await.unwrap();
    let error = next(&mut watch).await.unwrap_err();
    assert!(
        matches!(&error, StorageError::Failed(why) if why.contains("another PostgreSQL server")),
        "{error}"
    );
    put_again(&store, "dapr/jobs/third").await;
    let mut watch = store.watch(Range::prefix("dapr/jobs/"), 0);
    assert_eq!(next(&mut watch).await.unwrap().len(), 2, "a new one goes on");
}

/// Invariant: no deletion is missed, wherever a page ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_on_pruned_tombstones() {
    let Some(server) = server::Postgres::start() else {
        return;
    };
    let (store, control) = store(&server).await;
    // A full page.
    let changes = "INSERT INTO scheduler_pairs (key, value, created, modified, version)
             SELECT convert_to('dapr/jobs/' || at, 'UTF8'), '', 10, 10, 1 FROM generate_series(1, 1000) AS at;
         UPDATE scheduler_meta SET value = 10 WHERE name = 'revision'";
    control.batch_execute(changes).await.unwrap();
    let forget = "UPDATE scheduler_meta SET value = 10 WHERE name = 'forgotten'";
    let mut before = store.watch(Range::prefix("dapr/jobs/"), 5);
    let mut between = store.watch(Range::prefix("dapr/jobs/"), 5);
    assert_eq!(next(&mut between).await.unwrap().len(), 1000);
    control.batch_execute(forget).await.unwrap();
    for watch in [&mut before, &mut between] {
        let error = next(watch).await.unwrap_err();
        assert!(
            matches!(&error, StorageError::Failed(why) if why.contains("up to revision 10")),
            "{error}"
        );
    }
    // A watch that is up to date continues.
    let mut after = store.watch(Range::prefix("dapr/jobs/"), 10);
    put(&store, "dapr/jobs/next").await;
    assert_eq!(next(&mut after).await.unwrap().len(), 1);
}
