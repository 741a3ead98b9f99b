//! Copies all jobs and their progress from one store to another. The source is not changed and jobs at the
//! target are not overwritten, so an interrupted copy can be resumed with the same command.

mod reserve;

use std::fmt;
use std::sync::Arc;

use outrigger_schedule::engine::Name;
use tokio::sync::mpsc;

use crate::config::End;
use crate::fault;
use crate::storage::embedded::{FolderLock, Location};
use crate::storage::etcd::{Client, EndpointError, Etcd};
use crate::storage::pair::{counter_key, job_key, job_name};
use crate::storage::postgres::Postgres;
use crate::storage::shared::backend::{Backend, Condition, Write};
use crate::storage::shared::follow::Stored;
use crate::storage::{OpenError, StorageError};
use crate::stored;
use reserve::Reserved;

/// Jobs per write. Each takes two operations, and etcd allows 128 by default.
const BATCH: usize = 48;
/// Capacity of the queue of jobs to write.
const QUEUE_CAPACITY: usize = 256;
/// Maximum number of job names in an error.
const NAMES_IN_ERROR: usize = 5;

/// Why the copy failed.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The embedded store failed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A shared store failed.
    #[error("{0}; the jobs copied so far stay, and the same command continues from there")]
    Storage(#[from] StorageError),
    /// An etcd endpoint is not valid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A connection string of PostgreSQL is not valid.
    #[error("{0}")]
    Connection(String),
    /// The embedded store does not exist.
    #[error("there is no embedded store in {0}: check --etcd-data-dir, --id and the variable NAMESPACE")]
    NoSource(std::path::PathBuf),
    /// Schedulers use the store.
    #[error(
        "the {which} is in use by schedulers, or they were killed less than 20 s ago: {ids}; stop them first, so \
         that no job changes or fires during the copy"
    )]
    InUse {
        /// `source` or `target`.
        which: &'static str,
        /// Ids of these schedulers.
        ids: String,
    },
    /// The copy would overwrite jobs of the target.
    #[error(
        "{count} jobs exist at the target with other contents ({names}): nothing was copied; delete them at the \
         target or at the source"
    )]
    Conflict {
        /// Number of these jobs.
        count: usize,
        /// Names of some of them.
        names: String,
    },
    /// A stored job is not valid.
    #[error("the job {name:?} at the source is not valid: {why}; nothing was copied; repair or delete it")]
    Broken {
        /// The full name of the job, with namespace and app.
        name: String,
        /// The reason.
        why: String,
    },
    /// The target lacks jobs that were written to it.
    #[error(
        "{0} jobs are missing at the target after the copy, because another process wrote to one of the stores; try \
         again"
    )]
    Incomplete(usize),
    /// A background task panicked.
    #[error("internal error (please report): a background task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Migrated {
    pub(crate) copied: usize,
    /// Jobs that the target had before.
    pub(crate) present: usize,
}

impl fmt::Display for Migrated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} jobs copied, {} already present; both stores have the same jobs",
            self.copied, self.present
        )
    }
}

/// A job and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) job: Vec<u8>,
    pub(crate) counter: Option<Vec<u8>>,
}

/// Copies all jobs. `location` is the folder used where either end is the embedded store.
///
/// # Errors
/// [`MigrateError`].
pub(crate) async fn migrate(from: &End, to: &End, location: &Location) -> Result<Migrated, MigrateError> {
    let source = Source::open(from, location)?;
    let reserved = match &source {
        Source::Shared(backend) => Some(Reserved::take(Arc::clone(backend), "source").await?),
        Source::Embedded { .. } => None,
    };
    let migrated = match to {
        End::Embedded => make(&source, location).await,
        End::Etcd(_) | End::Postgres(_) => match shared(to) {
            Ok(target) => fill(&source, target).await,
            Err(error) => Err(error),
        },
    };
    // Also after a failure, so that the next attempt need not wait for the lease to expire.
    if let Some(reserved) = reserved {
        reserved.release().await;
    }
    migrated
}

/// Creates an embedded store with all jobs.
async fn make(source: &Source, location: &Location) -> Result<Migrated, MigrateError> {
    let location = location.clone();
    let mut entries = source.read();
    let (send, mut given) = mpsc::channel(QUEUE_CAPACITY);
    let given = std::iter::from_fn(move || given.blocking_recv());
    let making = tokio::task::spawn_blocking(move || location.make(given));
    let mut copied = 0;
    while let Some(entry) = entries.recv().await {
        if send.send(Some(checked(entry?)?)).await.is_err() {
            break;
        }
        copied += 1;
    }
    // `None` commits the file; without it the new store is discarded.
    let _ = send.send(None).await;
    drop(send);
    making.await??;
    fault::point("store made");
    Ok(Migrated { copied, present: 0 })
}

async fn fill(source: &Source, target: Arc<dyn Backend>) -> Result<Migrated, MigrateError> {
    let reserved = Reserved::take(Arc::clone(&target), "target").await?;
    let migrated = copy(source, &*target).await;
    reserved.release().await;
    migrated
}

