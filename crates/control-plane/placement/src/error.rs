//! Errors of the whole process.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;
use outrigger_identity::StartError;

use crate::election::ElectionError;

/// The placement service failed to start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The certificate could not be obtained.
    #[error("cannot obtain an identity from sentry (--sentry-address, --trust-anchors-file)")]
    Identity(#[from] StartError),
    /// A port could not be bound.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// Leader election failed.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// A task panicked.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The runtime could not be set up.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}
