//! Leases on a real server whose clock is changed.

use outrigger_components_testing::server;

use super::*;
use crate::storage::postgres::Postgres;
use crate::storage::shared::backend::{Backend, Write};

/// Deadline for expected events.
const TIMEOUT: Duration = Duration::from_secs(30);
const LIFETIME: Duration = Duration::from_secs(4);

/// Gives new sessions a settable clock; returns the connection that sets it.
async fn clock(server: &server::Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.text(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
        .batch_execute(server::Postgres::SETTABLE_CLOCK)
        .await
        .unwrap();
    client
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting).await.expect(what);
}

/// Invariant: setting the clock ahead ends no lease of a live scheduler. A dead scheduler's lease ends as if
/// it had last been renewed when the clock was set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_set_ahead_ends_no_lease() {
    let Some(server) = server::Postgres::start() else {
        return;
    };
    let control = clock(&server).await;
    let store = Postgres::new(&server.text()).unwrap();
    let [alive, dead] = [
        store.grant(LIFETIME).await.unwrap(),
        store.grant(LIFETIME).await.unwrap(),
    ];
    let keys = [b"alive".to_vec(), b"dead".to_vec()];
    for (key, lease) in keys.iter().zip([alive, dead]) {
        let put = Write::Put {
            key: key.clone(),
            value: Vec::new(),
            lease: Some(lease),
        };
        assert!(store.commit(&[], &[put]).await.unwrap());
    }
    let there = async || {
        let pairs = store.get(keys.to_vec()).await.unwrap();
        [pairs[0].is_some(), pairs[1].is_some()]
    };
    for shift in ["1 hour", "50 hours"] {
        let sql = format!("UPDATE fake.clock SET shift = '{shift}'");
        control.batch_execute(&sql).await.unwrap();
        assert!(
            store.keep(alive).await.unwrap(),
            "its time had come, but nobody has ended it"
        );
        let sql = "SELECT count(*) FILTER (WHERE ends > fake.clock_timestamp()) FROM fake.scheduler_leases";
        eventually("a lease is not made to last", async || {
            control.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 2
        })
        .await;
        assert_eq!(there().await, [true, true], "{shift}");
    }
    let set = Instant::now();
    eventually("the lease of the dead does not end", async || {
        assert!(store.keep(alive).await.unwrap());
        there().await == [true, false]
    })
    .await;
    assert!(set.elapsed() < LIFETIME * 3, "{:?}", set.elapsed());
}

#[test]
fn detects_clock_set_ahead() {
    let clock = ServerClock::default();
    let (begun, shown) = (Instant::now(), SystemTime::now());
    let ahead = |seconds| shown + Duration::from_secs(seconds);
    assert_eq!(clock.record(begun, ahead(7200)), None, "nothing is known of it");
    assert_eq!(clock.record(begun, ahead(7200)), None);
    assert_eq!(clock.record(begun, ahead(0)), None, "set back");
    let gained = clock.record(begun, ahead(3600)).unwrap();
    assert!((3590..=3600).contains(&gained.as_secs()), "{gained:?}");
    // A slow reading does not count as a change of the clock.
    let long_ago = begun.checked_sub(Duration::from_secs(60)).unwrap();
    clock.record(long_ago, ahead(3600));
    assert_eq!(clock.record(begun, ahead(3650)), None);
}
