//! Why work was not done by a worker.

use outrigger_accept::budget;

/// Work items that wait or are with workers, at most; one beyond is refused, and comes again with its reminder.
pub(crate) const MAX_WORK: usize = 1 << 16;

/// The work was not done. It is to be tried again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cancelled {
    /// The stream that the work was sent on ended before the worker answered.
    #[error("the worker that had it disconnected")]
    Disconnected,
    /// The same, and the worker also had a step of an instance whose steps have lost their worker before.
    #[error("the worker that had it disconnected; a workflow that the worker had too may be the cause")]
    DisconnectedWithSuspect {
        /// How often in a row that had happened.
        losses: u32,
    },
    /// The queue is full.
    #[error("{MAX_WORK} work items wait for workers already; start more workers, or limit what is started")]
    TooMuch,
    /// The same, in bytes.
    #[error(
        "the work items of workers hold as many bytes as they may, {0}; start more workers, pass less data, or raise {name}",
        name = budget::VARIABLE
    )]
    TooLargeTogether(usize),
    /// The worker's answer was larger than a message may be.
    #[error(
        "the worker's answer has {size} bytes, which exceeds the {limit} bytes that a message may have; increase daprd \
         --max-body-size, or pass less data"
    )]
    TooLarge {
        /// Bytes of the answer.
        size: usize,
        /// Bytes that it may have.
        limit: usize,
    },
    /// The answer may have reached another sidecar of the app, and got lost on the way from there.
    #[error("its answer may have been lost on the way from another sidecar of the app")]
    Lost,
    /// The sidecar ends.
    #[error("the sidecar ends")]
    Ended,
}
