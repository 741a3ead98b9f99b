//! Decides how events reach an app: their order, the attempts at once, retries, and the settlement of each. No I/O.
//!
//! A [`Queue`] stands between one source of events (a subscription to a topic, an input binding) and the app. It takes
//! events with an optional ordering key, hands out the attempts that may be made now, and turns their ends into settlements.
//! Time is an argument, so tests simulate it.
//!
//! - Events of one key are attempted one at a time, in the order they were offered. An event that waits for its next attempt
//!   delays its own key alone, and is not in flight.
//! - A rejected event can take those behind it along. Then the queue attempts none of the key until the source has all of
//!   them, and delivers them again in their order.
//! - An event whose attempts are over may stay undecided, while its dead letter is published for instance. Its key is paused.
//! - Each offered event is settled once: acknowledged, rejected or released. Only an attempt that ended well acknowledges.
//! - The number of unsettled events is bounded: a source that offers more has to wait.
//!
//! [`Watermark`] is for sources that take positions instead of single events, as Kafka's offsets.

mod queue;
mod settlement;
mod watermark;

pub use queue::{Attempt, Id, Limits, Queue};
pub use settlement::{AttemptEnd, Settlement, Verdict};
pub use watermark::Watermark;
