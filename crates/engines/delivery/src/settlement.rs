use std::time::Duration;

/// The app's verdict on an event, or the sidecar's in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The app has handled it.
    Acknowledge,
    /// Attempts are pointless. The event goes to the dead-letter topic, if any, and is acknowledged.
    Drop {
        /// The reason, for logs.
        why: &'static str,
        /// Requested by the app.
        by_app: bool,
    },
    /// Failed, for this reason. A policy decides on retries. After the last one the event goes to the
    /// dead-letter topic, if any, or back to the source.
    Reject(String),
}

/// Outcome of an attempt, for the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The event is done: handled, dead-lettered or dropped.
    Acknowledge,
    /// Retry after this time.
    Retry(Duration),
    /// Return it to the source.
    Reject,
    /// Return it to the source with the events waiting behind it, which the source redelivers in order. The
    /// queue rejects further events of the key until [`Queue::reopen`](crate::Queue::reopen).
    RejectKey,
    /// The last attempt is over, but the event is not settled yet, for example while its dead letter is
    /// published. It is not in flight, and its key is paused, until it is finished again.
    Undecided,
}

/// The settlement of an event towards its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The event is done and will not be redelivered.
    Acknowledge,
    /// Its attempts failed. The source redelivers it to any consumer.
    Reject,
    /// It was not attempted, its attempt was aborted, or its key was revoked. The source redelivers it
    /// without counting a failure.
    Release,
}
