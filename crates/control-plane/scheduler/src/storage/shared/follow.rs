//! Sends the engine the jobs of one shard and their changes.

use std::cmp::Ordering;
use std::sync::Arc;

use outrigger_schedule::shard::Shard;
use tokio::sync::mpsc;

use super::backend::{Backend, Event, Scan};
use crate::fault;
use crate::storage::pair::{Pair, Range, counter_key, job_name};
use crate::storage::{COUNTERS, Change, JOBS, StorageError, Tenure};
use crate::stored;

const LOG: &str = "dapr.scheduler.storage";
/// Counters per request.
const BATCH: usize = 64;

/// Runs until changes are lost or the receiver is gone.
pub(super) async fn follow(
    backend: Arc<dyn Backend>,
    shard: Shard,
    tenure: Tenure,
    changes: mpsc::Sender<Change>,
) -> Result<(), StorageError> {
    let report = |change| async {
        fault::point("before a change is told");
        changes.send(change).await.map_err(|_| StorageError::Closed)
    };
    report(Change::Reset(tenure)).await?;
    let history = backend.history();
    let mut stored = Stored::read(&*backend).await?;
    let revision = stored.jobs.revision;
    let mut loaded = 0_usize;
    while let Some(job) = stored.next().await? {
        let Some(name) = own(&job, shard) else { continue };
        let counter = stored.counter(name).await?;
        report(put(name, &job, counter)).await?;
        loaded += 1;
    }
    report(Change::Loaded).await?;
    tracing::info!(target: LOG, "loaded {loaded} stored jobs");

    let mut watch = backend.watch(Range::prefix(JOBS), revision);
    if backend.history() != history {
        return Err(StorageError::Failed(
            "the store was replaced while the jobs were read".to_owned(),
        ));
    }
    loop {
        for events in watch.next().await?.chunks(BATCH) {
            let mut keys = Vec::new();
            for event in events {
                if let Event::Put(job) = event
                    && let Some(name) = own(job, shard)
                {
                    keys.push(counter_key(name));
                }
            }
            let counters = match keys.is_empty() {
                true => Vec::new(),
                false => super::retried(|| backend.get(keys.clone())).await?,
            };
            let mut counters = counters.into_iter();
            for event in events {
                let change = match event {
                    Event::Put(job) => match own(job, shard) {
                        Some(name) => put(name, job, counters.next().flatten().map(|pair| pair.value)),
                        None => match deletion_of(&job.key, job.modified) {
                            Some(change) => change,
                            None => continue,
                        },
                    },
                    Event::Deleted { key, revision } => match deletion_of(key, *revision) {
                        Some(change) => change,
                        None => continue,
                    },
                };
                report(change).await?;
            }
        }
    }
}

/// The name of a job of this shard.
fn own(job: &Pair, shard: Shard) -> Option<&str> {
    job_name(&job.key).filter(|_| shard.owns(stored::partition(&job.value)))
}

fn put(name: &str, job: &Pair, counter: Option<Vec<u8>>) -> Change {
    Change::Put {
        name: name.into(),
        version: stored::version(job.modified, &job.value),
        job: job.value.clone(),
        counter,
    }
}

/// The job was deleted, or replaced by one of another shard.
fn deletion_of(key: &[u8], revision: i64) -> Option<Change> {
    Some(Change::Deleted {
        name: job_name(key)?.into(),
        revision: revision.unsigned_abs(),
    })
}

/// All jobs by name.
pub(crate) struct Stored {
    jobs: Scan,
    chunk: std::vec::IntoIter<Pair>,
    counters: Sorted,
}

impl Stored {
    pub(crate) async fn read(backend: &dyn Backend) -> Result<Self, StorageError> {
        let jobs = backend.scan(Range::prefix(JOBS), None).await?;
        let counters = backend.scan(Range::prefix(COUNTERS), Some(jobs.revision)).await?;
        Ok(Self {
            jobs,
            chunk: Vec::new().into_iter(),
            counters: Sorted::new(counters),
        })
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Pair>, StorageError> {
        loop {
            if let Some(job) = self.chunk.next() {
                return Ok(Some(job));
            }
            match self.jobs.chunks.recv().await {
                Some(chunk) => self.chunk = chunk?.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// The counter of the last job or of a later one.
    pub(crate) async fn counter(&mut self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.counters.find(&counter_key(name)).await
    }
}

/// Looks up pairs in key order.
struct Sorted {
    scan: Scan,
    chunk: std::vec::IntoIter<Pair>,
    next: Option<Pair>,
    ended: bool,
}

impl Sorted {
    fn new(scan: Scan) -> Self {
        Self {
            scan,
            chunk: Vec::new().into_iter(),
            next: None,
            ended: false,
        }
    }

    async fn find(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        loop {
            if self.next.is_none() && !self.ended {
                self.next = self.chunk.next();
            }
            match &self.next {
                None if self.ended => return Ok(None),
                None => match self.scan.chunks.recv().await {
                    Some(chunk) => self.chunk = chunk?.into_iter(),
                    None => self.ended = true,
                },
                Some(pair) => match pair.key.as_slice().cmp(key) {
                    Ordering::Less => self.next = None,
                    Ordering::Equal => return Ok(self.next.take().map(|pair| pair.value)),
                    Ordering::Greater => return Ok(None),
                },
            }
        }
    }
}
