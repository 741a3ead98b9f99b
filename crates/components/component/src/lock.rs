//! Lock stores: leases with an owner.

use std::time::Duration;

use async_trait::async_trait;

use crate::Result;

/// How an unlock went; the numbers are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unlocked {
    /// It was the owner's lock and is free now.
    Success = 0,
    /// There is no such lock, or it expired.
    NoSuchLock = 1,
    /// Somebody else holds it.
    OthersLock = 2,
    /// The store answered what it should not.
    InternalError = 3,
}

/// Locks that processes share, each with an owner and a lease.
#[async_trait]
pub trait LockStore: Send + Sync {
    /// Takes the lock if it is free; whether it was. It ends by itself after `expiry` (whole seconds).
    async fn try_lock(&self, resource: &str, owner: &str, expiry: Duration) -> Result<bool>;

    /// Frees the lock if it is `owner`'s.
    async fn unlock(&self, resource: &str, owner: &str) -> Result<Unlocked>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<()>;

    /// Ends what the store runs; locks stay until they expire.
    async fn close(&self);
}
