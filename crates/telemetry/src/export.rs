//! Batching exporters.
