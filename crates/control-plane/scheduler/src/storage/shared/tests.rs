//! Lost requests and responses of a store.

mod unsteady;

use std::sync::atomic::Ordering;

use jiff::Timestamp;
use outrigger_components_testing::server;
use outrigger_schedule::engine::Version;
use outrigger_schedule::job::Progress;
use outrigger_wire::scheduler::v1::{
    Host, Job, JobMetadata, JobTargetMetadata, TargetJob, job_target_metadata::Type,
};
use prost::Message as _;

use self::unsteady::{Loss, Unsteady};
use super::advances::Fence;
use super::backend::{Condition, Scan, Watch};
use super::*;
use crate::config::EtcdAccess;
use crate::proto::stored::Leadership;
use crate::storage::etcd::{Client, Etcd};
use crate::storage::pair::Pair;
use crate::storage::postgres::Postgres;
use crate::storage::{Full, LEADERSHIP};
use crate::stored;

/// Deadline for expected events.
const TIMEOUT: Duration = Duration::from_secs(30);

fn etcd() -> Option<(server::Etcd, Arc<Unsteady>)> {
    let server = server::Etcd::start()?;
    let client = Client::new(&EtcdAccess {
        endpoints: vec![server.endpoint()],
        ..EtcdAccess::default()
    });
    Some((server, Unsteady::new(Arc::new(Etcd::new(client.unwrap())))))
}

fn postgres() -> Option<(server::Postgres, Arc<Unsteady>)> {
    let server = server::Postgres::start()?;
    let store = Postgres::new(&server.text()).unwrap();
    Some((server, Unsteady::new(Arc::new(store))))
}

fn job(due: &str, partition: u64) -> Vec<u8> {
    let asked = Job {
        due_time: Some(due.to_owned()),
        ..Job::default()
    };
    let metadata = JobMetadata {
        app_id: "app".into(),
        namespace: "ns".into(),
        target: Some(JobTargetMetadata {
            r#type: Some(Type::Job(TargetJob {})),
        }),
        concurrency_key: None,
    };
    stored::create(asked, &metadata, partition, Timestamp::now())
        .unwrap()
        .encode_to_vec()
}

fn put(key: Vec<u8>, value: &[u8]) -> Write {
    Write::Put {
        key,
        value: value.to_vec(),
        lease: None,
    }
}

