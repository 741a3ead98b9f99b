//! Stores the progress of jobs: in batches, the latest of each job, with retries. Only a member of the group
//! may store progress: a scheduler whose lease has expired would overwrite the work of others.
//!
//! Each write is conditional on the last revision of the member's entry. An unanswered write may reach the
//! store late, after newer progress. So the entry is rewritten before the next attempt, and the store then
//! refuses the late write. Each write is also bound to the tenure of its progress: progress of an earlier
//! tenure is dropped, because other schedulers have owned the jobs since.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_schedule::engine::Name;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::backend::{Backend, Condition, Write};
use crate::fault;
use crate::storage::pair::{Pair, Range, counter_key, job_key};
use crate::storage::{Advance, StorageError, Tenure};
use crate::stored;

const LOG: &str = "dapr.scheduler.storage";
/// Jobs per transaction. Each takes two operations, and etcd allows 128 by default.
const BATCH: usize = 48;
/// Pause before failed progress is retried.
const RETRY: Duration = Duration::from_secs(1);

enum Request {
    Advance(Advance),
    /// Answered once all earlier progress is stored or given up.
    Flush(oneshot::Sender<()>),
    /// Ends the task once all earlier progress is stored or given up.
    End,
}

/// The state of this member's entry that every write requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fence {
    /// Tenure whose progress may be stored.
    pub(super) tenure: Tenure,
    pub(super) key: Vec<u8>,
    /// Lease of the entry.
    pub(super) lease: i64,
    /// Revision at which the entry was created.
    pub(super) created: i64,
    /// Revision at which the entry was last written.
    pub(super) modified: i64,
}

impl Fence {
    fn condition(&self) -> Condition {
        Condition::Modified(self.key.clone(), self.modified)
    }
}

/// A handle to the task.
#[derive(Clone)]
pub(super) struct Advances {
    requests: mpsc::UnboundedSender<Request>,
    fence: Arc<Mutex<Option<Fence>>>,
}

impl Advances {
    /// Starts the task; its owner joins it after [`Advances::end`].
    pub(super) fn start(backend: Arc<dyn Backend>) -> (Self, JoinHandle<()>) {
        // Bounded by backpressure of the trigger loop: see [`crate::backlog`].
        let (requests, queue) = mpsc::unbounded_channel();
        let fence = Arc::new(Mutex::new(None));
        let writer = Writer {
            backend,
            fence: Arc::clone(&fence),
            waiting: HashMap::new(),
            tenure: 0,
            flushes: Vec::new(),
            is_unanswered: false,
        };
        let writing = tokio::spawn(writer.run(queue));
        (Self { requests, fence }, writing)
    }

    /// Ends the task after writes in progress.
    pub(super) fn end(&self) {
        let _ = self.requests.send(Request::End);
    }

    pub(super) fn advance(&self, advance: Advance) {
        // A missing writer means that the process is shutting down.
        let _ = self.requests.send(Request::Advance(advance));
    }

    /// Sets the condition for writes; `None` stops all writes.
    pub(super) fn fence(&self, fence: Option<Fence>) {
        *self.fence.lock().unwrap_or_else(PoisonError::into_inner) = fence;
    }

    /// Tenure whose progress may be stored.
    pub(super) fn tenure(&self) -> Option<Tenure> {
        let fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        fence.as_ref().map(|fence| fence.tenure)
    }

    /// Returns once all earlier progress is stored or given up.
    pub(super) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        if self.requests.send(Request::Flush(flushed)).is_ok() {
            // No answer means that the task has ended.
            let _ = wait.await;
        }
    }
}

