//! Why a worker did not do its work.

use outrigger_accept::budget;

/// Maximum work items queued or with workers; further ones are rejected and retried by their reminder.
pub(crate) const MAX_WORK: usize = 1 << 16;

/// The work was not done and is to be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cancelled {
    /// The worker's stream ended before it answered.
    #[error("its worker disconnected")]
    Disconnected,
    /// As `Disconnected`, but the worker also had a step of an instance that has lost workers before.
    #[error("its worker disconnected; another workflow on that worker may be the cause")]
    DisconnectedWithSuspect {
        /// That instance's losses in a row.
        losses: u32,
    },
    /// The queue is full.
    #[error(
        "the limit of {MAX_WORK} pending work items is reached; start more workers, or start fewer workflows"
    )]
    TooMuch,
    /// The queue's memory is full.
    #[error(
        "pending work items have reached the limit of {0} bytes; start more workers, pass less data, or raise {name}",
        name = budget::VARIABLE
    )]
    TooLargeTogether(usize),
    /// The worker's answer exceeds the message limit.
    #[error(
        "the worker's answer has {size} bytes, more than the limit of {limit} bytes; increase daprd \
         --max-body-size, or pass less data"
    )]
    TooLarge {
        /// Size of the answer, bytes.
        size: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The answer may have been lost on its way from another sidecar of the app.
    #[error("its answer may have been lost between sidecars of the app")]
    Lost,
    /// The sidecar cannot do its own work yet.
    #[error("the sidecar has not registered it yet")]
    NotRegistered,
    /// The sidecar is shutting down.
    #[error("the sidecar is shutting down")]
    Ended,
}
