//! Decisions without I/O: retries, timeouts, circuit breakers, access control, API lists, canonical paths.
//!
//! Nothing here sleeps, reads a clock on the request path, or talks to anyone: time comes in as an argument and
//! decisions come out as values, so every rule can be tested under simulated time.

pub mod access;
pub mod apilist;
pub mod escape;
mod expression;
pub mod path;
mod quote;
pub mod readings;
pub mod request_path;
pub mod resiliency;
pub mod routing;
pub mod status;
pub mod target;
