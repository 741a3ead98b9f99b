//! Virtual actors without I/O: where an actor lives, whose turn it is, when it is idle, and what a new table moves.
//! Time comes in as an argument, so all of it is tested under simulated time.
//!
//! - [`ring`]: which host an actor belongs to, by consistent hashing exactly as the contract has it.
//! - [`settings`]: what an app says about its actors in `GET /dapr/config`.
//! - [`turns`]: one call at a time for each actor, in order, with reentrancy.
//! - [`shard`]: the active actors of a type, and which of them have been idle for too long.
//! - [`dissemination`]: the phases in which placement brings a new table.
//! - [`routes`]: the way of a call by that table, and while a new one comes.
//! - [`recurrence`]: when timers are due, and the forms of their times.

pub mod dissemination;
pub mod recurrence;
pub mod ring;
pub mod routes;
pub mod settings;
pub mod shard;
pub mod turns;
