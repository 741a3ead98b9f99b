//! Crashing schedulers, hosts that come and go, and jobs, under simulated time. A failure prints its input.
#![allow(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod gates;
mod herds;
mod members;
mod random;
mod turns;
mod world;
