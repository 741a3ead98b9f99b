//! Schedulers that crash, hosts that come and go, and jobs, under simulated time. A failure prints the input.
#![allow(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod herds;
mod members;
mod random;
mod turns;
mod world;
