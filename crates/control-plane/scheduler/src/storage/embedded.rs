//! The store of a single scheduler: a SQLite file in its data folder, with the keys and values that Dapr's
//! scheduler stores in etcd.

mod copy;
mod file;
mod log;
pub(crate) mod pairs;
mod reserve;
mod sums;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc as queue;
use std::thread;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

pub(crate) use file::{FolderLock, Location};
use pairs::{Names, Range, Writing};
use reserve::Reserve;
pub(crate) use writer::refusal;
use writer::{Write, Writer, failure};

use super::pair::{counter_key, job_key};
use super::{Advance, CHANGES, Change, JOBS, JobRef, Named, OpenError, Scheduled, Storage, StorageError};

/// Maximum number of writing calls in progress; further ones wait.
const MAX_WRITES: usize = 1024;
/// Maximum number of reading calls in progress.
const MAX_READS: usize = 256;
/// Maximum number of lists in progress; each may be large.
const MAX_LISTS: usize = 4;

/// Attempts to delete when the disk is full.
const ATTEMPTS: usize = 8;

type Read = Box<dyn FnOnce(&Connection) + Send>;

/// The open store.
pub(crate) struct Embedded {
    writes: queue::Sender<Write>,
    /// Queue of reads of single jobs.
    reads: queue::Sender<Read>,
    /// Queue of lists, which take longer.
    lists: queue::Sender<Read>,
    writing: Semaphore,
    reading: Semaphore,
    listing: Semaphore,
    /// Keeps other processes out of the folder.
    _lock: FolderLock,
}

impl Embedded {
    /// Opens and checks the store and starts to send its jobs.
    ///
    /// # Errors
    /// [`OpenError`], also if a job cannot be read.
    pub(crate) fn open(location: &Location) -> Result<(Arc<Self>, mpsc::Receiver<Change>), OpenError> {
        let lock = location.lock()?;
        location.clean();
        log::look(location);
        let mut reserve = Reserve::release(location);
        let connection = location.open()?;
        location.check(&connection)?;
        reserve.restore();
        let (changes, received) = mpsc::channel(CHANGES);
        let (writes, queue) = queue::channel();
        // The threads end when the queues close; `close` waits until all writes are on disk.
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let started = thread::Builder::new().name(name.to_owned()).spawn(run);
            started.map(drop).map_err(|cause| OpenError::Folder {
                path: location.folder.clone(),
                cause,
            })
        };
        let reader = |name: &str| {
            let (reads, queue) = queue::channel::<Read>();
            let connection = location.reader()?;
            start(
                name,
                Box::new(move || queue.into_iter().for_each(|read| read(&connection))),
            )?;
            Ok::<_, OpenError>(reads)
        };
        let (reads, lists) = (reader("store-read")?, reader("store-list")?);
        start(
            "store-write",
            Box::new(move || {
                if send_jobs(&connection, &changes) {
                    let late = HashMap::new();
                    let writer = Writer {
                        connection,
                        changes,
                        late,
                        reserve,
                    };
                    writer.run(&queue);
                }
            }),
        )?;
        let embedded = Self {
            writes,
            reads,
            lists,
            writing: Semaphore::new(MAX_WRITES),
            reading: Semaphore::new(MAX_READS),
            listing: Semaphore::new(MAX_LISTS),
            _lock: lock,
        };
        Ok((Arc::new(embedded), received))
    }

    /// Runs `work` in a transaction; returns when that is on disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writing<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let _place = self.writing.acquire().await.map_err(|_| StorageError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let (failed, failure) = oneshot::channel();
        let part = move |writing: &mut Writing<'_>| {
            let done = work(writing)?;
            let on_stored: writer::OnStored = Box::new(move |outcome| {
                let _ = reply.send(outcome.map(|()| done));
            });
            Ok(on_stored)
        };
        let part = Box::new(part);
        self.writes
            .send(Write::Part { part, failed })
            .map_err(|_| StorageError::Closed)?;
        match answer.await {
            Ok(outcome) => outcome,
            Err(_) => Err(failure.await.unwrap_or(StorageError::Closed)),
        }
    }

    /// Like [`Embedded::write`], for deletions. If the disk is full, each retry gives up more of the reserve.
    async fn delete_jobs<D>(&self, delete: D) -> Result<(), StorageError>
    where
        D: Fn(&mut Writing<'_>) -> rusqlite::Result<()> + Clone + Send + 'static,
    {
        for _ in 1..ATTEMPTS {
            match self.write(delete.clone()).await {
                Err(StorageError::Full(_)) => {}
                outcome => return outcome,
            }
        }
        self.write(delete).await
    }

    /// Runs `work` on a snapshot of the store.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let _place = self.reading.acquire().await.map_err(|_| StorageError::Closed)?;
        ask(&self.reads, work).await
    }

    /// Like [`Embedded::read`], for long reads.
    pub(crate) async fn read_much<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let _place = self.listing.acquire().await.map_err(|_| StorageError::Closed)?;
        ask(&self.lists, work).await
    }
}

