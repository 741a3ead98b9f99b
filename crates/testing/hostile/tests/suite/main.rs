//! Hostile peers against every listener of every server, while an honest client must be served.
//!
//! The rows are in [`attacks`], the columns in [`listeners`]. Each cell runs against the binaries as child
//! processes, with ceilings for the memory and the CPU time of the attacked process. `HOSTILE=text` selects
//! the attacks whose name contains the text.
#![cfg(target_os = "linux")]
#![expect(unreachable_pub, reason = "modules of one binary")]
#![expect(clippy::unwrap_used, reason = "shared test functions may panic")]

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
