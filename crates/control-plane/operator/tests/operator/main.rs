//! A whole operator between a server of the Kubernetes API, a real sentry, and sidecars.
#![expect(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod conversion;
mod running;
mod sidecars;
