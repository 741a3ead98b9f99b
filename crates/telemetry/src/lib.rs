//! Logs, metrics, trace context and span export.