struct Writer {
    backend: Arc<dyn Backend>,
    fence: Arc<Mutex<Option<Fence>>>,
    /// The latest progress of each job, all of one tenure.
    waiting: HashMap<Name, Advance>,
    tenure: Tenure,
    flushes: Vec<oneshot::Sender<()>>,
    /// Whether an attempt since the last write of the entry was not answered.
    is_unanswered: bool,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Request>) {
        let (mut asked, mut ending) = (Vec::new(), false);
        loop {
            if self.waiting.is_empty() && self.flushes.is_empty() {
                if queue.recv_many(&mut asked, BATCH).await == 0 {
                    return;
                }
            } else {
                while let Ok(ask) = queue.try_recv() {
                    asked.push(ask);
                }
            }
            for ask in asked.drain(..) {
                match ask {
                    Request::Advance(advance) => self.wait(advance),
                    Request::Flush(flushed) => self.flushes.push(flushed),
                    Request::End => ending = true,
                }
            }
            if let Err(error) = self.store().await {
                tracing::warn!(target: LOG, "cannot store the progress of jobs, retrying: {error}");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            for flush in self.flushes.drain(..) {
                let _ = flush.send(());
            }
            if ending {
                return;
            }
        }
    }

    fn wait(&mut self, advance: Advance) {
        if advance.tenure > self.tenure {
            self.waiting.clear();
            self.tenure = advance.tenure;
        }
        if advance.tenure == self.tenure {
            self.waiting.insert(Arc::clone(&advance.name), advance);
        }
    }

    fn fence(&self) -> Option<Fence> {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores all queued progress; the rest stays queued.
    async fn store(&mut self) -> Result<(), StorageError> {
        let stored = self.store_waiting().await;
        self.is_unanswered |= matches!(stored, Err(StorageError::Unanswered(_)));
        stored
    }

    async fn store_waiting(&mut self) -> Result<(), StorageError> {
        while !self.waiting.is_empty() {
            let Some(fence) = self.fence().filter(|fence| fence.tenure == self.tenure) else {
                tracing::debug!(target: LOG, "{} jobs belong to another scheduler now", self.waiting.len());
                self.waiting.clear();
                return Ok(());
            };
            if self.is_unanswered {
                self.write_entry(fence).await?;
                self.is_unanswered = false;
                continue;
            }
            let batch = self.waiting.values().take(BATCH).cloned().collect();
            let stored = self.store_batch(&fence, batch).await;
            if matches!(stored, Err(StorageError::Full(_))) {
                self.store_ends(&fence).await?;
            }
            stored?;
        }
        Ok(())
    }

    async fn store_batch(&mut self, fence: &Fence, batch: Vec<Advance>) -> Result<(), StorageError> {
        if !self.commit(fence, &batch).await? {
            // One job was changed, or the fence failed: retry each job by itself.
            for advance in &batch {
                self.commit(fence, std::slice::from_ref(advance)).await?;
            }
        }
        fault::point("progress stored");
        for advance in batch {
            self.waiting.remove(&advance.name);
        }
        Ok(())
    }

    /// Stores ended jobs apart from progress: a full etcd accepts transactions that only delete, and these
    /// free space.
    async fn store_ends(&mut self, fence: &Fence) -> Result<(), StorageError> {
        loop {
            let over = self.waiting.values().filter(|advance| advance.progress.is_none());
            let batch: Vec<Advance> = over.take(BATCH).cloned().collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.store_batch(fence, batch).await?;
        }
    }

    /// Rewrites this member's entry, so that earlier attempts are refused.
    async fn write_entry(&self, fence: Fence) -> Result<(), StorageError> {
        let entry = self.entry(&fence).await?;
        let entry = match entry {
            Some(entry) if entry.modified == fence.modified => {
                let put = Write::Put {
                    key: fence.key.clone(),
                    value: entry.value,
                    lease: Some(fence.lease),
                };
                if !self.backend.commit(&[fence.condition()], &[put]).await? {
                    tracing::debug!(target: LOG, "the group entry of this scheduler was changed by another process");
                }
                self.entry(&fence).await?
            }
            // An earlier rewrite was not answered; no other process writes the entry while there is a fence.
            other => other,
        };
        let renewed = entry.map(|entry| Fence {
            modified: entry.modified,
            ..fence.clone()
        });
        let mut current = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        // Unless the member has lost its shard or has another one by now.
        if *current == Some(fence) {
            *current = renewed;
        }
        Ok(())
    }

    /// The entry of this member, if it is still stored.
    async fn entry(&self, fence: &Fence) -> Result<Option<Pair>, StorageError> {
        let found = self.backend.get(vec![fence.key.clone()]).await?;
        let entry = found.into_iter().next().flatten();
        Ok(entry.filter(|entry| entry.created == fence.created))
    }

    async fn commit(&self, fence: &Fence, batch: &[Advance]) -> Result<bool, StorageError> {
        let mut conditions = vec![fence.condition()];
        let mut writes = Vec::with_capacity(batch.len() * 2);
        for Advance {
            name,
            version,
            progress,
            ..
        } in batch
        {
            conditions.push(Condition::Modified(
                job_key(name),
                i64::try_from(version.revision).unwrap_or(i64::MAX),
            ));
            match progress {
                Some(progress) => writes.push(Write::Put {
                    key: counter_key(name),
                    value: stored::counter(progress, version.partition),
                    lease: None,
                }),
                None => {
                    writes.push(Write::Delete(Range::one(job_key(name))));
                    writes.push(Write::Delete(Range::one(counter_key(name))));
                }
            }
        }
        self.backend.commit(&conditions, &writes).await
    }
}

#[cfg(test)]
mod tests;
