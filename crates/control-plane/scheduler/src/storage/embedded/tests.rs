use outrigger_schedule::engine::{Name, Version};
use outrigger_schedule::job::Progress;
use outrigger_wire::scheduler::v1::{
    Job as Asked, JobMetadata, JobTargetMetadata, TargetJob, job_target_metadata::Type,
};
use prost::Message;

use super::*;
use crate::backlog::Backlog;
use crate::storage::Full;

mod damage;
mod log;

fn location(folder: &std::path::Path) -> Location {
    Location {
        folder: folder.to_owned(),
        id: "scheduler-0".to_owned(),
        quota: i64::MAX,
    }
}

fn job(payload: usize) -> Vec<u8> {
    let asked = Asked {
        due_time: Some("1h".to_owned()),
        data: Some(prost_types::Any {
            type_url: String::new(),
            value: vec![7; payload],
        }),
        ..Asked::default()
    };
    let metadata = JobMetadata {
        app_id: "app".into(),
        namespace: "ns".into(),
        target: Some(JobTargetMetadata {
            r#type: Some(Type::Job(TargetJob {})),
        }),
        concurrency_key: None,
    };
    let job = crate::stored::create(asked, &metadata, 5, jiff::Timestamp::now()).unwrap();
    job.encode_to_vec()
}

/// The changes up to `Loaded`.
async fn loaded(changes: &mut mpsc::Receiver<Change>) -> Vec<Change> {
    let mut seen = Vec::new();
    loop {
        match changes.recv().await.unwrap() {
            Change::Loaded => return seen,
            change => seen.push(change),
        }
    }
}

async fn names(store: &Embedded, prefix: &str) -> Vec<String> {
    let listed = store.list(prefix.to_owned(), usize::MAX).await.unwrap();
    listed.into_iter().map(|(name, _)| name).collect()
}

/// The next change, which must be a put.
async fn put(changes: &mut mpsc::Receiver<Change>) -> (Name, Version) {
    match changes.recv().await.unwrap() {
        Change::Put { name, version, .. } => (name, version),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn restricts_file_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().unwrap();
    let (folder, copy) = (base.path().join("data/ns-0"), base.path().join("copy.db"));
    let location = location(&folder);
    let all = || {
        let inside = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut modes: Vec<_> = [folder.clone(), copy.clone()]
            .into_iter()
            .chain(inside)
            .map(|path| {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                (path.file_name().unwrap().to_string_lossy().into_owned(), mode)
            })
            .collect();
        modes.sort();
        modes
    };
    let named = [
        "copy.db",
        "jobs.db",
        "jobs.db-shm",
        "jobs.db-wal",
        "lock",
        "ns-0",
        "reserve",
    ];
    let expected = named.map(|name| (name.to_owned(), if name == "ns-0" { 0o700 } else { 0o600 }));
    let (store, mut changes) = Embedded::open(&location).unwrap();
    loaded(&mut changes).await;
    location.snapshot(&copy).unwrap();
    assert_eq!(all(), expected);
    store.close().await;
    drop((store, changes));
    // Permissions of files of earlier releases.
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(&folder, 0o755);
    open(&location.file(), 0o644);
    let (_store, mut changes) = Embedded::open(&location).unwrap();
    loaded(&mut changes).await;
    assert_eq!(all(), expected);
}

#[tokio::test]
async fn survives_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    assert!(loaded(&mut changes).await.is_empty());
    for name in ["app||ns||app||a", "app||ns||app||b", "app||ns||apple||c"] {
        let stored = store.schedule(name.to_owned(), job(10), false).await.unwrap();
        assert_eq!(stored, Scheduled::Stored);
    }
    let (name, version) = put(&mut changes).await;
    let again = store.schedule(name.to_string(), job(1), false).await.unwrap();
    assert_eq!(again, Scheduled::Exists);
    let progress = Progress {
        count: 3,
        last: Some("2026-03-01T00:00:00Z".parse().unwrap()),
        attempts: 1,
    };
    let backlog = Arc::<Backlog>::default();
    let advance = |name: &Name, version, progress| Advance {
        name: Arc::clone(name),
        version,
        tenure: 0,
        progress,
        share: backlog.share(),
    };
    store.advance(advance(&name, version, Some(progress)));
    // Progress of a replaced job changes nothing.
    let before = Version {
        revision: version.revision - 1,
        ..version
    };
    store.advance(advance(&name, before, None));
    let wanted = |revision| {
        vec![JobRef {
            name: Arc::clone(&name),
            revision,
        }]
    };
    for (revision, there) in [
        (None, true),
        (Some(version.revision), true),
        (Some(before.revision), false),
    ] {
        assert_eq!(
            store.get(wanted(revision)).await.unwrap()[0].is_some(),
            there,
            "{revision:?}"
        );
    }
    assert_eq!(
        names(&store, "app||ns||app||").await,
        ["app||ns||app||a", "app||ns||app||b"]
    );
    let (over, version) = put(&mut changes).await;
    store.advance(advance(&over, version, None));
    store.close().await;
    drop((store, changes));

    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    let seen = loaded(&mut changes).await;
    let [
        Change::Put { name: c, .. },
        Change::Put {
            name: a,
            counter,
            job: value,
            ..
        },
    ] = seen.as_slice()
    else {
        panic!("{seen:?}");
    };
    // Key order: letters sort before the separator.
    assert_eq!((&**c, &**a), ("app||ns||apple||c", "app||ns||app||a"));
    let read = crate::stored::read(value, counter.as_deref()).unwrap();
    assert_eq!(read.progress, progress);

    let stored = store.schedule(a.to_string(), job(1), true).await.unwrap();
    assert_eq!(stored, Scheduled::Stored);
    match changes.recv().await.unwrap() {
        Change::Put { counter, .. } => assert_eq!(counter, None, "another job begins anew"),
        other => panic!("{other:?}"),
    }
    store.delete_prefix("app||ns||app".to_owned()).await.unwrap();
    assert!(names(&store, "").await.is_empty());
    assert!(matches!(changes.recv().await, Some(Change::Deleted { .. })));
}