/// Compares the stores, writes missing jobs, and compares again.
async fn copy(source: &Source, target: &dyn Backend) -> Result<Migrated, MigrateError> {
    let mut present = 0;
    let (mut conflicts, mut names) = (0, Vec::new());
    let mut batches = Batches(source.read());
    while let Some(batch) = batches.next().await? {
        for (entry, state) in compare(target, batch).await? {
            match state {
                State::Same => present += 1,
                State::Absent => {}
                State::Other => {
                    conflicts += 1;
                    if names.len() < NAMES_IN_ERROR {
                        names.push(entry.name.to_string());
                    }
                }
            }
        }
    }
    if conflicts > 0 {
        return Err(MigrateError::Conflict {
            count: conflicts,
            names: names.join(", "),
        });
    }
    fault::point("conflicts looked for");
    let mut copied = 0;
    let mut batches = Batches(source.read());
    while let Some(batch) = batches.next().await? {
        copied += write(target, compare(target, batch).await?).await?;
        fault::point("jobs written");
    }
    let mut missing = 0;
    let mut batches = Batches(source.read());
    while let Some(batch) = batches.next().await? {
        let states = compare(target, batch).await?;
        missing += states.iter().filter(|(_, state)| *state != State::Same).count();
    }
    fault::point("looked for all");
    match missing {
        0 => Ok(Migrated { copied, present }),
        missing => Err(MigrateError::Incomplete(missing)),
    }
}

/// The state of a job at the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Same,
    Absent,
    Other,
}

async fn compare(target: &dyn Backend, batch: Vec<Entry>) -> Result<Vec<(Entry, State)>, MigrateError> {
    let keys = batch
        .iter()
        .flat_map(|entry| [job_key(&entry.name), counter_key(&entry.name)])
        .collect();
    let found = target.get(keys).await?;
    let states = found.chunks(2).zip(batch).map(|(found, entry)| {
        let value = |at: usize| found.get(at).and_then(Option::as_ref).map(|pair| &pair.value);
        let state = match value(0) {
            None => State::Absent,
            Some(job) if *job == entry.job && value(1) == entry.counter.as_ref() => State::Same,
            Some(_) => State::Other,
        };
        (entry, state)
    });
    Ok(states.collect())
}

async fn write(target: &dyn Backend, states: Vec<(Entry, State)>) -> Result<usize, MigrateError> {
    let (mut conditions, mut writes) = (Vec::new(), Vec::new());
    let mut count = 0;
    for (entry, state) in states {
        if state != State::Absent {
            continue;
        }
        count += 1;
        let put = |key, value| Write::Put {
            key,
            value,
            lease: None,
        };
        conditions.push(Condition::Modified(job_key(&entry.name), 0));
        writes.push(put(job_key(&entry.name), entry.job));
        match entry.counter {
            Some(counter) => writes.push(put(counter_key(&entry.name), counter)),
            None => writes.push(Write::Delete(crate::storage::pair::Range::one(counter_key(
                &entry.name,
            )))),
        }
    }
    match writes.is_empty() || target.commit(&conditions, &writes).await? {
        true => Ok(count),
        false => Err(MigrateError::Incomplete(count)),
    }
}

enum Source {
    Embedded {
        location: Location,
        /// Keeps schedulers off the folder.
        _lock: FolderLock,
    },
    Shared(Arc<dyn Backend>),
}

fn shared(end: &End) -> Result<Arc<dyn Backend>, MigrateError> {
    Ok(match end {
        End::Etcd(access) => Arc::new(Etcd::new(Client::new(access)?)),
        End::Postgres(access) => Arc::new(Postgres::new(&access.0).map_err(MigrateError::Connection)?),
        End::Embedded => {
            return Err(MigrateError::Connection(
                "the embedded store cannot be shared".to_owned(),
            ));
        }
    })
}

impl Source {
    fn open(end: &End, location: &Location) -> Result<Self, MigrateError> {
        match end {
            End::Embedded if location.file().exists() => Ok(Self::Embedded {
                location: location.clone(),
                _lock: location.lock()?,
            }),
            End::Embedded => Err(MigrateError::NoSource(location.folder.clone())),
            _ => Ok(Self::Shared(shared(end)?)),
        }
    }

    /// Streams all jobs by name.
    fn read(&self) -> mpsc::Receiver<Result<Entry, MigrateError>> {
        let (send, entries) = mpsc::channel(QUEUE_CAPACITY);
        // The reader changes nothing and stops when the receiver is dropped, so its task is detached.
        match self {
            Self::Embedded { location, .. } => {
                let location = location.clone();
                tokio::task::spawn_blocking(move || {
                    let read = location.read(|entry| send.blocking_send(Ok(entry)).is_ok());
                    if let Err(error) = read {
                        let _ = send.blocking_send(Err(error.into()));
                    }
                });
            }
            Self::Shared(backend) => {
                let backend = Arc::clone(backend);
                tokio::spawn(async move {
                    if let Err(error) = read(&*backend, &send).await {
                        let _ = send.send(Err(error.into())).await;
                    }
                });
            }
        }
        entries
    }
}

async fn read(
    backend: &dyn Backend,
    send: &mpsc::Sender<Result<Entry, MigrateError>>,
) -> Result<(), StorageError> {
    let mut stored = Stored::read(backend).await?;
    while let Some(pair) = stored.next().await? {
        let Some(name) = job_name(&pair.key) else { continue };
        let entry = Entry {
            name: name.into(),
            counter: stored.counter(name).await?,
            job: pair.value,
        };
        if send.send(Ok(entry)).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn checked(entry: Entry) -> Result<Entry, MigrateError> {
    match stored::read(&entry.job, entry.counter.as_deref()) {
        Ok(_) => Ok(entry),
        Err(why) => Err(MigrateError::Broken {
            name: entry.name.to_string(),
            why: why.to_string(),
        }),
    }
}

/// Groups jobs into batches.
struct Batches(mpsc::Receiver<Result<Entry, MigrateError>>);

impl Batches {
    async fn next(&mut self) -> Result<Option<Vec<Entry>>, MigrateError> {
        let mut entries = Vec::with_capacity(BATCH);
        while entries.len() < BATCH {
            match self.0.recv().await {
                Some(entry) => entries.push(checked(entry?)?),
                None => break,
            }
        }
        Ok((!entries.is_empty()).then_some(entries))
    }
}
