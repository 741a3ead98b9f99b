//! A complete operator with a fake Kubernetes API server, a real sentry, and sidecars.
#![expect(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod conversion;
mod running;
mod sidecars;
