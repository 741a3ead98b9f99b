//! Work that waits until more may be with workers.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Cancelled, Key, WorkQueue};

/// Why a piece of work that is wanted is with no worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// As much as may be is with workers.
    Limit(usize),
    /// No worker has taken it yet.
    Untaken,
}

impl WorkQueue {
    /// Waits until one more may be with workers.
    pub(super) async fn permit<'a>(
        &'a self,
        limit: Option<&'a Semaphore>,
        key: &Key,
    ) -> Result<Option<SemaphorePermit<'a>>, Cancelled> {
        let Some(limit) = limit else { return Ok(None) };
        // There is none to be had like this while others wait.
        if let Ok(permit) = limit.try_acquire() {
            return Ok(Some(permit));
        }
        let _held = Held::new(self, key);
        // It is never closed.
        limit.acquire().await.map(Some).map_err(|_| Cancelled::Ended)
    }

    /// Why the turn of an instance is with no worker; `None` where it is, or none is wanted here.
    pub fn unsent_turn(&self, instance: &str) -> Option<Unsent> {
        self.unsent(&Key::Turn(instance.to_owned()), self.limits.turns)
    }

    /// Why an activity of an instance is with no worker; `None` where it is, or is not wanted here.
    pub fn unsent_activity(&self, instance: &str, task: i32) -> Option<Unsent> {
        let key = Key::Activity(instance.to_owned(), task);
        self.unsent(&key, self.limits.activities)
    }

    fn unsent(&self, key: &Key, limit: Option<usize>) -> Option<Unsent> {
        let work = self.locked();
        if let Some(piece) = work.by_key.get(key).and_then(|number| work.pieces.get(number)) {
            return piece.item.is_some().then_some(Unsent::Untaken);
        }
        let limit = limit.filter(|_| work.held.contains_key(key))?;
        Some(Unsent::Limit(limit))
    }
}

/// Somebody waits for a permit, until it is dropped.
struct Held<'a> {
    queue: &'a WorkQueue,
    key: &'a Key,
}

impl<'a> Held<'a> {
    fn new(queue: &'a WorkQueue, key: &'a Key) -> Self {
        *queue.locked().held.entry(key.clone()).or_default() += 1;
        Self { queue, key }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut work = self.queue.locked();
        if let Some(count) = work.held.get_mut(self.key) {
            *count -= 1;
            if *count == 0 {
                work.held.remove(self.key);
            }
        }
    }
}
