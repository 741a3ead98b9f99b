//! Where work is: it waits until more may be with workers, it waits for one, or one has it.

use std::time::SystemTime;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Cancelled, Key, WorkQueue};

/// Where a piece of work is that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// As much as may be is with workers.
    Limit(usize),
    /// No worker has taken it yet.
    Untaken,
    /// A worker was sent it then, and has not answered.
    Sent(SystemTime),
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

    /// Where the turn of an instance is; `None` where none is wanted here.
    pub fn step_progress(&self, instance: &str) -> Option<Progress> {
        self.progress(&Key::Step(instance.to_owned()), self.limits.steps)
    }

    /// Where an activity of an instance is; `None` where it is not wanted here.
    pub fn activity_progress(&self, instance: &str, task: i32) -> Option<Progress> {
        let key = Key::Activity(instance.to_owned(), task);
        self.progress(&key, self.limits.activities)
    }

    /// The work that is wanted, `most` pieces of it: of which instance, which of its activities (`None`: its turn), and
    /// where it is.
    pub fn wanted(&self, most: usize) -> Vec<(String, Option<i32>, Progress)> {
        let keys: Vec<Key> = {
            let work = self.locked();
            let keys = work.by_key.keys().chain(work.held.keys());
            keys.take(most).cloned().collect()
        };
        let mut wanted: Vec<_> = keys
            .into_iter()
            .filter_map(|key| match key {
                Key::Step(id) => {
                    let progress = self.step_progress(&id)?;
                    Some((id, None, progress))
                }
                Key::Activity(id, task) => {
                    let progress = self.activity_progress(&id, task)?;
                    Some((id, Some(task), progress))
                }
            })
            .collect();
        wanted.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        wanted.dedup_by(|a, b| (&a.0, a.1) == (&b.0, b.1));
        wanted
    }

    fn progress(&self, key: &Key, limit: Option<usize>) -> Option<Progress> {
        let work = self.locked();
        if let Some(piece) = work.by_key.get(key).and_then(|number| work.pieces.get(number)) {
            return Some(piece.sent.map_or(Progress::Untaken, |(_, at)| Progress::Sent(at)));
        }
        let limit = limit.filter(|_| work.held.contains_key(key))?;
        Some(Progress::Limit(limit))
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