async fn ask<T: Send + 'static>(
    queue: &queue::Sender<Read>,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, StorageError> {
    let (reply, answer) = oneshot::channel();
    let read: Read = Box::new(move |connection| {
        let _ = reply.send(work(connection));
    });
    queue.send(read).map_err(|_| StorageError::Closed)?;
    let outcome = answer.await.map_err(|_| StorageError::Closed)?;
    outcome.map_err(|error| failure(&error))
}

/// Sends all jobs; `false` if the receiver is gone.
fn send_jobs(connection: &Connection, changes: &mpsc::Sender<Change>) -> bool {
    let loaded = pairs::load(connection, |name, modified, job, counter| {
        let put = Change::Put {
            name,
            version: crate::stored::version(modified, &job),
            job,
            counter,
        };
        changes.blocking_send(put).is_ok()
    });
    if let Err(error) = loaded {
        tracing::error!(target: "dapr.scheduler.storage", "cannot read the jobs of the store: {error}");
        return false;
    }
    changes.blocking_send(Change::Loaded).is_ok()
}

#[async_trait]
impl Storage for Embedded {
    async fn schedule(&self, name: String, job: Vec<u8>, overwrite: bool) -> Result<Scheduled, StorageError> {
        self.write(move |writing| {
            let key = job_key(&name);
            if !overwrite && pairs::get(writing.connection(), &key)?.is_some() {
                return Ok(Scheduled::Exists);
            }
            writing.delete(&Range::one(counter_key(&name)))?;
            writing.put(&key, &job)?;
            Ok(Scheduled::Stored)
        })
        .await
    }

    async fn get(&self, wanted: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.read(move |connection| {
            let value = |wanted: &JobRef| {
                let pair = pairs::get(connection, &job_key(&wanted.name))?;
                Ok(pair.filter(|pair| wanted.is(pair)).map(|pair| pair.value))
            };
            wanted.iter().map(value).collect()
        })
        .await
    }

    async fn list(&self, prefix: String, most: usize) -> Result<Vec<Named>, StorageError> {
        let listed = self.read_much(move |connection| {
            let (mut jobs, mut size) = (Vec::new(), 0_usize);
            pairs::scan(connection, &Range::prefix([JOBS, &prefix].concat()), |pair| {
                size += pair.key.len() + pair.value.len();
                if let Ok(name) = String::from_utf8(pair.key[JOBS.len()..].to_vec()) {
                    jobs.push((name, pair.value));
                }
                size <= most
            })?;
            Ok((size <= most).then_some(jobs))
        });
        listed.await?.ok_or(StorageError::TooMuch(most))
    }

    async fn first(&self, from: String, below: String) -> Result<Option<String>, StorageError> {
        self.read(move |connection| {
            let mut first = None;
            pairs::scan(connection, &Range::between(JOBS, &from, &below), |pair| {
                first = String::from_utf8(pair.key[JOBS.len()..].to_vec()).ok();
                first.is_none()
            })?;
            Ok(first)
        })
        .await
    }

    async fn delete(&self, name: String) -> Result<(), StorageError> {
        self.delete_jobs(move |writing| writing.delete_jobs(Names::One(&name)))
            .await
    }

    async fn delete_prefix(&self, prefix: String) -> Result<(), StorageError> {
        self.delete_jobs(move |writing| writing.delete_jobs(Names::Prefix(&prefix)))
            .await
    }

    fn advance(&self, advance: Advance) {
        // A missing writer means that the process is shutting down.
        let _ = self.writes.send(Write::Advance(advance));
    }

    async fn close(&self) {
        let (closed, wait) = oneshot::channel();
        if self.writes.send(Write::Close(closed)).is_ok() {
            // No answer means that the writer has ended.
            let _ = wait.await;
        }
    }
}

#[cfg(test)]
mod tests;
