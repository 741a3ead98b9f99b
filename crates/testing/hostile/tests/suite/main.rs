//! Hostile peers against every listener of every server, while an honest client is served beside them.
//!
//! The rows are in [`attacks`], the columns in [`listeners`]. Each cell is run against the binaries as child processes
//! and has a ceiling for the memory and one for the work (CPU time) of the process it attacks. `HOSTILE=text` runs the
//! attacks whose name contains the text.
#![cfg(target_os = "linux")]
#![expect(unreachable_pub, reason = "modules of one binary")]
#![expect(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod answers;
mod app;
mod attacks;
mod brokers;
mod child;
mod fleet;
mod h1;
mod h2;
mod honest;
mod listeners;
mod mdns;
mod peer;
mod run;
