use std::time::Duration;

/// What the app says of an event, or the sidecar in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The app has handled it.
    Acknowledge,
    /// No attempt is worthwhile. It goes to the dead-letter topic, if there is one, and is acknowledged.
    Drop {
        /// The reason, for logs.
        why: &'static str,
        /// The app asked for it.
        by_app: bool,
    },
    /// It failed, for this reason. A policy decides on retries. After the last one it goes to the dead-letter topic, if
    /// there is one, or back to the source.
    Reject(String),
}

/// How an attempt ended, for the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The event is done: handled, dead-lettered or dropped.
    Acknowledge,
    /// Attempt it again after this time.
    Retry(Duration),
    /// Return it to the source.
    Reject,
    /// Return it to the source with the events that wait behind it. The source delivers them again in their order. The
    /// queue refuses further events of the key until [`Queue::reopen`](crate::Queue::reopen).
    RejectKey,
    /// The last attempt is over, but the event is not settled, because its dead letter is being published for instance.
    /// Its key is paused, and it is not in flight, until the event is finished once more.
    Undecided,
}

/// What the source hears of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The event is done. It does not come again.
    Acknowledge,
    /// Its attempts failed. The source delivers it again, to any consumer.
    Reject,
    /// It was not attempted, its attempt was cut short, or its key was revoked. The source delivers it again, and does not
    /// count a failure.
    Release,
}
