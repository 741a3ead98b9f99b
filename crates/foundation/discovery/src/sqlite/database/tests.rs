//! The tables, on files in a temporary directory.

use serde_json::json;

use super::*;
use crate::Registration;

fn config(folder: &tempfile::TempDir, app_id: &str, port: u16) -> Config {
    let path = folder.path().join("names.db");
    let registration = Registration {
        app_id: app_id.to_owned(),
        host_address: "10.0.0.1".to_owned(),
        internal_port: port,
        ..Registration::default()
    };
    Config::read(
        &json!({"connectionString": path.to_str().unwrap()}),
        &registration,
    )
    .unwrap()
}

fn open(folder: &tempfile::TempDir, app_id: &str, port: u16) -> Database {
    Database::open(config(folder, app_id, port)).unwrap()
}

fn hosts(database: &Database, app_id: &str) -> Vec<String> {
    database
        .hosts(app_id)
        .unwrap()
        .iter()
        .map(Address::to_string)
        .collect()
}

fn age(database: &Database, seconds: u32) {
    database
        .connection
        .execute("UPDATE hosts SET last_update = last_update - ?1", [seconds])
        .unwrap();
}

#[test]
fn creates_dapr_tables_and_level() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder, "orders", 1);
    let level: String = database
        .connection
        .query_row(
            "SELECT value FROM metadata WHERE key = 'nr-migrations'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(level, "1");
    let mode: String = database
        .connection
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
    let row: (String, String, String) = database
        .connection
        .query_row("SELECT address, app_id, namespace FROM hosts", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(row, ("10.0.0.1:1".to_owned(), "orders".to_owned(), String::new()));
}

#[test]
fn accepts_migrated_and_newer_files() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder, "orders", 1));
    let database = open(&folder, "orders", 2);
    database
        .connection
        .execute("UPDATE metadata SET value = '7'", [])
        .unwrap();
    assert_eq!(hosts(&open(&folder, "orders", 3), "orders").len(), 3);
    database
        .connection
        .execute("UPDATE metadata SET value = 'x' WHERE key = 'nr-migrations'", [])
        .unwrap();
    let error = Database::open(config(&folder, "orders", 4)).err().unwrap();
    assert!(matches!(error, SqliteError::MigrationLevel(_)), "{error}");
}

#[test]
fn tables_share_metadata() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder, "orders", 1));
    let mut config = config(&folder, "orders", 2);
    config.table = "others".to_owned();
    let database = Database::open(config).unwrap();
    assert_eq!(hosts(&database, "orders"), ["10.0.0.1:2"]);
}

#[test]
fn concurrent_starts_all_register() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for port in 1..=6 {
            let folder = &folder;
            scope.spawn(move || open(folder, "orders", port));
        }
    });
    assert_eq!(hosts(&open(&folder, "other", 9), "orders").len(), 6);
}

#[test]
fn ignores_stale_rows() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(&folder, "orders", 1);
    assert_eq!(hosts(&database, "orders"), ["10.0.0.1:1"]);
    assert!(hosts(&database, "payments").is_empty());
    age(&database, 5);
    assert!(hosts(&database, "orders").is_empty());
    assert_eq!(database.renew().unwrap(), Renewal::Renewed);
    assert_eq!(hosts(&database, "orders").len(), 1);
    database.deregister().unwrap();
    assert!(hosts(&database, "orders").is_empty());
}

#[test]
fn restores_swept_row_not_taken_address() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder, "orders", 1);
    first.connection.execute("DELETE FROM hosts", []).unwrap();
    assert_eq!(first.renew().unwrap(), Renewal::Restored);
    let second = open(&folder, "payments", 1);
    assert_eq!(first.renew().unwrap(), Renewal::TakenOver);
    assert_eq!(second.renew().unwrap(), Renewal::Renewed);
    first.deregister().unwrap();
    assert_eq!(hosts(&second, "payments"), ["10.0.0.1:1"]);
}

#[test]
fn sweeps_stale_rows_once_per_interval() {
    let folder = tempfile::tempdir().unwrap();
    let stale = open(&folder, "orders", 1);
    age(&stale, 66);
    let database = open(&folder, "orders", 2);
    assert_eq!(database.sweep().unwrap(), 1);
    assert_eq!(hosts(&database, "orders"), ["10.0.0.1:2"]);
    age(&database, 66);
    assert_eq!(
        database.sweep().unwrap(),
        0,
        "another sidecar swept within the hour"
    );
}
