//! How events reach an app: in which order, how many at once, when again, and what the broker is told. No I/O.
//!
//! A [`Queue`] stands between one source of events (a subscription to a topic, an input binding) and the app. It takes
//! events with an optional ordering key, hands out the attempts that may be made now, and turns their results into
//! what the source has to be told. Time comes in as an argument, so all of it is tested under simulated time.
//!
//! - Events with the same key are attempted one at a time and in the order they were offered. An event that waits for
//!   its next attempt holds back its own key alone, and takes no place among the attempts in flight.
//! - One that is returned to the source can take those behind it along: then none of its key is attempted until the source
//!   has all of them, and delivers them again in their order.
//! - One whose attempts are over may stay undecided, while its dead letter is published for instance: its key is paused.
//! - Every event that was offered is settled exactly once: acknowledged, rejected or released. Nothing is acknowledged unless
//!   its attempt ended well.
//! - The number of unsettled events is bounded: a source that offers more has to wait.
//!
//! [`Watermark`] is for sources that are told positions instead of single events, as Kafka's offsets.

mod queue;
mod settlement;
mod watermark;

pub use queue::{Attempt, Id, Limits, Queue};
pub use settlement::{AttemptEnd, Settlement, Verdict};
pub use watermark::Watermark;