/// Invariants: a job whose write was not answered is not written again, so its progress is kept. If it may
/// have been triggered and deleted, the caller gets an error and the job does not run twice.
async fn check_stores_once(store: &Unsteady) {
    let lose = |loss| *store.loss.lock().unwrap() = Some(loss);

    lose(Loss::Answer(Vec::new()));
    let outcome = schedule::schedule(store, "kept", job("0s", 1), false).await;
    assert_eq!(outcome, Ok(Scheduled::Stored));
    assert_eq!(store.pair(job_key("kept")).await.unwrap().version, 1);

    // Its first trigger is stored before the missing response is noticed.
    lose(Loss::Answer(vec![put(counter_key("ticked"), b"done once")]));
    let outcome = schedule::schedule(store, "ticked", job("0s", 2), true).await;
    assert_eq!(outcome, Ok(Scheduled::Stored));
    let counter = store.pair(counter_key("ticked")).await.expect("it is forgotten");
    assert_eq!(counter.value, b"done once");

    // Here its only trigger.
    for overwrite in [false, true] {
        lose(Loss::Answer(vec![Write::Delete(Range::one(job_key("over")))]));
        let outcome = schedule::schedule(store, "over", job("0s", 3), overwrite).await;
        assert!(matches!(outcome, Err(StorageError::Unknown(_))), "{outcome:?}");
        assert_eq!(store.pair(job_key("over")).await, None, "it would come again");
    }

    // A job that is not due yet cannot have been triggered.
    for overwrite in [false, true] {
        let (name, value) = (format!("later-{overwrite}"), job("1h", 4));
        lose(Loss::Request);
        let outcome = schedule::schedule(store, &name, value.clone(), overwrite).await;
        assert_eq!(outcome, Ok(Scheduled::Stored));
        assert_eq!(store.pair(job_key(&name)).await.unwrap().value, value);
    }

    // Another job with that name exists.
    let other = job("1h", 5);
    lose(Loss::Request);
    let outcome = schedule::schedule(store, "later-false", other.clone(), false).await;
    assert_eq!(outcome, Ok(Scheduled::Exists));
    lose(Loss::Request);
    let outcome = schedule::schedule(store, "later-true", other.clone(), true).await;
    assert_eq!(outcome, Ok(Scheduled::Stored));
    assert_eq!(store.pair(job_key("later-true")).await.unwrap().value, other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_once_on_lost_etcd_response() {
    let Some((_server, store)) = etcd() else { return };
    check_stores_once(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_once_on_lost_postgres_response() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    check_stores_once(&store).await;
}

/// Regression: on PostgreSQL, the second of two concurrent requests for a job got no result, and the engine
/// dropped the job. A job due during an outage, and due again after the scheduler rejoined, was not
/// triggered.
async fn check_concurrent_reads(store: &Unsteady) {
    let (there, missing) = (job_key("there"), job_key("missing"));
    store.commit(&[], &[put(there.clone(), b"it")]).await.unwrap();
    let asked = vec![there.clone(), missing, there];
    let found = store.get(asked).await.unwrap();
    let found: Vec<_> = found
        .into_iter()
        .map(|pair| pair.map(|pair| pair.value))
        .collect();
    assert_eq!(found, [Some(b"it".to_vec()), None, Some(b"it".to_vec())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_answers_concurrent_reads() {
    let Some((_server, store)) = etcd() else { return };
    check_concurrent_reads(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_answers_concurrent_reads() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    check_concurrent_reads(&store).await;
}

/// Makes the members check the entries, and that check fail.
async fn fail_next_entry_check(store: &Unsteady, failure: StorageError) {
    *store.failure.lock().unwrap() = Some(failure);
    let nobody = [LEADERSHIP, "nobody"].concat().into_bytes();
    store.commit(&[], &[put(nobody, &[0xff])]).await.unwrap();
}

/// Invariant: the entry of a member that rejoined is not deleted with its previous lease. Otherwise other
/// members would get its jobs while it uses them.
async fn check_entry_follows_renewed_lease(store: &Arc<Unsteady>) {
    let own = SelfMember {
        id: "a".to_owned(),
        address: "localhost:1".to_owned(),
        lock: None,
    };
    let (storage, events) = SharedStorage::join(Arc::clone(store) as _, own);
    let SharedEvents {
        mut changes,
        mut hosts,
    } = events;
    let taking = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let joined = tokio::time::timeout(TIMEOUT, hosts.wait_for(|hosts| !hosts.is_empty())).await;
    drop(joined.expect("it does not join").unwrap());
    let key = || [LEADERSHIP, "a"].concat().into_bytes();
    let first = store.pair(key()).await.unwrap();

    // The next check fails permanently, and so does the revocation of the lease.
    store.loses_revoke.store(true, Ordering::Relaxed);
    fail_next_entry_check(store, StorageError::Failed("it is broken".to_owned())).await;
    let again = async {
        while store
            .pair(key())
            .await
            .is_some_and(|pair| pair.modified == first.modified)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let again = tokio::time::timeout(TIMEOUT / 3, again).await;
    again.expect("its entry is bound to the lease before");
    let leases = store.granted.lock().unwrap().clone();
    assert_eq!(leases.len(), 2);
    store.revoke(leases[0]).await.unwrap();
    let entry = store.pair(key()).await.expect("it has lost its place");
    assert_eq!(entry.created, first.created);
    storage.close().await;
    assert_eq!(store.pair(key()).await, None);
    drop(storage);
    taking.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_entry_follows_renewed_lease() {
    let Some((_server, store)) = etcd() else { return };
    check_entry_follows_renewed_lease(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_entry_follows_renewed_lease() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    check_entry_follows_renewed_lease(&store).await;
}

/// Regression: a lost response to a check of the entries ended the lease, so other members got the jobs while
/// triggers were in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_shard_on_lost_entry_read() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    let own = SelfMember {
        id: "a".to_owned(),
        address: "localhost:1".to_owned(),
        lock: None,
    };
    let (storage, events) = SharedStorage::join(Arc::clone(&store) as _, own);
    let SharedEvents {
        mut changes,
        mut hosts,
    } = events;
    let taking = tokio::spawn(async move { while changes.recv().await.is_some() {} });
    let joined = tokio::time::timeout(TIMEOUT, hosts.wait_for(|hosts| !hosts.is_empty())).await;
    drop(joined.expect("it does not join").unwrap());
    let key = || [LEADERSHIP, "a"].concat().into_bytes();
    let entry = store.pair(key()).await.unwrap();

    fail_next_entry_check(&store, StorageError::Unanswered("it is lost".to_owned())).await;
    let looked = tokio::time::timeout(TIMEOUT, async {
        while store.failure.lock().unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // A check in progress may not be counted yet.
        let before = store.looks.load(Ordering::Relaxed);
        while store.looks.load(Ordering::Relaxed) < before + 2 {
            let nobody = [LEADERSHIP, "nobody"].concat().into_bytes();
            store.commit(&[], &[put(nobody, &[0xff])]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    looked.await.expect("the entries are not looked at again");
    assert_eq!(store.granted.lock().unwrap().len(), 1, "it has joined again");
    assert_eq!(store.pair(key()).await, Some(entry));
    storage.close().await;
    drop(storage);
    taking.await.unwrap();
}

/// Invariant: a late write of progress does not undo newer progress. Otherwise completed triggers would be
/// repeated.
async fn check_refuses_late_progress(store: &Arc<Unsteady>) {
    let key = [LEADERSHIP, "a"].concat().into_bytes();
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    let entry = Write::Put {
        key: key.clone(),
        value: b"entry".to_vec(),
        lease: Some(lease),
    };
    let scheduled = put(job_key("ticks"), &job("1h", 1));
    store.commit(&[], &[entry, scheduled]).await.unwrap();
    let entry = store.pair(key.clone()).await.unwrap();
    let revision = store.pair(job_key("ticks")).await.unwrap().modified;
    let (advances, writing) = Advances::start(Arc::clone(store) as _);
    advances.fence(Some(Fence {
        tenure: 1,
        key: key.clone(),
        lease,
        created: entry.created,
        modified: entry.modified,
    }));
    let backlog = Arc::new(crate::backlog::Backlog::default());
    let after = |count| Advance {
        name: "ticks".into(),
        version: Version {
            revision: revision.unsigned_abs(),
            partition: 1,
        },
        tenure: 1,
        progress: Some(Progress {
            count,
            ..Progress::default()
        }),
        share: backlog.share(),
    };
    *store.loss.lock().unwrap() = Some(Loss::Late);
    advances.advance(after(1));
    tokio::time::timeout(TIMEOUT, advances.flush()).await.unwrap();
    advances.advance(after(2));
    tokio::time::timeout(TIMEOUT, advances.flush()).await.unwrap();
    let stored = store.pair(counter_key("ticks")).await.expect("nothing is stored");

    let late = std::mem::take(&mut *store.late.lock().unwrap());
    assert_eq!(late.len(), 1);
    for (conditions, writes) in late {
        assert_eq!(store.commit(&conditions, &writes).await, Ok(false));
    }
    assert_eq!(store.pair(counter_key("ticks")).await, Some(stored));

    // The entry is unchanged and still bound to the lease.
    let now = store.pair(key.clone()).await.unwrap();
    assert_eq!((now.created, &now.value), (entry.created, &entry.value));
    store.revoke(lease).await.unwrap();
    assert_eq!(store.pair(key).await, None);
    advances.end();
    writing.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_refuses_late_progress() {
    let Some((_server, store)) = etcd() else { return };
    check_refuses_late_progress(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_refuses_late_progress() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    check_refuses_late_progress(&store).await;
}

/// Regression: deletions, which a full etcd accepts, were sent in one transaction with writes that it
/// refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_etcd_stores_job_ends() {
    let Some((_server, store)) = etcd() else { return };
    let key = [LEADERSHIP, "a"].concat().into_bytes();
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    let entry = Write::Put {
        key: key.clone(),
        value: b"entry".to_vec(),
        lease: Some(lease),
    };
    let [over, ticks] = ["over", "ticks"].map(|name| put(job_key(name), &job("1h", 1)));
    store.commit(&[], &[entry, over, ticks]).await.unwrap();
    // All were written at one revision.
    let entry = store.pair(key.clone()).await.unwrap();
    let (advances, writing) = Advances::start(Arc::clone(&store) as _);
    advances.fence(Some(Fence {
        tenure: 1,
        key,
        lease,
        created: entry.created,
        modified: entry.modified,
    }));
    let backlog = Arc::new(crate::backlog::Backlog::default());
    let advance = |name: &str, progress| Advance {
        name: name.into(),
        version: Version {
            revision: entry.modified.unsigned_abs(),
            partition: 1,
        },
        tenure: 1,
        progress,
        share: backlog.share(),
    };
    store.is_full.store(true, Ordering::Relaxed);
    advances.advance(advance("ticks", Some(Progress::default())));
    advances.advance(advance("over", None));
    let ended = tokio::time::timeout(TIMEOUT, async {
        while store.pair(job_key("over")).await.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    ended.await.expect("a job that is over stays");
    assert_eq!(store.pair(counter_key("ticks")).await, None);
    store.is_full.store(false, Ordering::Relaxed);
    tokio::time::timeout(TIMEOUT, advances.flush()).await.unwrap();
    assert!(store.pair(counter_key("ticks")).await.is_some());
    advances.end();
    writing.await.unwrap();
}

/// Regression: after a kill, the scheduler waited at its next start until the lease of its last run had
/// expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_over_own_stale_entry() {
    let Some((_server, store)) = etcd() else { return };
    let lease = store.grant(TIMEOUT * 10).await.unwrap();
    let key = || [LEADERSHIP, "b"].concat().into_bytes();
    let Write::Put { value, .. } = member_b(7) else {
        unreachable!()
    };
    let left = Write::Put {
        key: key(),
        value,
        lease: Some(lease),
    };
    store.commit(&[], &[left]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let location = crate::storage::embedded::Location {
        folder: folder.path().to_owned(),
        id: "b".to_owned(),
        quota: i64::MAX,
    };
    let own = SelfMember {
        id: "b".to_owned(),
        address: "localhost:1".to_owned(),
        lock: Some(location.lock().unwrap()),
    };
    let (storage, mut events) = SharedStorage::join(Arc::clone(&store) as _, own);
    let taking = tokio::spawn(async move { while events.changes.recv().await.is_some() {} });
    let joined = events.hosts.wait_for(|hosts| !hosts.is_empty());
    drop(
        tokio::time::timeout(TIMEOUT / 2, joined)
            .await
            .expect("it waits")
            .unwrap(),
    );
    // The entry is bound to the new lease only.
    store.revoke(lease).await.unwrap();
    assert!(store.pair(key()).await.is_some());
    storage.close().await;
    assert_eq!(store.pair(key()).await, None);
    drop(storage);
    taking.await.unwrap();
}

/// The entry of member "b", which has seen one more member.
fn member_b(uid: u64) -> Write {
    let host = Host {
        address: "localhost:2".to_owned(),
    };
    let entry = Leadership {
        total: 2,
        uids: None,
        uid,
        replica_data: Some(prost_types::Any {
            type_url: "type.googleapis.com/dapr.proto.scheduler.v1.Host".to_owned(),
            value: host.encode_to_vec(),
        }),
    };
    put([LEADERSHIP, "b"].concat().into_bytes(), &entry.encode_to_vec())
}

/// Invariant: sidecars learn of a scheduler that was killed and returned at its address before its lease
/// expired. Dapr's sidecars have ended all streams when one broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announces_returned_member() {
    let Some((_server, store)) = postgres() else {
        return;
    };
    let own = SelfMember {
        id: "a".to_owned(),
        address: "localhost:1".to_owned(),
        lock: None,
    };
    let (storage, events) = SharedStorage::join(Arc::clone(&store) as _, own);
    let SharedEvents {
        mut changes,
        mut hosts,
    } = events;
    let taking = tokio::spawn(async move {
        while let Some(change) = changes.recv().await {
            if let Change::Pause(drained) = change {
                let _ended = drained.send(());
            }
        }
    });
    let mut both = async |uid| {
        store.commit(&[], &[member_b(uid)]).await.unwrap();
        let noticed = tokio::time::timeout(TIMEOUT, async {
            loop {
                hosts.changed().await.unwrap();
                let list = Arc::clone(&hosts.borrow_and_update());
                if list.len() == 2 {
                    return list;
                }
            }
        });
        noticed
            .await
            .unwrap_or_else(|_| panic!("b with the uid {uid} is not told of"))
    };
    let first = both(7).await;
    assert_eq!(both(8).await, first);
    storage.close().await;
    drop(storage);
    taking.await.unwrap();
}
