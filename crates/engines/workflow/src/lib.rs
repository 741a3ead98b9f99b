//! What a workflow instance does. Everything is a function of its history and an event that comes: [`Instance`] holds
//! what is stored, [`Step`] what the worker is asked, [`Outcome`] what has to be sent, set and stored afterwards.
//! There is no I/O here; time and random ids are arguments.

mod actions;
mod commit;
pub mod create;
pub mod error;
pub mod event;
pub mod facts;
mod history;
mod instance;
mod layered;
pub mod names;
mod origin;
mod payload;
mod rerun;
mod step;
pub mod stored;
mod waits;

pub use create::Creation;
pub use instance::{Added, Additions, Instance, Run};
pub use origin::{Arrival, Origin};
pub use payload::Limit;
pub use rerun::Rerun;
pub use step::{Answered, MAX_RESTARTS, Message, Outcome, Step, StepContext, StepStart, Timer};
pub use stored::{Change, Counts};
pub use waits::Wait;
