//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;

use crate::election::ElectionError;

/// The placement service cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The certificate.
    #[error("cannot obtain an identity from sentry (--sentry-address, --trust-anchors-file)")]
    Identity(#[from] StartError),
    /// Ports cannot be had.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// The election of the leader.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// A part of the process ended in a panic.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The runtime.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
