//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;
use outrigger_kube::ConnectError;

/// Why the operator cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The Kubernetes API failed.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// The Configuration of the control plane cannot be used.
    #[error(
        "cannot use the Configuration {namespace}/{name} of the control plane (--config, NAMESPACE): {cause}"
    )]
    Configuration {
        /// Namespace of the operator.
        namespace: String,
        /// Name of the Configuration.
        name: String,
        /// The reason.
        cause: String,
    },
    /// No certificate from sentry.
    #[error("cannot obtain an identity from sentry (spec.mtls.sentryAddress, --trust-anchors-file)")]
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
