//! Scheduling of jobs, selection of their recipients, and processing of answers. No I/O: time is an
//! argument, and everything to store or send is a return value, so all of it is tested under simulated
//! time.
//!
//! - [`cron`]: recurring times as text; also used by cron bindings.
//! - [`moment`]: due times and TTL values as text.
//! - [`job`]: a job's definition and its progress, tick by tick.
//! - [`wheel`]: a timing wheel for a million jobs.
//! - [`shard`]: assignment of jobs to the members of a group.
//! - [`interner`]: values shared by many jobs.
//! - [`quorum`]: agreement of a group on its members.
//! - [`engine`]: all of it together: jobs in, deliveries out; answers in, state changes to store out.

pub mod cron;
pub mod engine;
mod field;
pub mod interner;
pub mod job;
pub mod moment;
pub mod quorum;
pub mod shard;
pub mod wheel;
