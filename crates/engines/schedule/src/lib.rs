//! When jobs are due, to whom they are offered, and what an answer means. No I/O: time comes in as an argument, what
//! has to be stored or sent comes out as a value, so all of it is tested under simulated time.
//!
//! - [`cron`]: times that repeat, as text; also what cron bindings use.
//! - [`moment`]: due times and time-to-live values, as text.
//! - [`job`]: a job's definition and its progress, tick by tick.
//! - [`wheel`]: which of a million jobs is due next.
//! - [`shard`]: which member of a group looks after which job.
//! - [`interner`]: values that many jobs have in common.
//! - [`quorum`]: when the members of a group agree on who belongs to it.
//! - [`engine`]: all of it together: jobs in, deliveries out, answers in, changes to store out.

pub mod cron;
pub mod engine;
mod field;
pub mod interner;
pub mod job;
pub mod moment;
pub mod quorum;
pub mod shard;
pub mod wheel;
