//! Complete mDNS resolvers in one process, over the real multicast group.
//!
//! The protocol fixes the port, which processes share. App IDs are unique per test and process, so
//! concurrent runs do not collide.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::time::Duration;

use outrigger_discovery::{Address, Addresses, Mdns, Registration, ResolveError, Resolver};
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(10);

fn app(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn start(app_id: &str, port: u16) -> Mdns {
    Mdns::start(&Registration {
        app_id: app_id.to_owned(),
        host_address: "127.0.0.1".to_owned(),
        internal_port: port,
        instance: Some(format!("test:{port}")),
        ..Registration::default()
    })
    .unwrap()
}

/// Retries a lookup until it succeeds: one times out after a second, which is short on a busy machine.
async fn find(resolver: &Mdns, app_id: &str) -> Addresses {
    let search = async {
        loop {
            if let Ok(found) = resolver.resolve(app_id, "any").await {
                return found;
            }
        }
    };
    timeout(LONG, search).await.unwrap()
}

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

#[tokio::test]
async fn two_sidecars_find_each_other() {
    let (one, two) = (app("one"), app("two"));
    let (first, second) = (start(&one, 1001), start(&two, 1002));
    assert_eq!(*find(&first, &two).await, [at(1002)]);
    assert_eq!(*find(&second, &one).await, [at(1001)]);
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn watch_follows_instances() {
    let app_id = app("many");
    let first = start(&app_id, 2001);
    let observer = Mdns::browse_only().unwrap();
    let mut watcher = observer.watch(&app_id, "");
    let seen = timeout(LONG, watcher.wait_for(|found| **found == [at(2001)])).await;
    seen.unwrap().unwrap();
    let second = start(&app_id, 2002);
    let seen = timeout(LONG, watcher.wait_for(|found| **found == [at(2001), at(2002)])).await;
    seen.unwrap().unwrap();
    first.close().await;
    let seen = timeout(LONG, watcher.wait_for(|found| **found == [at(2002)])).await;
    seen.unwrap().unwrap();
    drop(second);
    let seen = timeout(LONG, watcher.wait_for(|found| found.is_empty())).await;
    seen.unwrap().unwrap();
}

#[tokio::test]
async fn unknown_app_fails_after_one_second() {
    let observer = Mdns::browse_only().unwrap();
    let app_id = app("nobody");
    let begun = Instant::now();
    let (one, two) = tokio::join!(observer.resolve(&app_id, ""), observer.resolve(&app_id, ""));
    assert_eq!(one, two);
    assert_eq!(
        one.unwrap_err().to_string(),
        format!("couldn't find service: {app_id}")
    );
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < LONG, "{waited:?}");
}

#[tokio::test]
async fn pending_lookup_finds_starting_app() {
    let app_id = app("late");
    let observer = Mdns::browse_only().unwrap();
    let look_up = find(&observer, &app_id);
    let start = async {
        tokio::task::yield_now().await;
        start(&app_id, 3001)
    };
    let (found, _sidecar) = tokio::join!(look_up, start);
    assert_eq!(*found, [at(3001)]);
}

#[tokio::test]
async fn evicted_address_returns_if_alive() {
    let app_id = app("evicted");
    let _sidecar = start(&app_id, 4001);
    let observer = Mdns::browse_only().unwrap();
    find(&observer, &app_id).await;
    let mut watcher = observer.watch(&app_id, "");
    observer.evict(&app_id, "", &at(4001));
    let seen = timeout(LONG, watcher.wait_for(|found| **found == [at(4001)])).await;
    seen.unwrap().unwrap();
}

#[tokio::test]
async fn closed_resolver_reports_error() {
    let observer = Mdns::browse_only().unwrap();
    observer.close().await;
    observer.close().await;
    assert_eq!(
        observer.resolve("any", "").await.unwrap_err(),
        ResolveError::Closed
    );
}

#[tokio::test]
async fn rejects_incomplete_registration() {
    let complete = Registration {
        app_id: app("complete"),
        host_address: "127.0.0.1".to_owned(),
        internal_port: 1,
        ..Registration::default()
    };
    let error = |change: fn(&mut Registration)| {
        let mut registration = complete.clone();
        change(&mut registration);
        Mdns::start(&registration).err().unwrap().to_string()
    };
    assert!(error(|r| r.app_id.clear()).contains("app id is missing"));
    assert!(error(|r| r.internal_port = 0).contains("port is missing"));
    assert!(error(|r| r.host_address = "myhost".to_owned()).contains("DAPR_HOST_IP"));
    assert!(error(|r| r.app_id = "x".repeat(64)).contains("is not a DNS name"));
}
