//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;
use outrigger_kube::{ApiError, ConnectError};

/// The injector cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum InjectorError {
    /// The cluster's API.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// The service accounts that may create pods with sidecars.
    #[error("cannot list the service accounts of the cluster: {0}")]
    Accounts(ApiError),
    /// The certificate.
    #[error("cannot obtain an identity from sentry (DAPR_SENTRY_ADDRESS, DAPR_TRUST_ANCHORS_FILE)")]
    Identity(#[from] StartError),
    /// Ports cannot be had.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// A part of the process ended in a panic.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The runtime.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
