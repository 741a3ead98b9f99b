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

/// The scheduler cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The store.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store, once open.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The store, later.
    #[error(transparent)]
    StoreEnded(#[from] StoreEnded),
    /// An endpoint of the etcd is not valid.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Jobs could not be copied.
    #[error("{0}")]
    Migrate(#[from] MigrateError),
    /// The connection string of PostgreSQL is not valid.
    #[error("--postgres: {0}")]
    Postgres(String),
    /// The etcd that it runs.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The certificate.
    #[error("cannot obtain an identity from sentry (--sentry-address, --trust-anchors-file)")]
    Identity(#[from] StartError),
    /// Ports cannot be had.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// The address to announce to sidecars cannot be found.
    #[error("{0}; or give --override-broadcast-host-port")]
    Address(#[from] HostAddressError),
    /// The cluster's API.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// A part of the process ended in a panic.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The runtime.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
