//! Where jobs are kept. An engine of triggers ([`crate::triggers`]) follows what is stored; callers are answered when
//! what they asked for is.

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
use tokio::sync::oneshot;

use crate::backlog::Share;

/// Keys of jobs begin with this, and go on with the job's name.
pub(crate) const JOBS: &str = "dapr/jobs/";
/// Keys of counters.
pub(crate) const COUNTERS: &str = "dapr/counters/";
/// Keys of replicas.
pub(crate) const LEADERSHIP: &str = "dapr/leadership/";

/// Changes that wait for the engine; whoever writes waits beyond it.
pub(crate) const CHANGES: usize = 1024;

/// A time during which this scheduler looks after jobs; between two, others may have looked after them.
pub(crate) type Tenure = u64;

/// Something that happened in the store, in the order it did.
#[derive(Debug)]
pub(crate) enum Change {
    /// A job, new or in place of another.
    Put {
        name: Name,
        version: Version,
        job: Vec<u8>,
        counter: Option<Vec<u8>>,
    },
    /// A job is gone.
    Deleted {
        name: Name,
        /// Of the store, when it was deleted.
        revision: u64,
    },
    /// All jobs that were stored before have been told.
    Loaded,
    /// Other schedulers come or go: nothing is sent until [`Change::Reset`]. It is answered when no answer of an app
    /// is waited for, and all that came was given to the store.
    Pause(oneshot::Sender<()>),
    /// This scheduler looks after no job any more; those that it looks after from now on, in this tenure, are told next.
    Reset(Tenure),
}

/// How far a job is, to be stored: or that it is over.
#[derive(Debug, Clone)]
pub(crate) struct Advance {
    pub(crate) name: Name,
    /// Of the job that this belongs to; another one is left as it is.
    pub(crate) version: Version,
    /// When it was found out: what is known of another tenure is old.
    pub(crate) tenure: Tenure,
    /// `None`: it is over, and is deleted.
    pub(crate) progress: Option<Progress>,
    /// Dropped when it is stored, or never will be.
    #[expect(dead_code, reason = "it counts until it is dropped")]
    pub(crate) share: Share,
}

/// What became of a job that a caller wants stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduled {
    Stored,
    /// There is one of that name already.
    Exists,
}

/// A job that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct JobRef {
    pub(crate) name: Name,
    /// Written at this revision and no other; `None`: any.
    pub(crate) revision: Option<u64>,
}

impl JobRef {
    /// Whether this is it.
    pub(crate) fn is(&self, pair: &pair::Pair) -> bool {
        self.revision
            .is_none_or(|revision| revision == pair.modified.unsigned_abs())
    }
}

/// A job by its name.
pub(crate) type Named = (String, Vec<u8>);

/// The addresses of all schedulers of the store, for sidecars; none until they are known.
pub(crate) type Hosts = Arc<[String]>;

/// A store of jobs.
#[async_trait]
pub(crate) trait Storage: Send + Sync {
    /// Stores a job; `overwrite`: in place of one of that name, whose progress is forgotten.
    async fn schedule(&self, name: String, job: Vec<u8>, overwrite: bool) -> Result<Scheduled, StorageError>;
    /// The jobs that are asked for; `None` for those that there are not.
    async fn get(&self, wanted: Vec<JobRef>) -> Result<Vec<Option<Vec<u8>>>, StorageError>;
    /// All jobs whose names begin so, by name, as they are at one moment; at most `most` bytes.
    async fn list(&self, prefix: String, most: usize) -> Result<Vec<Named>, StorageError>;
    /// The first name of a job from this one on, and before the other.
    async fn first(&self, from: String, below: String) -> Result<Option<String>, StorageError>;
    /// Deletes a job, if there is one.
    async fn delete(&self, name: String) -> Result<(), StorageError>;
    /// Deletes all jobs whose names begin so.
    async fn delete_prefix(&self, prefix: String) -> Result<(), StorageError>;
    /// Whether the jobs that were told in a tenure are this scheduler's still, as far as it can know. Once they are not,
    /// [`Change::Reset`] follows.
    fn may_trigger(&self, _tenure: Tenure) -> bool {
        true
    }
    /// Stores how far a job is, soon; tries again until it is. Later ones for a job overtake earlier ones.
    fn advance(&self, advance: Advance);
    /// Ends when everything that was asked for is stored, or cannot be.
    async fn close(&self);
}

