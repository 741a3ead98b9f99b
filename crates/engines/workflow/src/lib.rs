//! The rules of a workflow instance, as functions of its history and an incoming event. [`Instance`] is the
//! stored state, [`Step`] the request to the worker, [`Outcome`] what to send, schedule and store. There is
//! no I/O; time and random ids are arguments.

mod actions;
mod cascade;
mod commit;
pub mod create;
mod delivery;
pub mod error;
pub mod event;
pub mod facts;
mod history;
mod instance;
mod layered;
pub mod names;
mod origin;
mod payload;
mod propagation;
mod rerun;
pub mod signing;
mod step;
pub mod stored;
mod waits;

pub use create::Creation;
pub use delivery::Delivery;
pub use instance::{Added, Additions, Instance, Run, VerifyResult};
pub use origin::{Arrival, Origin};
pub use payload::Limit;
pub use propagation::{Propagation, scope};
pub use rerun::Rerun;
pub use signing::RowCounts;
pub use step::{Answered, MAX_RESTARTS, Message, Outcome, Step, StepContext, StepStart, Timer};
pub use stored::{Change, Counts};
pub use waits::Wait;
