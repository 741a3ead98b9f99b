//! Components without a server, against their conformance suites.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
mod cron;
mod in_memory;
mod local_secrets;
mod local_storage;
