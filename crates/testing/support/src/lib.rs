//! Utilities for tests and measurements.
//!
//! `pages` compares documents with the code, `log_lines` records the log of a test's thread, `ports` finds
//! free ports, and `skip` reports a test that cannot run on this machine.

pub mod log_lines;
pub mod pages;
pub mod ports;
pub mod skip;
