//! Components without a server, against the suites of their categories.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
mod cron;
mod in_memory;
mod local_secrets;
mod local_storage;
