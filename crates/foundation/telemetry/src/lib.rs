//! Logs, metrics, trace context and span export.
//!
//! All but the log output is per instance: two sidecars in one process have separate [`metrics`] registries
//! and [`trace::Tracer`]s. The log output is process-wide because `tracing` is.

pub mod apilog;
pub mod export;
pub mod log;
pub mod metrics;
pub mod trace;
