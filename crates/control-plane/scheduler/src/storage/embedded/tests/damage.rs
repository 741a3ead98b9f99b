//! Damaged bytes in the store's file.

use rusqlite::params;

use super::*;

const NAME: &str = "app||ns||app||0007";

/// Invariant: a damaged store is not opened; the message names the damage and the remedy.
#[tokio::test]
async fn detects_damaged_file() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 500).await;
    let location = location(folder.path());
    let snapshot = folder.path().join("snapshot.db");
    location.snapshot(&snapshot).unwrap();
    let written = std::fs::read(&snapshot).unwrap();

    // A value that is not a job, as another program would write it.
    let (connection, key, job) = (
        Connection::open(location.file()).unwrap(),
        job_key("app||ns||app||0007"),
        b"\xff",
    );
    let modified = pairs::get(&connection, &key).unwrap().unwrap().modified;
    let other: (&[u8], i64) = (job, sums::sum(&key, modified, job));
    connection
        .execute(
            "UPDATE pairs SET value = ?1, sum = ?2 WHERE key = ?3",
            params![other.0, other.1, key],
        )
        .unwrap();
    drop(connection);
    let text = refused(&location);
    assert!(
        text.contains("the job \"app||ns||app||0007\": it cannot be decoded"),
        "{text}"
    );
    assert!(text.contains("--restore-from"), "{text}");

    // Torn pages.
    let mut torn = written.clone();
    let middle = torn.len() / 2;
    torn[middle..middle + 4096].fill(0xa5);
    std::fs::write(location.file(), torn).unwrap();
    assert!(refused(&location).contains("is damaged"));

    assert!(matches!(location.restore(&snapshot), Err(OpenError::Exists(_))));
    std::fs::remove_file(location.file()).unwrap();
    location.restore(&snapshot).unwrap();
    let (store, mut changes) = Embedded::open(&location).unwrap();
    assert_eq!(loaded(&mut changes).await.len(), 500);
    drop(store);
}

/// Flips a byte of the payload.
fn change_a_byte(file: &std::path::Path) {
    // So that all data is in the file itself.
    let connection = Connection::open(file).unwrap();
    connection
        .busy_timeout(std::time::Duration::from_secs(5))
        .unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    connection.query_row(checkpoint, [], |_| Ok(())).unwrap();
    drop(connection);
    let mut bytes = std::fs::read(file).unwrap();
    let (name, payload) = (NAME.as_bytes(), [7; 100]);
    // The name also occurs in the index without a value, and in stale pages.
    let mut changed = 0;
    for at in 0..bytes.len() - 300 {
        let behind = &bytes[at..at + 300];
        if behind.starts_with(name)
            && let Some(value) = behind.windows(payload.len()).position(|there| there == payload)
        {
            bytes[at + value + 50] ^= 1;
            changed += 1;
        }
    }
    assert!(changed > 0, "the job is not in the file");
    std::fs::write(file, bytes).unwrap();
}

/// Invariant: a changed byte inside a value is detected at start, at restore and before a copy; each error
/// names the job.
#[tokio::test]
async fn detects_changed_payload_byte() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 20).await;
    let location = location(folder.path());
    let snapshot = folder.path().join("snapshot.db");
    location.snapshot(&snapshot).unwrap();
    let whole = std::fs::read(&snapshot).unwrap();
    let expected = format!("is damaged: the job {NAME:?}: its bytes are not those that were written");

    change_a_byte(&location.file());
    let text = refused(&location);
    assert!(
        text.contains(&expected) && text.contains("--restore-from"),
        "{text}"
    );
    let copy = folder.path().join("copy.db");
    let text = location.snapshot(&copy).unwrap_err().to_string();
    assert!(text.contains(&expected), "{text}");
    assert!(!copy.exists(), "a damaged copy is left");

    change_a_byte(&snapshot);
    std::fs::remove_file(location.file()).unwrap();
    let text = location.restore(&snapshot).unwrap_err().to_string();
    assert!(text.contains(&expected), "{text}");
    assert!(!location.file().exists(), "it was taken nevertheless");
    std::fs::write(&snapshot, whole).unwrap();
    location.restore(&snapshot).unwrap();
    Embedded::open(&location).unwrap();
}

/// Invariant: a job damaged while the scheduler runs is not returned, and does not block others.
#[tokio::test]
async fn repairs_damage_in_open_store() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 20).await;
    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    let damaged = loaded(&mut changes)
        .await
        .into_iter()
        .find_map(|change| match change {
            Change::Put { name, version, .. } if &*name == NAME => Some((name, version)),
            _ => None,
        });
    let (name, version) = damaged.unwrap();
    Connection::open(location(folder.path()).file())
        .unwrap()
        .execute(
            "UPDATE pairs SET value = CAST(value || x'00' AS BLOB) WHERE key = ?1",
            [job_key(NAME)],
        )
        .unwrap();
    let wanted = |name: &str| {
        vec![JobRef {
            name: name.into(),
            revision: None,
        }]
    };
    let error = store.get(wanted(NAME)).await.unwrap_err();
    assert!(
        matches!(&error, StorageError::Damaged(what) if what.contains(NAME)),
        "{error}"
    );
    let error = store.list("app||".to_owned(), usize::MAX).await.unwrap_err();
    assert!(matches!(error, StorageError::Damaged(_)), "{error}");
    // In one transaction with others.
    let progress = Progress {
        count: 1,
        last: None,
        attempts: 0,
    };
    store.advance(Advance {
        name: Arc::clone(&name),
        version,
        tenure: 0,
        progress: Some(progress),
        share: Arc::<Backlog>::default().share(),
    });
    let other = "app||ns||app||other";
    store.schedule(other.to_owned(), job(1), false).await.unwrap();
    assert!(store.get(wanted(other)).await.unwrap()[0].is_some());
    // The remedy in the error.
    store.schedule(NAME.to_owned(), job(1), true).await.unwrap();
    assert!(store.get(wanted(NAME)).await.unwrap()[0].is_some());
}

/// Converts the file to format 1.
fn make_old(file: &std::path::Path) {
    Connection::open(file)
        .unwrap()
        .execute_batch("ALTER TABLE pairs DROP COLUMN sum; PRAGMA user_version = 1")
        .unwrap();
}

#[tokio::test]
async fn upgrades_full_file_without_checksums() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 2500).await;
    let location = location(folder.path());
    make_old(&location.file());
    let snapshot = folder.path().join("old.db");
    location.snapshot(&snapshot).unwrap();

    let full = Location {
        quota: 1,
        ..location.clone()
    };
    let (store, mut changes) = Embedded::open(&full).unwrap();
    assert_eq!(loaded(&mut changes).await.len(), 2500);
    drop((store, changes));
    change_a_byte(&location.file());
    assert!(refused(&location).contains(NAME));

    std::fs::remove_file(location.file()).unwrap();
    location.restore(&snapshot).unwrap();
    change_a_byte(&location.file());
    assert!(refused(&location).contains(NAME), "a restored file has no sums");
}
