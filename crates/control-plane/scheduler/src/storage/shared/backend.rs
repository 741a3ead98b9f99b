//! The interface of shared stores: pairs with revisions, transactions, watches and leases.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::storage::StorageError;
use crate::storage::pair::{Pair, Range};

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The key was last written at this revision; 0 means that the key does not exist.
    Modified(Vec<u8>, i64),
    /// The key was created at this revision and may have been written since.
    Created(Vec<u8>, i64),
}

/// A write of a transaction. No two writes of one transaction touch the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Sets a value.
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
        /// The key is deleted when this lease ends.
        lease: Option<i64>,
    },
    /// Deletes keys.
    Delete(Range),
}

/// A change of a watched range.
#[derive(Debug)]
pub(crate) enum Event {
    Put(Pair),
    Deleted {
        key: Vec<u8>,
        /// Revision of the change.
        revision: i64,
    },
}

/// The pairs of a range in key order, in chunks.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The pairs are at least as new as this revision, so a watch from it misses nothing.
    pub(crate) revision: i64,
    /// Ends after an error.
    pub(crate) chunks: mpsc::Receiver<Result<Vec<Pair>, StorageError>>,
    _reading: AbortOnDropHandle<()>,
}

impl Scan {
    /// Wraps the chunks sent by the task `reading`, which is aborted on drop.
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

/// A watch of a range.
#[async_trait]
pub(crate) trait Watch: Send {
    /// The next changes in order. Also waits while the store does not answer.
    ///
    /// # Errors
    /// If changes were lost.
    async fn next(&mut self) -> Result<Vec<Event>, StorageError>;
}

/// A shared store. Each call is a single attempt with a timeout of seconds.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// The pairs of these keys, in one snapshot.
    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError>;
    /// All pairs of a range in one snapshot: at revision `at`, if the store keeps old revisions.
    async fn scan(&self, range: Range, at: Option<i64>) -> Result<Scan, StorageError>;
    /// Commits all writes or none; `false` if a condition does not hold.
    async fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool, StorageError>;
    /// Watches a range for changes after a revision.
    fn watch(&self, range: Range, after: i64) -> Box<dyn Watch>;
    /// Number of the current history of revisions. A server that replaces another may lack the latest changes
    /// and reuse their revisions, which begins a new history. A watch ends with its history.
    fn history(&self) -> u64 {
        0
    }
    /// Grants a lease that expires unless renewed within `lifetime`.
    async fn grant(&self, lifetime: Duration) -> Result<i64, StorageError>;
    /// Renews a lease; `false` if it has expired.
    async fn keep(&self, lease: i64) -> Result<bool, StorageError>;
    /// Ends a lease.
    async fn revoke(&self, lease: i64) -> Result<(), StorageError>;
}
