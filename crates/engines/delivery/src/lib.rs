//! Delivery of events to an app: ordering, concurrency, retries and settlement. No I/O.
//!
//! A [`Queue`] connects one source of events (a subscription to a topic, or an input binding) with the app.
//! It accepts events with an optional ordering key, returns the attempts to make now, and turns their
//! outcomes into settlements. Time is an argument, so tests can simulate it.
//!
//! - Events of one key are attempted one at a time, in the order they were offered. An event waiting for a
//!   retry blocks only its own key, and is not in flight.
//! - A rejected event can return the events queued behind it to the source. The queue then attempts none of
//!   the key until the source has received all of them; the source redelivers them in order.
//! - An event whose attempts are over may stay undecided, for example while its dead letter is published.
//!   Its key is paused.
//! - Each offered event is settled once: acknowledged, rejected or released. Only a successful attempt
//!   acknowledges.
//! - The number of unsettled events is bounded, which applies backpressure to the source.
//!
//! [`Watermark`] is for sources that acknowledge positions instead of single events, such as Kafka's
//! offsets.

mod queue;
mod settlement;
mod watermark;

pub use queue::{Attempt, Id, Limits, Queue};
pub use settlement::{AttemptEnd, Settlement, Verdict};
pub use watermark::Watermark;
