//! The catalog against manifests and documentation.
#![allow(clippy::unwrap_used, reason = "tests")]

mod addresses;
mod features;
mod reference;
