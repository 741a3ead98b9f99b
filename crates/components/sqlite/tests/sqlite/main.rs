//! State stores and brokers on SQLite, against the suites of their categories.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
mod stores;
