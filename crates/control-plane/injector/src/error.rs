//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;
use outrigger_kube::ConnectError;

/// Why the injector cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum InjectorError {
    /// The Kubernetes API failed.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// No certificate from sentry.
    #[error("cannot obtain an identity from sentry (DAPR_SENTRY_ADDRESS, DAPR_TRUST_ANCHORS_FILE)")]
    Identity(#[from] StartError),
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// A background task panicked.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The async runtime cannot be set up.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
