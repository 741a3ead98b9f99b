use async_trait::async_trait;
use outrigger_schedule::engine::Version;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::backlog::Backlog;
use crate::storage::shared::backend::{Scan, Watch};

/// A store that begins each transaction at once and ends it when it may.
struct Slow {
    begun: Semaphore,
    may_end: Semaphore,
    ended: Semaphore,
}

#[async_trait]
impl Backend for Slow {
    async fn commit(&self, _: &[Condition], _: &[Write]) -> Result<bool, StorageError> {
        self.begun.add_permits(1);
        self.may_end.acquire().await.unwrap().forget();
        self.ended.add_permits(1);
        Ok(true)
    }

    async fn get(&self, _: Vec<Vec<u8>>) -> Result<Vec<Option<crate::storage::pair::Pair>>, StorageError> {
        Err(StorageError::Closed)
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

/// Invariant: what is being written when the scheduler stops is written before its store is closed.
#[tokio::test(start_paused = true)]
async fn the_end_waits_for_what_is_being_written_and_begins_nothing_without_a_fence() {
    let store = Arc::new(Slow {
        begun: Semaphore::new(0),
        may_end: Semaphore::new(0),
        ended: Semaphore::new(0),
    });
    let (advances, mut writing) = Advances::start(Arc::clone(&store) as Arc<dyn Backend>);
    advances.fence(Some(Condition::Created(b"own".to_vec(), 1)));
    let backlog = Arc::new(Backlog::default());
    let advance = |name: &str| Advance {
        name: name.into(),
        version: Version {
            revision: 1,
            partition: 1,
        },
        progress: None,
        share: backlog.share(),
    };
    advances.advance(advance("first"));
    store.begun.acquire().await.unwrap().forget();
    advances.fence(None);
    advances.advance(advance("second"));
    advances.end();
    let early = timeout(Duration::from_secs(1), &mut writing).await;
    assert!(early.is_err(), "the first is not written yet");
    store.may_end.add_permits(1);
    timeout(Duration::from_secs(1), writing).await.unwrap().unwrap();
    assert_eq!(
        (store.ended.available_permits(), store.begun.available_permits()),
        (1, 0)
    );
}
