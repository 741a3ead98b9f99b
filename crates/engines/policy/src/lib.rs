//! Policy decisions without I/O: retries, timeouts, circuit breakers, access control, API lists, canonical
//! paths.
//!
//! Nothing here sleeps, reads a clock on the request path, or communicates. Time is an argument and
//! decisions are return values, so every rule can be tested under simulated time.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use outrigger_policy::resiliency::{Backoff, CodeMatch, RetrySpec, RetryState};
//!
//! let spec = RetrySpec {
//!     backoff: Backoff::Constant(Duration::from_secs(5)),
//!     max_retries: Some(1),
//!     matching: CodeMatch::parse("500-504", "").unwrap(),
//! };
//! let now = Instant::now();
//! let mut retries = RetryState::new(&spec, now, 0);
//! assert_eq!(retries.next_delay(&spec, Some(503), now), Some(Duration::from_secs(5)));
//! assert_eq!(retries.next_delay(&spec, Some(503), now), None); // max_retries reached
//! ```

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
pub mod workflow_access;
