//! Checks of documents, manifests and scripts against the sources.
#![allow(clippy::unwrap_used, reason = "tests")]

mod layers;
mod need;
mod reference;
mod sources;
