//! The generated messages against Dapr's descriptors, and the codecs that pass bytes through.
#![allow(clippy::unwrap_used, reason = "tests")]

mod descriptors;
mod invoke;
