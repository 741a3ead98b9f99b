//! A store whose answers get lost, before or after it has done the work.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// What becomes of a transaction.
pub(super) enum Loss {
    /// It does not come to the store.
    Request,
    /// It comes to the store later, when nobody waits for it any more.
    Late,
    /// Its answer does not come; meanwhile others do this.
    Answer(Vec<Write>),
}

/// A store, and the way to it.
pub(super) struct Unsteady {
    pub(super) store: Arc<dyn Backend>,
    /// The next transaction.
    pub(super) loss: Mutex<Option<Loss>>,
    /// What comes of the next look at entries in place of them.
    pub(super) failure: Mutex<Option<StorageError>>,
    /// Looks at entries that have ended.
    pub(super) looks: AtomicUsize,
    /// It takes what only deletes, as an etcd does that is full.
    pub(super) is_full: AtomicBool,
    /// What is given back next gets lost.
    pub(super) loses_revoke: AtomicBool,
    pub(super) granted: Mutex<Vec<i64>>,
    /// What is on its way yet.
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
        // Those of jobs may be under way.
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
