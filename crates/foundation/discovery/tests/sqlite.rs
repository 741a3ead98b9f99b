//! Complete SQLite resolvers on one file.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::{path::Path, sync::Arc, time::Duration};

use outrigger_discovery::{
    Address, BuildError, FatalError, Options, Registration, ResolveError, Resolver, build,
};
use rusqlite::Connection;
use serde_json::json;
use tokio::{sync::mpsc, time::timeout};

const LONG: Duration = Duration::from_secs(20);

type Fatal = mpsc::UnboundedReceiver<FatalError>;

fn options(file: &Path, app_id: &str, port: u16, interval: &str) -> (Options, Fatal) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let options = Options {
        component: "sqlite".to_owned(),
        version: "v1".to_owned(),
        configuration: json!({"connectionString": file.to_str().unwrap(), "updateInterval": interval}),
        registration: Registration {
            app_id: app_id.to_owned(),
            host_address: "127.0.0.1".to_owned(),
            internal_port: port,
            ..Registration::default()
        },
        on_fatal: Arc::new(move |error| drop(sender.send(error))),
    };
    (options, receiver)
}

async fn start(file: &Path, app_id: &str, port: u16) -> Arc<dyn Resolver> {
    build(options(file, app_id, port, "1m").0).await.unwrap()
}

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

#[tokio::test]
async fn sidecars_share_file_and_deregister() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.db");
    let one = start(&file, "one", 1).await;
    assert_eq!(one.name(), "sqlite");
    assert_eq!(one.resolve("two", "").await.unwrap_err(), ResolveError::NoHost);
    let mut watcher = one.watch("two", "");
    let (second, third) = (start(&file, "two", 2).await, start(&file, "two", 3).await);
    assert_eq!(*one.resolve("two", "").await.unwrap(), [at(2), at(3)]);
    assert_eq!(*second.resolve("one", "").await.unwrap(), [at(1)]);
    second.close().await;
    let seen = timeout(LONG, watcher.wait_for(|found| **found == [at(3)])).await;
    seen.unwrap().unwrap();
    third.close().await;
    let seen = timeout(LONG, watcher.wait_for(|found| found.is_empty())).await;
    seen.unwrap().unwrap();
    assert_eq!(second.resolve("one", "").await.unwrap_err(), ResolveError::Closed);
}

#[tokio::test]
async fn renews_and_restores_registration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.db");
    let _one = build(options(&file, "one", 1, "2s").0).await.unwrap();
    let database = Connection::open(&file).unwrap();
    database.busy_timeout(LONG).unwrap();
    // An aged or deleted row is fresh again after the next renewal.
    for damage in ["UPDATE hosts SET last_update = 0", "DELETE FROM hosts"] {
        database.execute(damage, []).unwrap();
        let fresh = "SELECT count(*) FROM hosts WHERE unixepoch() - last_update < 2";
        let renewed = async {
            while database.query_row(fresh, [], |row| row.get::<_, i64>(0)).unwrap() == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(LONG, renewed).await.expect(damage);
    }
}

#[tokio::test]
async fn lost_address_is_fatal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.db");
    let (options, mut fatal) = options(&file, "one", 1, "2s");
    let _one = build(options).await.unwrap();
    let _other = start(&file, "other", 1).await;
    let error = timeout(LONG, fatal.recv()).await.unwrap().unwrap();
    let address = "127.0.0.1:1".to_owned();
    assert_eq!(error, FatalError::RegistrationLost { address });
}

#[tokio::test]
async fn dropping_resolver_removes_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.db");
    drop(start(&file, "one", 1).await);
    let observer = start(&file, "observer", 2).await;
    let mut watcher = observer.watch("one", "");
    let seen = timeout(LONG, watcher.wait_for(|found| found.is_empty())).await;
    seen.unwrap().unwrap();
}

#[tokio::test]
async fn error_names_uncreatable_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing").join("names.db");
    let error = build(options(&file, "one", 1, "2s").0).await.err().unwrap();
    assert!(matches!(error, BuildError::Sqlite(_)));
    assert!(error.to_string().contains("missing/names.db"), "{error}");
}
