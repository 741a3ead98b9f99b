//! The catalog of this build against manifests and documents.
#![allow(clippy::unwrap_used, reason = "tests")]

mod addresses;
mod features;
mod reference;
