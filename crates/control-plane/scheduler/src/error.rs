//! Errors of the process as a whole.

use std::io;

use outrigger_accept::{BindErrors, address::HostAddressError};
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;
use outrigger_kube::ConnectError;

use crate::etcd_child::ChildError;
use crate::migrate::MigrateError;
use crate::storage::etcd::EndpointError;
use crate::storage::{OpenError, StorageError};
use crate::triggers::StoreEnded;

/// Why the scheduler cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The open store failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The store failed while triggering jobs.
    #[error(transparent)]
    StoreEnded(#[from] StoreEnded),
    /// An etcd endpoint is not valid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Copying the jobs failed.
    #[error("{0}")]
    Migrate(#[from] MigrateError),
    /// The connection string of PostgreSQL is not valid.
    #[error("--postgres: {0}")]
    Postgres(String),
    /// The etcd child process failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// No certificate from sentry.
    #[error("cannot obtain an identity from sentry (--sentry-address, --trust-anchors-file)")]
    Identity(#[from] StartError),
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// The address to announce to sidecars cannot be determined.
    #[error("{0}; or set --override-broadcast-host-port")]
    Address(#[from] HostAddressError),
    /// The Kubernetes API failed.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// A background task panicked.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The async runtime cannot be set up.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
