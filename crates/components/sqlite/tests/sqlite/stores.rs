//! The SQLite stores.
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use outrigger_component::{
    Kind,
    state::{Bounds, Get, Set, TTL, Value},
};
use outrigger_component_conformance::{self as conformance, StateRules, Writer};
use outrigger_components_testing::Components;
use rusqlite::Connection;
use tempfile::TempDir;

fn components() -> Components {
    Components::of(outrigger_components_sqlite::add)
}

struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        Self {
            _folder: folder,
            path,
        }
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn set(key: &str, value: Value) -> Set {
    Set {
        key: key.to_owned(),
        value,
        ..Set::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_passes_conformance() {
    let file = File::new();
    let store = components()
        .state("state.sqlite", "v1", &[("connectionString", file.text())])
        .await
        .unwrap();
    conformance::state(&store, StateRules::default()).await;
    conformance::state_after_close(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_passes_conformance() {
    for url in [":memory:", "file:shared?mode=memory&cache=shared"] {
        let store = components()
            .state("state.sqlite3", "", &[("url", url)])
            .await
            .unwrap();
        conformance::state(&store, StateRules::default()).await;
        conformance::state_after_close(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecars_share_file() {
    let file = File::new();
    let properties = [("connectionString", file.text())];
    let open = || components().state("state.sqlite", "v1", &properties);
    // Concurrently: each finds the file empty or partly prepared.
    let (a, b, c) = tokio::join!(open(), open(), open());
    let stores = [a.unwrap(), b.unwrap(), c.unwrap()];
    let writes = stores.iter().cloned().enumerate().map(|(number, store)| {
        tokio::spawn(async move {
            for key in 0..30 {
                let value = Value::Bytes(number.to_string().into());
                store.set(&set(&format!("{number}-{key}"), value)).await.unwrap();
            }
        })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.unwrap();
    }
    for store in &stores {
        for number in 0..3 {
            let item = store
                .get(&Get::key(format!("{number}-29")))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(item.data, number.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_share_bookkeeping() {
    let file = File::new();
    let text = ("connectionString", file.text());
    // State left by Dapr and earlier releases: the level of one table.
    drop(components().state("state.sqlite", "v1", &[text]).await.unwrap());
    let database = Connection::open(&file.path).unwrap();
    let forget = "DELETE FROM metadata WHERE key = 'migrations:state'";
    assert_eq!(database.execute(forget, []).unwrap(), 1);
    for table in ["orders", "lock", "state", "orders"] {
        let properties = [text, ("tableName", table), ("cleanupInterval", "10ms")];
        let store = components()
            .state("state.sqlite", "v1", &properties)
            .await
            .unwrap();
        store.set(&set("k", Value::Bytes("v".into()))).await.unwrap();
        assert!(store.get(&Get::key("k")).await.unwrap().is_some());
        // Tables are swept independently.
        let expired = format!("UPDATE {table} SET expiration_time = datetime('now', '-1 hour')");
        database.execute(&expired, []).unwrap();
        let left = format!("SELECT count(*) FROM {table}");
        let deadline = Instant::now() + Duration::from_secs(20);
        while database.query_row(&left, [], |row| row.get::<_, i64>(0)).unwrap() > 0 {
            assert!(Instant::now() < deadline, "{table} is not swept");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        store.close().await;
    }
    for table in ["mine", "yours"] {
        let properties = [text, ("tableName", table)];
        let lock = components().lock("lock.sqlite", "v1", &properties).await.unwrap();
        assert!(lock.try_lock("r", "me", Duration::from_secs(60)).await.unwrap());
        let table = format!("{table}_items");
        let properties = [text, ("tableName", table.as_str())];
        let values = components().configuration("configuration.sqlite", "v1", &properties);
        values.await.unwrap().get(&Default::default()).await.unwrap();
        let broker = components()
            .pubsub("pubsub.sqlite", "v1", &properties)
            .await
            .unwrap();
        broker.publish(&Default::default()).await.unwrap();
    }
}

#[tokio::test]
async fn new_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    for (kind, given) in [
        ("state", None),
        ("lock", None),
        ("configuration", None),
        ("pubsub", None),
        ("state", Some(0o660)),
        ("pubsub", Some(0o640)),
    ] {
        let file = File::new();
        if let Some(mode) = given {
            std::fs::write(&file.path, "").unwrap();
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&file.path, permissions).unwrap();
        }
        let (from, properties) = (components(), [("connectionString", file.text())]);
        let kind_name = format!("{kind}.sqlite");
        let _open: Box<dyn std::any::Any> = match kind {
            "state" => Box::new(from.state(&kind_name, "v1", &properties).await.unwrap()),
            "lock" => Box::new(from.lock(&kind_name, "v1", &properties).await.unwrap()),
            "configuration" => Box::new(from.configuration(&kind_name, "v1", &properties).await.unwrap()),
            _ => Box::new(from.pubsub(&kind_name, "v1", &properties).await.unwrap()),
        };
        for end in ["", "-wal", "-shm"] {
            let path = format!("{}{end}", file.text());
            let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, given.unwrap_or(0o600), "{kind}: {path}");
        }
    }
}

/// Data of this store in Dapr's layout, read with SQL.
#[tokio::test]
async fn layout_matches_dapr() {
    let file = File::new();
    let store = components()
        .state("state.sqlite", "v1", &[("connectionString", file.text())])
        .await
        .unwrap();
    let json = Value::Json(r#"{ "b": 1.0, "a": "<x>" }"#.into());
    store.set(&set("app||json", json)).await.unwrap();
    let mut binary = set("app||binary", Value::Bytes(vec![0, 255].into()));
    binary.metadata.insert(TTL.to_owned(), "60".to_owned());
    store.set(&binary).await.unwrap();
    store.close().await;

    let database = Connection::open(&file.path).unwrap();
    let row = |key: &str| -> (String, i64, String, Option<String>, String) {
        let sql = "SELECT value, is_binary, etag, expiration_time, update_time FROM state WHERE key = ?1";
        database
            .query_row(sql, [key], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
            })
            .unwrap()
    };
    let (value, is_binary, etag, expires, updated) = row("app||json");
    assert_eq!(value, r#"{"a":"\u003cx\u003e","b":1}"#);
    assert_eq!((is_binary, expires), (0, None));
    assert_eq!((etag.len(), updated.len()), (36, "2026-01-01 00:00:00".len()));
    let (value, is_binary, _, expires, _) = row("app||binary");
    assert_eq!((value.as_str(), is_binary), ("AP8=", 1));
    assert_eq!(expires.unwrap().len(), "2026-01-01 00:00:00".len());
    let level: String = database
        .query_row("SELECT value FROM metadata WHERE key = 'migrations'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(level, "1");
    let journal: String = database
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(journal, "wal");
}

/// A file of old Dapr releases without the bookkeeping table.
#[tokio::test]
async fn migrates_older_table() {
    let file = File::new();
    let database = Connection::open(&file.path).unwrap();
    database
        .execute_batch(
            "CREATE TABLE state (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, is_binary BOOLEAN NOT NULL,
                 etag TEXT NOT NULL, expiration_time TIMESTAMP DEFAULT NULL,
                 update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP);
             INSERT INTO state (key, value, is_binary, etag) VALUES ('old', '\"text\"', false, 'e');",
        )
        .unwrap();
    let store = components()
        .state("state.sqlite", "v1", &[("connectionString", file.text())])
        .await
        .unwrap();
    let item = store.get(&Get::key("old")).await.unwrap().unwrap();
    assert_eq!(
        (&item.data[..], item.etag.as_deref()),
        (&b"\"text\""[..], Some("e"))
    );
}

#[tokio::test]
async fn sweeps_expired_rows() {
    let file = File::new();
    let properties = [("connectionString", file.text()), ("cleanupInterval", "1s")];
    let store = components()
        .state("state.sqlite", "v1", &properties)
        .await
        .unwrap();
    let mut short = set("short", Value::default());
    short.metadata.insert(TTL.to_owned(), "1".to_owned());
    store.set(&short).await.unwrap();
    store.set(&set("long", Value::default())).await.unwrap();
    let database = Connection::open(&file.path).unwrap();
    database.busy_timeout(Duration::from_secs(5)).unwrap();
    let count = || -> i64 {
        database
            .query_row("SELECT count(*) FROM state", [], |row| row.get(0))
            .unwrap()
    };
    let swept = async {
        while count() != 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), swept)
        .await
        .unwrap();
    assert!(store.get(&Get::key("long")).await.unwrap().is_some());
}

/// Another process locks the file: reads continue; writes fail in time with a reason, and work again
/// afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_file_blocks_writes_only() {
    let file = File::new();
    let properties = [("connectionString", file.text()), ("busyTimeout", "100ms")];
    let store = components()
        .state("state.sqlite", "v1", &properties)
        .await
        .unwrap();
    store.set(&set("key", Value::default())).await.unwrap();
    let other = Connection::open(&file.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.set(&set("key", Value::default())).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(error.component(), Some("under-test"));
    assert!(store.get(&Get::key("key")).await.unwrap().is_some());
    other.execute_batch("ROLLBACK").unwrap();
    store.set(&set("key", Value::default())).await.unwrap();
}

/// Invariant: nothing is written if a property is invalid, not even under the default name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_property_creates_no_file() {
    for wrong in [("tableName", "my-table"), ("cleanupInterval", "soon")] {
        let file = File::new();
        let properties = [("connectionString", file.text()), wrong];
        let built = components().state("state.sqlite", "v1", &properties).await;
        let Err(error) = built else {
            panic!("{wrong:?} is taken")
        };
        assert!(error.to_string().contains(wrong.0), "{error}");
        // A started thread would need a moment.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!file.path.exists(), "{wrong:?}");
    }
}

#[tokio::test]
async fn unusable_file_is_named() {
    let file = File::new();
    std::fs::write(
        &file.path,
        "this is no database, and long enough for SQLite to look at its header".repeat(20),
    )
    .unwrap();
    let open = async |path: &str| {
        let store = components()
            .state("state.sqlite", "v1", &[("connectionString", path)])
            .await;
        let error = store.map(drop).unwrap_err();
        assert_eq!(error.property(), Some("connectionString"), "{error}");
        error
    };
    let error = open(file.text()).await;
    assert_eq!(error.kind(), Kind::Configuration, "{error}");
    let error = open("/nosuch/folder/data.db").await;
    assert!(
        error
            .to_string()
            .contains("/nosuch/folder/data.db; does the folder exist"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_pass_conformance() {
    let file = File::new();
    let properties = [("connectionString", file.text())];
    let store = components().lock("lock.sqlite", "v1", &properties).await.unwrap();
    conformance::lock(&store).await;
    let second = components().lock("lock.sqlite", "v1", &properties).await.unwrap();
    let long = Duration::from_secs(60);
    assert!(store.try_lock("shared", "a", long).await.unwrap());
    assert!(!second.try_lock("shared", "b", long).await.unwrap());
    store.close().await;
    let closed = store.try_lock("other", "a", long).await.unwrap_err();
    assert_eq!(closed.kind(), Kind::Closed);
}

struct Sql(PathBuf);

impl Sql {
    fn run(&self, sql: &str, values: &[&str]) {
        let path: &Path = &self.0;
        let database = Connection::open(path).unwrap();
        database.busy_timeout(Duration::from_secs(5)).unwrap();
        database.execute(sql, rusqlite::params_from_iter(values)).unwrap();
    }
}

#[async_trait]
impl Writer for Sql {
    async fn put(&self, key: &str, value: &str, version: &str) {
        let sql = "REPLACE INTO configuration (key, value, version) VALUES (?1, ?2, ?3)";
        self.run(sql, &[key, value, version]);
    }

    async fn remove(&self, key: &str) {
        self.run("DELETE FROM configuration WHERE key = ?1", &[key]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_passes_conformance() {
    let file = File::new();
    let properties = [("connectionString", file.text()), ("pollInterval", "20ms")];
    let store = components()
        .configuration("configuration.sqlite", "v1", &properties)
        .await
        .unwrap();
    let writer = Sql(file.path.clone());
    writer.run(
        "INSERT INTO configuration (key, value, metadata) VALUES ('with', 'v', ?1)",
        &[r#"{"owner":"me"}"#],
    );
    let all = store.get(&Default::default()).await.unwrap();
    assert_eq!(all["with"].metadata["owner"], "me");
    conformance::configuration(&store, &writer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_bulk_get_stops_reading() {
    let file = File::new();
    let store = components()
        .state("state.sqlite", "v1", &[("connectionString", file.text())])
        .await
        .unwrap();
    store
        .set(&set("k", Value::Bytes(b"v".as_slice().into())))
        .await
        .unwrap();
    let gets = vec![Get::key("k"); 500_000];
    let tenth = &gets[..50_000];
    let started = Instant::now();
    let items = store.bulk_get(tenth, Bounds::default()).await.unwrap();
    assert_eq!(items.len(), tenth.len());
    let time = started.elapsed();
    let given_up = tokio::time::timeout(time / 10, store.bulk_get(&gets, Bounds::default())).await;
    assert!(given_up.is_err());
    // Waits for the read in progress; reading everything would take nine times as long.
    let started = Instant::now();
    store.close().await;
    let rest = started.elapsed();
    assert!(rest < time * 4, "{rest:?}, and a tenth takes {time:?}");
}
