//! Tests of whole placement services, in this process and as killed processes.

#![allow(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod bad_input;
mod cluster;
mod dissemination;
mod lease;
mod many;
mod process;
mod replicas;
mod running;
