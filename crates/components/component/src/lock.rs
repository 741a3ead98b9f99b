//! Lock stores: leases with an owner.

use std::time::Duration;

use async_trait::async_trait;

use crate::Result;

/// Result of an unlock; the numbers are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlocked {
    /// The owner's lock was released.
    Success = 0,
    /// The lock does not exist or has expired.
    NoSuchLock = 1,
    /// Another owner holds the lock.
    OthersLock = 2,
    /// The store returned an unexpected answer.
    InternalError = 3,
}

/// Locks shared by processes, each with an owner and a lease.
#[async_trait]
pub trait LockStore: Send + Sync {
    /// Takes the lock if it is free, and returns whether it did. The lease ends after `expiry` (whole
    /// seconds).
    async fn try_lock(&self, resource: &str, owner: &str, expiry: Duration) -> Result<bool>;

    /// Releases the lock if `owner` holds it.
    async fn unlock(&self, resource: &str, owner: &str) -> Result<Unlocked>;

    /// Checks that the store responds.
    async fn ping(&self) -> Result<()>;

    /// Stops the store's tasks; locks stay until they expire.
    async fn close(&self);
}
