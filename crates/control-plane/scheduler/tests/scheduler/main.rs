//! Whole schedulers, in this process and as processes that are killed.

#![allow(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod bad_input;
mod crash;
mod disk;
mod herd;
mod limits;
mod points;
mod process;
mod running;
mod shared;
mod tally;
mod torn;
mod triggers;
