//! The interface of job stores. The trigger engine ([`crate::triggers`]) follows the store's changes; calls
//! return once their writes are durable.

pub(crate) mod embedded;
pub(crate) mod etcd;
pub(crate) mod pair;
pub(crate) mod postgres;
pub(crate) mod shared;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use outrigger_schedule::engine::{Name, Version};
use outrigger_schedule::job::Progress;
use tokio::sync::{oneshot, watch};

use crate::backlog::Share;

/// Key prefix of jobs; the job's name follows.
pub(crate) const JOBS: &str = "dapr/jobs/";
/// Key prefix of counters.
pub(crate) const COUNTERS: &str = "dapr/counters/";
/// Key prefix of scheduler members.
pub(crate) const LEADERSHIP: &str = "dapr/leadership/";

/// Capacity of the queue of changes to the engine; writers wait when it is full.
pub(crate) const CHANGES: usize = 1024;

/// Identifies a period in which this scheduler owns its jobs. Between two tenures other schedulers may have
/// owned them.
pub(crate) type Tenure = u64;

/// A change of the store, in commit order.
#[derive(Debug)]
pub(crate) enum Change {
    /// A job was created or replaced.
    Put {
        name: Name,
        version: Version,
        job: Vec<u8>,
        counter: Option<Vec<u8>>,
    },
    /// A job was deleted.
    Deleted {
        name: Name,
        /// Revision of the deletion.
        revision: u64,
    },
    /// All jobs stored before have been sent.
    Loaded,
    /// Other schedulers join or leave: no triggers are sent until [`Change::Reset`]. Answered once no trigger
    /// is in flight and all answers were handed to the store.
    Pause(oneshot::Sender<()>),
    /// This scheduler owns no jobs now. The jobs that it owns in the new tenure follow.
    Reset(Tenure),
}

/// The progress of a job to store, or its end.
#[derive(Debug, Clone)]
pub(crate) struct Advance {
    pub(crate) name: Name,
    /// The version of the job that the progress belongs to; another version is not changed.
    pub(crate) version: Version,
    /// The tenure of the progress. Progress of another tenure is stale.
    pub(crate) tenure: Tenure,
    /// `None` deletes the job, because it has ended.
    pub(crate) progress: Option<Progress>,
    /// Dropped once the progress is stored or given up.
    #[expect(dead_code, reason = "it counts until it is dropped")]
    pub(crate) share: Share,
}

/// The result of a request to store a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduled {
    Stored,
    /// A job with that name exists.
    Exists,
}

/// A reference to a job.
#[derive(Debug, Clone)]
pub(crate) struct JobRef {
    pub(crate) name: Name,
    /// If set, only the job written at this revision matches.
    pub(crate) revision: Option<u64>,
}

impl JobRef {
    /// Whether the stored pair matches the reference.
    pub(crate) fn is(&self, pair: &pair::Pair) -> bool {
        self.revision
            .is_none_or(|revision| revision == pair.modified.unsigned_abs())
    }
}

/// Name and value of a job.
pub(crate) type Named = (String, Vec<u8>);

/// The addresses of all schedulers of the store, for sidecars; empty until they are known.
pub(crate) type Hosts = Arc<[String]>;

/// Waits for a change of the schedulers; a single scheduler never changes.
pub(crate) async fn changed(hosts: &mut watch::Receiver<Hosts>) {
    if hosts.changed().await.is_err() {
        std::future::pending().await
    }
}

