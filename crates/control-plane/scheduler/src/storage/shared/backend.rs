//! What a shared store has to be able to do: pairs of keys and values with revisions, transactions, watching, leases.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::storage::StorageError;
use crate::storage::pair::{Pair, Range};

/// What has to hold for a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The key's value was written at this revision; 0: there is no such key.
    Modified(Vec<u8>, i64),
    /// The key was made at this revision, whatever was written to it since.
    Created(Vec<u8>, i64),
}

/// A step of a transaction; two steps of one do not touch the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// A value, new or in place of the one before.
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        /// The key goes when this ends.
        lease: Option<i64>,
    },
    /// Keys go.
    Delete(Range),
}

/// Something that was written.
#[derive(Debug)]
pub(crate) enum Event {
    Put(Pair),
    Deleted {
        key: Vec<u8>,
        /// At this revision.
        revision: i64,
    },
}

/// Pairs by key, in chunks.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The pairs are those of this revision, or later ones: watching after it misses nothing.
    pub(crate) revision: i64,
    /// Ends after an error.
    pub(crate) chunks: mpsc::Receiver<Result<Vec<Pair>, StorageError>>,
    _reading: AbortOnDropHandle<()>,
}

impl Scan {
    /// The chunks that the task `reading` sends; it ends with the scan.
    pub(crate) fn new(
        revision: i64,
        chunks: mpsc::Receiver<Result<Vec<Pair>, StorageError>>,
        reading: JoinHandle<()>,
    ) -> Self {
        Self {
            revision,
            chunks,
            _reading: AbortOnDropHandle::new(reading),
        }
    }
}

/// Follows what is written.
#[async_trait]
pub(crate) trait Watch: Send {
    /// What was written next, in its order; waits for it, also while the store does not answer.
    ///
    /// # Errors
    /// When some of it cannot be told any more.
    async fn next(&mut self) -> Result<Vec<Event>, StorageError>;
}

/// A store of keys and values with revisions, transactions, watches and leases. Each call is one attempt, and ends in
/// seconds.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Pairs of these keys, as they are at one moment.
    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError>;
    /// All pairs of a range at one moment: that of the revision `at`, where the store keeps what was.
    async fn scan(&self, range: Range, at: Option<i64>) -> Result<Scan, StorageError>;
    /// Does all or nothing; `false`: a condition does not hold.
    async fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool, StorageError>;
    /// Follows a range, from what comes after a revision on.
    fn watch(&self, range: Range, after: i64) -> Box<dyn Watch>;
    /// Counts the histories that revisions are of: what takes the place of the store may lack what was told last, and give the
    /// same revisions to other changes. A watch that began in one history ends with it.
    fn history(&self) -> u64 {
        0
    }
    /// A lease that ends this long after it was granted or kept.
    async fn grant(&self, lifetime: Duration) -> Result<i64, StorageError>;
    /// Begins a lease's time anew; `false`: it has ended.
    async fn keep(&self, lease: i64) -> Result<bool, StorageError>;
    /// Ends a lease.
    async fn revoke(&self, lease: i64) -> Result<(), StorageError>;
}
