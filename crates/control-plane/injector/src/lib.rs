//! The injector of the control plane: a mutating webhook that adds the sidecar to pods.
//!
//! [`Config`] → [`Injector::build`] → [`Injector::run`]. [`patch`] decides how a pod changes, without I/O.

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
