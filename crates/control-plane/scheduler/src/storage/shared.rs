//! A store shared by several schedulers, on etcd or PostgreSQL. Each job is owned by one scheduler
//! ([`membership`]), which follows its changes ([`follow`]) and stores its progress ([`advances`]).

mod advances;
pub(crate) mod backend;
pub(crate) mod follow;
mod membership;
mod schedule;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outrigger_backoff::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use advances::Advances;
use backend::{Backend, Write};
use membership::{LeaseEnd, Membership};

use super::embedded::FolderLock;
use super::pair::{Range, counter_key, job_key, job_name};
use super::{
    Advance, CHANGES, COUNTERS, Change, Hosts, JOBS, JobRef, Named, Scheduled, Storage, StorageError, Tenure,
};
use crate::fault;

/// Deadline of a call while the store does not answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(15);
/// First pause between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Backoff between attempts.
const PAUSES: Backoff = Backoff::new(FIRST_PAUSE, Duration::from_secs(1));
/// Maximum number of concurrent lists; each may be large.
const MAX_LISTS: usize = 4;

/// The identity of this scheduler among those that share the store.
pub(crate) struct SelfMember {
    pub(crate) id: String,
    /// Address announced to sidecars.
    pub(crate) address: String,
    /// Guarantees that no other process has this id, so an existing entry with the id belongs to a process
    /// that has exited.
    pub(crate) lock: Option<FolderLock>,
}

/// The storage of a scheduler that shares its store with others: jobs, their progress, and the membership in
/// the group.
pub(crate) struct SharedStorage {
    backend: Arc<dyn Backend>,
    advances: Advances,
    until: LeaseEnd,
    listing: tokio::sync::Semaphore,
    stop: CancellationToken,
    /// Tasks that end with the storage, in this order: the membership, then the writer of progress.
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

/// The changes of a store, and the schedulers that share it.
pub(crate) struct SharedEvents {
    pub(crate) changes: mpsc::Receiver<Change>,
    pub(crate) hosts: watch::Receiver<Hosts>,
}

impl SharedStorage {
    /// Joins the schedulers of the store as soon as it answers.
    pub(crate) fn join(backend: Arc<dyn Backend>, own: SelfMember) -> (Arc<Self>, SharedEvents) {
        let (changes, changed) = mpsc::channel(CHANGES);
        let (hosts, watched_hosts) = watch::channel(Hosts::from([]));
        let stop = CancellationToken::new();
        let (advances, writing) = Advances::start(Arc::clone(&backend));
        let until = LeaseEnd::default();
        let membership = Membership::new(
            Arc::clone(&backend),
            own,
            changes,
            hosts,
            advances.clone(),
            until.clone(),
            stop.clone(),
        );
        let shared = Self {
            backend,
            advances,
            until,
            listing: tokio::sync::Semaphore::new(MAX_LISTS),
            stop,
            tasks: std::sync::Mutex::new(vec![tokio::spawn(membership.run()), writing]),
        };
        let events = SharedEvents {
            changes: changed,
            hosts: watched_hosts,
        };
        (Arc::new(shared), events)
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StorageError> {
        retried(|| self.backend.commit(&[], writes)).await?;
        fault::point("before a caller is told");
        Ok(())
    }
}

impl Drop for SharedStorage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Retries until success, a permanent error or the deadline.
async fn retried<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, StorageError>
where
    F: Future<Output = Result<T, StorageError>>,
{
    let deadline = Instant::now() + STORE_TIMEOUT;
    let mut pauses = PAUSES;
    loop {
        let outcome = attempt().await;
        let pause = pauses.pause();
        match outcome {
            Err(error) if error.is_passing() && Instant::now() + pause < deadline => {
                tokio::time::sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
}

#[async_trait]
impl Storage for SharedStorage {
    async fn schedule(&self, name: String, job: Vec<u8>, overwrite: bool) -> Result<Scheduled, StorageError> {
        let scheduled = schedule::schedule(&*self.backend, &name, job, overwrite).await?;
        fault::point("before a caller is told");
        Ok(scheduled)
    }

    async fn get(&self, wanted: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let keys: Vec<Vec<u8>> = wanted.iter().map(|wanted| job_key(&wanted.name)).collect();
        let found = retried(|| self.backend.get(keys.clone())).await?;
        let found = found.into_iter().zip(&wanted);
        Ok(found
            .map(|(pair, wanted)| pair.filter(|pair| wanted.is(pair)).map(|pair| pair.value))
            .collect())
    }

    async fn list(&self, prefix: String, most: usize) -> Result<Vec<Named>, StorageError> {
        let _place = self.listing.acquire().await.map_err(|_| StorageError::Closed)?;
        let range = Range::prefix([JOBS, &prefix].concat());
        let mut scan = retried(|| self.backend.scan(range.clone(), None)).await?;
        let (mut jobs, mut size) = (Vec::new(), 0_usize);
        while let Some(chunk) = scan.chunks.recv().await {
            for pair in chunk? {
                size += pair.key.len() + pair.value.len();
                if size > most {
                    return Err(StorageError::TooMuch(most));
                }
                if let Some(name) = job_name(&pair.key) {
                    jobs.push((name.to_owned(), pair.value));
                }
            }
        }
        Ok(jobs)
    }

    async fn first(&self, from: String, below: String) -> Result<Option<String>, StorageError> {
        let range = Range::between(JOBS, &from, &below);
        let mut scan = retried(|| self.backend.scan(range.clone(), None)).await?;
        while let Some(chunk) = scan.chunks.recv().await {
            for pair in chunk? {
                if let Some(name) = job_name(&pair.key) {
                    return Ok(Some(name.to_owned()));
                }
            }
        }
        Ok(None)
    }

    async fn delete(&self, name: String) -> Result<(), StorageError> {
        let writes = [job_key(&name), counter_key(&name)].map(|key| Write::Delete(Range::one(key)));
        self.write(&writes).await
    }

    async fn delete_prefix(&self, prefix: String) -> Result<(), StorageError> {
        let writes = [JOBS, COUNTERS].map(|folder| Write::Delete(Range::prefix([folder, &prefix].concat())));
        self.write(&writes).await
    }

    fn may_trigger(&self, tenure: Tenure) -> bool {
        self.advances.tenure() == Some(tenure) && !self.until.has_come()
    }

    fn advance(&self, advance: Advance) {
        self.advances.advance(advance);
    }

    async fn close(&self) {
        self.stop.cancel();
        let tasks = self.tasks.lock().map(|mut tasks| std::mem::take(&mut *tasks));
        for task in tasks.unwrap_or_default() {
            // A panic of the task has stopped the scheduler before.
            let _ = task.await;
            // After the membership, which still flushes progress at its end.
            self.advances.end();
        }
    }
}

#[cfg(test)]
mod tests;
