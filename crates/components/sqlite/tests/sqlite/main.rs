//! State stores and brokers on SQLite, against their conformance suites.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
mod stores;
