//! A scheduler that crashes, hosts that come and go, and jobs, under simulated time. A failure prints the input.
#![allow(clippy::unwrap_used, reason = "tests")]

mod clocks;
mod herds;
mod random;
mod turns;
mod world;
