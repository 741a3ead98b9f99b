use async_trait::async_trait;
use outrigger_schedule::engine::Version;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::backlog::Backlog;
use crate::storage::pair::Pair;
use crate::storage::shared::backend::{Scan, Watch};

/// Decides the result of a store's transactions.
#[async_trait]
trait Commits: Send + Sync + 'static {
    async fn commit(&self, writes: &[Write]) -> Result<bool, StorageError>;
}

/// A store with the member's entry and transactions only.
struct Fake<C>(C);

/// Each transaction starts at once and ends when allowed.
struct Slow {
    begun: Semaphore,
    may_end: Semaphore,
    ended: Semaphore,
}

#[async_trait]
impl Commits for Slow {
    async fn commit(&self, _: &[Write]) -> Result<bool, StorageError> {
        self.begun.add_permits(1);
        self.may_end.acquire().await.unwrap().forget();
        self.ended.add_permits(1);
        Ok(true)
    }
}

/// The first transaction is not answered.
#[derive(Default)]
struct Silent {
    attempts: Mutex<Vec<Vec<Write>>>,
}

impl Silent {
    fn attempts(&self) -> std::sync::MutexGuard<'_, Vec<Vec<Write>>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Commits for Silent {
    async fn commit(&self, writes: &[Write]) -> Result<bool, StorageError> {
        let mut attempts = self.attempts();
        attempts.push(writes.to_vec());
        match attempts.len() {
            1 => Err(StorageError::Unanswered("the connection ended".to_owned())),
            _ => Ok(true),
        }
    }
}

#[async_trait]
impl<C: Commits> Backend for Fake<C> {
    async fn commit(&self, _: &[Condition], writes: &[Write]) -> Result<bool, StorageError> {
        self.0.commit(writes).await
    }

    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError> {
        let entry = |key| Pair {
            key,
            value: Vec::new(),
            created: 1,
            modified: 1,
            version: 1,
        };
        Ok(keys.into_iter().map(|key| Some(entry(key))).collect())
    }

    async fn scan(&self, _: Range, _: Option<i64>) -> Result<Scan, StorageError> {
        Err(StorageError::Closed)
    }

    fn watch(&self, _: Range, _: i64) -> Box<dyn Watch> {
        unreachable!("nothing is watched here")
    }

    async fn grant(&self, _: Duration) -> Result<i64, StorageError> {
        Err(StorageError::Closed)
    }

    async fn keep(&self, _: i64) -> Result<bool, StorageError> {
        Err(StorageError::Closed)
    }

    async fn revoke(&self, _: i64) -> Result<(), StorageError> {
        Err(StorageError::Closed)
    }
}

fn fence(tenure: Tenure) -> Fence {
    Fence {
        tenure,
        key: b"own".to_vec(),
        lease: 1,
        created: 1,
        modified: 1,
    }
}

fn advance(name: &str, tenure: Tenure, backlog: &Arc<Backlog>) -> Advance {
    Advance {
        name: name.into(),
        version: Version {
            revision: 1,
            partition: 1,
        },
        tenure,
        progress: None,
        share: backlog.share(),
    }
}

/// Invariant: a write in progress at shutdown completes before its store is closed.
#[tokio::test(start_paused = true)]
async fn end_awaits_write_in_progress() {
    let store = Arc::new(Fake(Slow {
        begun: Semaphore::new(0),
        may_end: Semaphore::new(0),
        ended: Semaphore::new(0),
    }));
    let (advances, mut writing) = Advances::start(Arc::clone(&store) as Arc<dyn Backend>);
    advances.fence(Some(fence(1)));
    let backlog = Arc::new(Backlog::default());
    let advance = |name| advance(name, 1, &backlog);
    advances.advance(advance("first"));
    store.0.begun.acquire().await.unwrap().forget();
    advances.fence(None);
    advances.advance(advance("second"));
    advances.end();
    let early = timeout(Duration::from_secs(1), &mut writing).await;
    assert!(early.is_err(), "the first is not written yet");
    store.0.may_end.add_permits(1);
    timeout(Duration::from_secs(1), writing).await.unwrap().unwrap();
    assert_eq!(
        (
            store.0.ended.available_permits(),
            store.0.begun.available_permits()
        ),
        (1, 0)
    );
}

/// Invariant: progress not stored before another scheduler owned the jobs is dropped when this one owns them
/// again. It would undo the other's work.
#[tokio::test(start_paused = true)]
async fn drops_progress_of_earlier_tenure() {
    let store = Arc::new(Fake(Silent::default()));
    let (advances, writing) = Advances::start(Arc::clone(&store) as Arc<dyn Backend>);
    let backlog = Arc::new(Backlog::default());
    advances.fence(Some(fence(1)));
    advances.advance(advance("old", 1, &backlog));
    // The attempt is made; the scheduler loses its shard in the pause before the next one.
    tokio::time::sleep(RETRY / 2).await;
    assert_eq!(store.0.attempts().len(), 1);
    advances.fence(None);
    advances.fence(Some(fence(2)));
    tokio::time::sleep(RETRY * 2).await;
    // The engine has not learned of it yet.
    advances.advance(advance("late", 1, &backlog));
    advances.flush().await;
    advances.advance(advance("new", 2, &backlog));
    advances.flush().await;
    let attempts = store.0.attempts().split_off(1);
    let of = |name: &str, write: &Write| matches!(write, Write::Delete(range) if *range == Range::one(job_key(name)));
    let has = |name| attempts.iter().flatten().any(|write| of(name, write));
    assert!(!has("old") && !has("late") && has("new"), "{attempts:?}");
    advances.end();
    writing.await.unwrap();
}
