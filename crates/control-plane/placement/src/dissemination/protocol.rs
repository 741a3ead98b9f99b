//! Messages of streams, and the effects of a dissemination.

use std::sync::Arc;
use std::time::Duration;

use outrigger_wire::placement::v1::Host;

/// A stream of a host; later streams have larger numbers.
pub(crate) type StreamId = u64;

/// Time since a fixed instant.
pub(crate) type Time = Duration;

/// The phase of a dissemination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Drain calls in flight, start none.
    Lock,
    /// Install the table.
    Update,
    /// Resume calls.
    Unlock,
}

/// A message of a stream.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// The host with its actor types.
    Report(Arc<Host>),
    /// Acknowledges a phase.
    Answer {
        /// The acknowledged phase.
        phase: Phase,
        /// Version of the dissemination.
        version: u64,
    },
    /// From a host before 1.17, which does not distinguish reports and acknowledgements.
    ReportOrAnswer(Arc<Host>),
}

/// An effect to perform, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The current hosts are the table of this version; later `Update` orders send it.
    Publish {
        version: u64,
        /// Only actors that move must stop.
        handover: bool,
    },
    /// Send an order.
    Order {
        /// Its receiver.
        to: StreamId,
        /// The phase that the order starts.
        phase: Phase,
        /// Version of the dissemination.
        version: u64,
        /// Only actors that move must stop.
        handover: bool,
    },
    /// A dissemination has ended.
    Finished {
        /// Its duration.
        took: Duration,
    },
    /// Close a stream that did not answer in time.
    Expire {
        /// The stream, already removed from the namespace.
        stream: StreamId,
        /// Version of the dissemination.
        version: u64,
    },
}