#[tokio::test]
async fn concurrent_calls_share_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    loaded(&mut changes).await;
    let drained = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let calls: Vec<_> = (0..500)
        .map(|at| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store
                    .schedule(format!("app||ns||app||{at}"), job(10), false)
                    .await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), Scheduled::Stored);
    }
    assert_eq!(names(&store, "app||").await.len(), 500);
    let most = store.list("app||".to_owned(), 1000).await.unwrap_err();
    assert_eq!(most, StorageError::TooMuch(1000));
    drop(store);
    drained.await.unwrap();
}

/// Invariant: a call refused because the store is full has no effect, and does not undo completed calls.
#[tokio::test]
async fn full_store_refuses_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let small = Location {
        quota: 256 << 10,
        ..location(folder.path())
    };
    let (store, mut changes) = Embedded::open(&small).unwrap();
    loaded(&mut changes).await;
    let mut stored = 0;
    let error = loop {
        match store
            .schedule(format!("app||ns||app||{stored}"), job(10_000), false)
            .await
        {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100, "the bound of the store does not hold");
    };
    assert_eq!(error, StorageError::Full(Full::Embedded));
    assert_eq!(names(&store, "app||").await.len(), stored);
    store.delete_prefix("app||".to_owned()).await.unwrap();
    let after = store
        .schedule("app||ns||app||after".to_owned(), job(10), false)
        .await
        .unwrap();
    assert_eq!(after, Scheduled::Stored);
}

fn refused(location: &Location) -> String {
    match Embedded::open(location) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

async fn filled(folder: &std::path::Path, jobs: usize) {
    let (store, mut changes) = Embedded::open(&location(folder)).unwrap();
    loaded(&mut changes).await;
    let drained = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    for at in 0..jobs {
        store
            .schedule(format!("app||ns||app||{at:04}"), job(100), false)
            .await
            .unwrap();
    }
    store.close().await;
    drop(store);
    drained.await.unwrap();
}

#[tokio::test]
async fn refuses_foreign_folder() {
    let folder = tempfile::tempdir().unwrap();
    let used = Embedded::open(&location(folder.path())).unwrap();
    assert!(refused(&location(folder.path())).contains("in use by another process"));
    drop(used);
    filled(folder.path(), 1).await;
    let other = Location {
        id: "scheduler-1".to_owned(),
        ..location(folder.path())
    };
    assert!(refused(&other).contains("belongs to the scheduler \"scheduler-0\""));
    let file = location(folder.path()).file();
    Connection::open(&file)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    assert!(refused(&location(folder.path())).contains("has format 99, and this scheduler supports 2"));

    let etcd = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(etcd.path().join("dapr-0.1/member")).unwrap();
    let told = refused(&location(etcd.path()));
    let command = format!("`etcd --data-dir {} ", etcd.path().join("dapr-0.1").display());
    assert!(
        told.contains("the files of an etcd server") && told.contains(&command),
        "{told}"
    );

    let foreign = tempfile::tempdir().unwrap();
    let location = location(foreign.path());
    Connection::open(location.file())
        .unwrap()
        .execute_batch("CREATE TABLE t (a)")
        .unwrap();
    assert!(refused(&location).contains("another program"));
}

/// Invariant: a log truncated at any point, as by a kill or a loss of power, contains each call completed
/// before that point as a whole.
#[tokio::test]
async fn discards_torn_write() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path(), 20).await;
    // The state after a kill: the file, and the log that was not yet checkpointed.
    let (store, mut changes) = Embedded::open(&location(folder.path())).unwrap();
    loaded(&mut changes).await;
    for at in 0..10 {
        store
            .schedule(format!("app||ns||app||late{at}"), job(100), false)
            .await
            .unwrap();
    }
    let file = location(folder.path()).file();
    let log = file.with_extension("db-wal");
    let (main, wal) = (std::fs::read(&file).unwrap(), std::fs::read(&log).unwrap());
    drop((store, changes));
    let mut before = 0;
    // A longer prefix of the log never has fewer calls than a shorter one.
    for cut in (0..=wal.len()).step_by(wal.len() / 40 + 1).chain([wal.len()]) {
        let torn = tempfile::tempdir().unwrap();
        let location = location(torn.path());
        std::fs::write(location.file(), &main).unwrap();
        std::fs::write(location.file().with_extension("db-wal"), &wal[..cut]).unwrap();
        let (store, mut changes) = Embedded::open(&location).unwrap();
        let seen = loaded(&mut changes).await.len();
        assert!(
            (20..=30).contains(&seen) && seen >= before,
            "{seen} after {before} at {cut}"
        );
        before = seen;
        drop(store);
    }
    assert_eq!(before, 30, "everything that was answered is in the whole log");
}