/// A store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path} (--etcd-data-dir): {cause}")]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system answered.
        cause: std::io::Error,
    },
    /// The folder holds the files of an etcd.
    #[error(
        "{path} (--etcd-data-dir) holds the files of an etcd server, and the embedded store would not see its jobs: to keep \
         them, run `etcd --data-dir {path} --name <its name, the --id of its scheduler>` and copy them with `scheduler \
         --migrate etcd://localhost:2379 embedded --etcd-data-dir <another folder>`; in any case go on with another folder"
    )]
    Etcd {
        /// The folder that the etcd has as its `--data-dir`.
        path: PathBuf,
    },
    /// The file is of a later version.
    #[error(
        "the store {path} has format {found}, and this scheduler supports {known}: run the newer scheduler that \
         wrote it, or restore an earlier snapshot"
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
        "the store {path} belongs to the scheduler {found:?}, and this one is {wanted:?}: give --id={found}, or \
         another --etcd-data-dir"
    )]
    Id {
        /// The file or folder.
        path: PathBuf,
        /// Id of the scheduler whose store it is.
        found: String,
        /// Id of this scheduler.
        wanted: String,
    },
    /// The file is in use.
    #[error(
        "the store {path} is in use by another process: end it, or give this one another --etcd-data-dir"
    )]
    InUse {
        /// The file or folder.
        path: PathBuf,
    },
    /// Part of the file is damaged.
    #[error("the store {path} is damaged: {what}; restore a snapshot of it (scheduler --restore-from FILE)")]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// The damage, for the message.
        what: String,
    },
    /// The snapshot would overwrite something.
    #[error("{0} exists already: move it away first")]
    Exists(PathBuf),
    /// SQLite cannot open it.
    #[error("cannot open the store {path}: {cause}")]
    Sqlite {
        /// The file or folder.
        path: PathBuf,
        /// SQLite's error.
        cause: rusqlite::Error,
    },
}

/// Which store has no room left. What makes some is told with the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The file in the data folder.
    Embedded,
    /// The etcd that this scheduler runs.
    Child,
    /// An etcd that somebody else runs.
    Etcd,
    /// PostgreSQL.
    Postgres,
}

impl std::fmt::Display for Full {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Embedded => {
                "free disk space, delete jobs, or raise --etcd-space-quota; nothing was stored of this call"
            }
            Self::Child => {
                "the etcd of the scheduler has reached --etcd-space-quota: delete jobs, and it takes new ones again within a \
                 minute or so, or raise that flag and restart the scheduler"
            }
            Self::Etcd => {
                "its etcd has reached its quota (--quota-backend-bytes of etcd): raise that, or delete jobs, compact and \
                 defragment it; then run `etcdctl alarm disarm`, without which it stays as it is"
            }
            Self::Postgres => "the disk of PostgreSQL has no space left: free some; nothing was stored of this call",
        })
    }
}

/// A store does not do what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// No room.
    #[error("the store is full: {0}")]
    Full(Full),
    /// The list would be too long.
    #[error(
        "the requested jobs have more than {0} bytes: request fewer at once, for example those of one actor"
    )]
    TooMuch(usize),
    /// The answer to a call of etcd's API would be too long.
    #[error(
        "the answer is larger than {0} bytes: set a limit or keys_only, or leave out prev_kv; nothing was stored of this \
         call"
    )]
    AnswerTooLarge(usize),
    /// What is stored is not what was written.
    #[error(
        "the store is damaged: {0}; schedule the job again or delete it, or restore a snapshot of the store (scheduler \
         --restore-from FILE)"
    )]
    Damaged(String),
    /// The scheduler ends.
    #[error("the scheduler is shutting down: try another one, or again later")]
    Closed,
    /// A job that the store does not take.
    #[error(
        "the store refuses a job of this size: {0}; give it a smaller payload, or allow larger requests in the store"
    )]
    TooLarge(String),
    /// It does not answer.
    #[error("the store cannot be reached: {0}; try again later")]
    Unavailable(String),
    /// It was asked, and did not answer: what was asked for may be done, or not.
    #[error("the store did not answer: {0}; try again later")]
    Unanswered(String),
    /// It did not answer for a job that is due at once, and that is not there: it may have been, and be over.
    #[error(
        "it is unknown whether the job was stored: {0}; it is not stored now, so it was triggered already or never \
         stored: try again if triggering it twice does no harm"
    )]
    Unknown(String),
    /// Anything else.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StorageError {
    /// Whether another attempt may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unanswered(_))
    }
}
