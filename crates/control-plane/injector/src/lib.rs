//! The injector of the control plane: a mutating webhook that gives pods their sidecar.
//!
//! [`Config`] → [`Injector::build`] → [`Injector::run`]. What a pod becomes is decided in [`patch`], without I/O.

mod callers;
pub mod config;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod injector;
mod metrics;
mod mtls;
pub mod patch;
mod registration;
mod review;

pub use config::{Config, ConfigError};
pub use error::InjectorError;
pub use injector::{Addresses, Injector};
