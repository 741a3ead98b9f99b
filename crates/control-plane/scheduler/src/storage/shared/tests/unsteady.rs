//! A store whose requests or responses get lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// The fate of a transaction.
pub(super) enum Loss {
    /// The request does not reach the store.
    Request,
    /// The request reaches the store after the caller has given up.
    Late,
    /// The response is lost, and other clients write this before the caller notices.
    Answer(Vec<Write>),
}

/// A store behind an unreliable connection.
pub(super) struct Unsteady {
    pub(super) store: Arc<dyn Backend>,
    /// Fate of the next transaction.
    pub(super) loss: Mutex<Option<Loss>>,
    /// Error of the next check of entries.
    pub(super) failure: Mutex<Option<StorageError>>,
    /// Number of completed checks of entries.
    pub(super) looks: AtomicUsize,
    /// Accepts only deletions, like a full etcd.
    pub(super) is_full: AtomicBool,
    /// The next revocation is lost.
    pub(super) loses_revoke: AtomicBool,
    pub(super) granted: Mutex<Vec<i64>>,
    /// Delayed requests.
    pub(super) late: Mutex<Vec<(Vec<Condition>, Vec<Write>)>>,
}

fn lost<T>() -> Result<T, StorageError> {
    Err(StorageError::Unanswered("the connection ended".to_owned()))
}

impl Unsteady {
    pub(super) fn new(store: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            store,
            loss: Mutex::default(),
            failure: Mutex::default(),
            looks: AtomicUsize::default(),
            is_full: AtomicBool::default(),
            loses_revoke: AtomicBool::default(),
            granted: Mutex::default(),
            late: Mutex::default(),
        })
    }

    pub(super) async fn pair(&self, key: Vec<u8>) -> Option<Pair> {
        self.store.get(vec![key]).await.unwrap().pop().flatten()
    }
}

#[async_trait]
impl Backend for Unsteady {
    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError> {
        self.store.get(keys).await
    }
    async fn scan(&self, range: Range, at: Option<i64>) -> Result<Scan, StorageError> {
        // Scans of jobs may be in progress.
        if !range.has(LEADERSHIP.as_bytes()) {
            return self.store.scan(range, at).await;
        }
        let failure = self.failure.lock().unwrap().take();
        let scan = match failure {
            Some(failure) => Err(failure),
            None => self.store.scan(range, at).await,
        };
        self.looks.fetch_add(1, Ordering::Relaxed);
        scan
    }
    async fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool, StorageError> {
        let puts = writes.iter().any(|write| matches!(write, Write::Put { .. }));
        if puts && self.is_full.load(Ordering::Relaxed) {
            return Err(StorageError::Full(Full::Etcd));
        }
        let loss = self.loss.lock().unwrap().take();
        match loss {
            None => self.store.commit(conditions, writes).await,
            Some(Loss::Request) => lost(),
            Some(Loss::Late) => {
                let late = (conditions.to_vec(), writes.to_vec());
                self.late.lock().unwrap().push(late);
                lost()
            }
            Some(Loss::Answer(meanwhile)) => {
                self.store.commit(conditions, writes).await?;
                if !meanwhile.is_empty() {
                    self.store.commit(&[], &meanwhile).await?;
                }
                lost()
            }
        }
    }
    fn watch(&self, range: Range, after: i64) -> Box<dyn Watch> {
        self.store.watch(range, after)
    }
    async fn grant(&self, lifetime: Duration) -> Result<i64, StorageError> {
        let lease = self.store.grant(lifetime).await?;
        self.granted.lock().unwrap().push(lease);
        Ok(lease)
    }
    async fn keep(&self, lease: i64) -> Result<bool, StorageError> {
        self.store.keep(lease).await
    }
    async fn revoke(&self, lease: i64) -> Result<(), StorageError> {
        match self.loses_revoke.swap(false, Ordering::Relaxed) {
            true => lost(),
            false => self.store.revoke(lease).await,
        }
    }
}
