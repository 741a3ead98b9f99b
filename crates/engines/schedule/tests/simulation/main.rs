//! Crashing schedulers, hosts that come and go, and jobs, under simulated time. A failure prints its input.
#![allow(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod herds;
mod limits;
mod members;
mod random;
mod turns;
mod world;
