//! Virtual actors without I/O: placement, turns, idle detection and moves. Time is an argument, so tests run
//! under simulated time.
//!
//! - [`ring`]: the host of an actor, by the consistent hashing of the contract.
//! - [`settings`]: the app's answer to `GET /dapr/config`.
//! - [`turns`]: one call at a time for each actor, in order, with reentrancy.
//! - [`shard`]: the active actors of a type, and idle detection.
//! - [`dissemination`]: the phases in which placement distributes a new table.
//! - [`routes`]: routing of calls by the table, also during a dissemination.
//! - [`recurrence`]: due times of timers, and their formats.

pub mod dissemination;
pub mod recurrence;
pub mod ring;
pub mod routes;
pub mod settings;
pub mod shard;
pub mod turns;
