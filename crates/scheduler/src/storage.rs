//! Where jobs are kept. An engine of triggers ([`crate::triggers`]) follows what is stored; callers are answered when
//! what they asked for is.

pub(crate) mod embedded;

use std::path::PathBuf;

use async_trait::async_trait;
use outrigger_schedule::engine::Name;
use outrigger_schedule::job::Progress;

/// Keys of jobs begin with this, and go on with the job's name.
pub(crate) const JOBS: &str = "dapr/jobs/";
/// Keys of counters.
pub(crate) const COUNTERS: &str = "dapr/counters/";
/// Keys of replicas.
pub(crate) const LEADERSHIP: &str = "dapr/leadership/";

/// Changes that wait for the engine; whoever writes waits beyond it.
pub(crate) const CHANGES: usize = 1024;

/// Something that was stored, in the order it was.
#[derive(Debug)]
pub(crate) enum Change {
    /// A job, new or in place of another.
    Put {
        name: Name,
        /// Of this version of the job.
        revision: u64,
        job: Vec<u8>,
        counter: Option<Vec<u8>>,
    },
    /// A job is gone.
    Deleted(Name),
    /// All jobs that were stored before the start have been told.
    Loaded,
}

/// How far a job is, to be stored: or that it is over.
#[derive(Debug, Clone)]
pub(crate) struct Advance {
    pub(crate) name: Name,
    /// Of the job that this belongs to; one with another revision is left as it is.
    pub(crate) revision: u64,
    /// `None`: it is over, and is deleted.
    pub(crate) progress: Option<Progress>,
}

/// What became of a job that a caller wants stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduled {
    Stored,
    /// There is one of that name already.
    Exists,
}

/// A job by its name.
pub(crate) type Named = (String, Vec<u8>);

/// A store of jobs.
#[async_trait]
pub(crate) trait Storage: Send + Sync {
    /// Stores a job; `overwrite`: in place of one of that name, whose progress is forgotten.
    async fn schedule(&self, name: String, job: Vec<u8>, overwrite: bool) -> Result<Scheduled, StorageError>;
    /// The jobs of these names; `None` for those that there are not.
    async fn get(&self, names: Vec<Name>) -> Result<Vec<Option<Vec<u8>>>, StorageError>;
    /// All jobs whose names begin so, by name, as they are at one moment; at most `most` bytes.
    async fn list(&self, prefix: String, most: usize) -> Result<Vec<Named>, StorageError>;
    /// Deletes a job, if there is one.
    async fn delete(&self, name: String) -> Result<(), StorageError>;
    /// Deletes all jobs whose names begin so.
    async fn delete_prefix(&self, prefix: String) -> Result<(), StorageError>;
    /// Stores how far a job is, soon; tries again until it is. Later ones for a job overtake earlier ones.
    fn advance(&self, advance: Advance);
    /// Ends when everything that was asked for is stored, or cannot be.
    async fn close(&self);
}

/// A store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder.
    #[error("cannot use the data folder {path} (--etcd-data-dir): {cause}")]
    Folder {
        /// Where.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The folder holds another product's data.
    #[error(
        "the data folder {path} (--etcd-data-dir) holds the files of an etcd server, from Dapr's scheduler: this \
         scheduler keeps its jobs in a file of its own and would not see those; give it another folder, and schedule \
         the jobs again or copy them with the commands of `dapr scheduler export` and `import`"
    )]
    Etcd {
        /// Where.
        path: PathBuf,
    },
    /// The file is of a later version.
    #[error(
        "the store {path} has format {found}, and this scheduler knows {known}: run the newer scheduler that wrote \
         it, or restore a snapshot of the time before"
    )]
    Newer {
        /// Where.
        path: PathBuf,
        /// The file's.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file belongs to another scheduler.
    #[error(
        "the store {path} belongs to the scheduler {found:?}, and this one is {wanted:?}: give --id={found}, or \
         another --etcd-data-dir"
    )]
    Id {
        /// Where.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who asks.
        wanted: String,
    },
    /// The file is in use.
    #[error(
        "the store {path} is in use by another process: end it, or give this one another --etcd-data-dir"
    )]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Part of the file is damaged.
    #[error("the store {path} is damaged: {what}; restore a snapshot of it (scheduler --restore-from FILE)")]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is broken.
        what: String,
    },
    /// The snapshot would overwrite something.
    #[error("{0} exists already: move it away first")]
    Exists(PathBuf),
    /// SQLite.
    #[error("cannot open the store {path}: {cause}")]
    Sqlite {
        /// Where.
        path: PathBuf,
        /// Why not.
        cause: rusqlite::Error,
    },
}

/// A store does not do what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// No room.
    #[error(
        "the store is full: free disk space, delete jobs, or raise --etcd-space-quota; nothing was stored of this call"
    )]
    Full,
    /// The list would be too long.
    #[error("the jobs asked for are more than {0} bytes: ask for less at once, for example for one actor")]
    TooMuch(usize),
    /// The scheduler ends.
    #[error("the scheduler is shutting down: try another one, or again later")]
    Closed,
    /// Anything else.
    #[error("the store failed: {0}")]
    Failed(String),
}
