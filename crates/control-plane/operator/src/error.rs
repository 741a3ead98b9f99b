//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;
use outrigger_kube::ConnectError;

/// The operator cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The cluster's API.
    #[error(transparent)]
    Cluster(#[from] ConnectError),
    /// The Configuration of the control plane.
    #[error(
        "cannot use the Configuration {namespace}/{name} of the control plane (--config, NAMESPACE): {cause}"
    )]
    Configuration {
        /// The namespace of the operator.
        namespace: String,
        /// Name of the Configuration.
        name: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The certificate.
    #[error("cannot obtain an identity from sentry (spec.mtls.sentryAddress, --trust-anchors-file)")]
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