/// A store for jobs.
#[async_trait]
pub(crate) trait Storage: Send + Sync {
    /// Stores a job. `overwrite` replaces a job with that name and resets its progress.
    async fn schedule(&self, name: String, job: Vec<u8>, overwrite: bool) -> Result<Scheduled, StorageError>;
    /// The referenced jobs; `None` for missing ones.
    async fn get(&self, wanted: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError>;
    /// All jobs with this prefix, by name, in one snapshot; at most `most` bytes.
    async fn list(&self, prefix: String, most: usize) -> Result<Vec<Named>, StorageError>;
    /// The first job name at or after `from` and before `below`.
    async fn first(&self, from: String, below: String) -> Result<Option<String>, StorageError>;
    /// Deletes a job if it exists.
    async fn delete(&self, name: String) -> Result<(), StorageError>;
    /// Deletes all jobs with this prefix.
    async fn delete_prefix(&self, prefix: String) -> Result<(), StorageError>;
    /// Whether this scheduler still owns the jobs of a tenure, as far as it knows. Once it does not,
    /// [`Change::Reset`] follows.
    fn may_trigger(&self, _tenure: Tenure) -> bool {
        true
    }
    /// Queues progress to be stored, with retries. Later progress of a job replaces earlier progress in the
    /// queue.
    fn advance(&self, advance: Advance);
    /// Returns when all queued writes are stored or given up.
    async fn close(&self);
}

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path} (--etcd-data-dir): {cause}")]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The folder holds the files of an etcd.
    #[error(
        "{path} (--etcd-data-dir) holds the files of an etcd server, whose jobs the embedded store cannot read: use \
         another folder; to keep the jobs, run `etcd --data-dir {path} --name <the --id of its scheduler>` and copy \
         them with `scheduler --migrate etcd://localhost:2379 embedded --etcd-data-dir <another folder>`"
    )]
    Etcd {
        /// The `--data-dir` of that etcd.
        path: PathBuf,
    },
    /// The file has a newer format.
    #[error(
        "the store {path} has format {found}, and this scheduler supports {known}: run a newer scheduler, or restore \
         an earlier snapshot"
    )]
    Newer {
        /// The file or folder.
        path: PathBuf,
        /// The format of the file.
        found: i64,
        /// The newest format that this scheduler reads.
        known: i64,
    },
    /// The file belongs to another scheduler.
    #[error(
        "the store {path} belongs to the scheduler {found:?}, not {wanted:?}: set --id={found}, or another \
         --etcd-data-dir"
    )]
    Id {
        /// The file or folder.
        path: PathBuf,
        /// Id of the scheduler that owns the file.
        found: String,
        /// Id of this scheduler.
        wanted: String,
    },
    /// Another process uses the file.
    #[error("the store {path} is in use by another process: stop that, or set another --etcd-data-dir")]
    InUse {
        /// The file or folder.
        path: PathBuf,
    },
    /// A part of the file is damaged.
    #[error("the store {path} is damaged: {what}; restore a snapshot of it (scheduler --restore-from FILE)")]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// The damage, for the message.
        what: String,
    },
    /// The target of the snapshot exists.
    #[error("{0} already exists: move it away first")]
    Exists(PathBuf),
    /// SQLite cannot open the file.
    #[error("cannot open the store {path}: {cause}")]
    Sqlite {
        /// The file or folder.
        path: PathBuf,
        /// SQLite's error.
        cause: rusqlite::Error,
    },
}

/// The store that is full; its message has the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The file in the data folder.
    Embedded,
    /// The etcd that this scheduler runs.
    Child,
    /// An external etcd.
    Etcd,
    /// PostgreSQL.
    Postgres,
}

impl std::fmt::Display for Full {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Embedded => {
                "free disk space, delete jobs, or raise --etcd-space-quota; the call had no effect"
            }
            Self::Child => {
                "the scheduler's etcd has reached --etcd-space-quota: delete jobs (new ones are accepted about a \
                 minute later), or raise that flag and restart the scheduler"
            }
            Self::Etcd => {
                "its etcd has reached its quota (etcd's --quota-backend-bytes): raise that, or delete jobs, compact \
                 and defragment; then run `etcdctl alarm disarm`"
            }
            Self::Postgres => "the disk of PostgreSQL is full: free some space; the call had no effect",
        })
    }
}

/// Why a call of the store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The store is full.
    #[error("the store is full: {0}")]
    Full(Full),
    /// The list is too large.
    #[error("the requested jobs exceed {0} bytes: request fewer at once, for example those of one actor")]
    TooMuch(usize),
    /// The response to a call of etcd's API is too large.
    #[error(
        "the response exceeds {0} bytes: set a limit or keys_only, or omit prev_kv; the call had no effect"
    )]
    AnswerTooLarge(usize),
    /// A stored value does not match its checksum, or cannot be decoded.
    #[error(
        "the store is damaged: {0}; schedule the job again or delete it, or restore a snapshot of the store (scheduler \
         --restore-from FILE)"
    )]
    Damaged(String),
    /// The scheduler is shutting down.
    #[error("the scheduler is shutting down: try another one, or retry later")]
    Closed,
    /// The store rejects the size of the job.
    #[error(
        "the store refuses a job of this size: {0}; use a smaller payload, or allow larger requests in the store"
    )]
    TooLarge(String),
    /// The store is unreachable; the call had no effect.
    #[error("the store is unreachable: {0}; retry later")]
    Unavailable(String),
    /// The store did not answer in time; the call may have had an effect.
    #[error("the store did not answer: {0}; retry later")]
    Unanswered(String),
    /// The store did not answer for a job that is due at once, and the job is not stored: it may have been
    /// stored, triggered and deleted.
    #[error(
        "unknown whether the job was stored: {0}; it is absent now, so it was either triggered already or never \
         stored: retry if a second trigger is harmless"
    )]
    Unknown(String),
    /// Any other error.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StorageError {
    /// Whether a retry may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unanswered(_))
    }
}
