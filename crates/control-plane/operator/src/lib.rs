//! The operator of the control plane: it watches the resources of a Kubernetes cluster and serves them to
//! sidecars, each limited to its namespace and app.
//!
//! [`Config`] → [`Operator::build`] → [`Operator::run`].

mod authorize;
pub mod config;
mod convert;
mod copies;
mod definition;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod metrics;
mod operator;
mod resource;
mod secrets;
mod service;
mod services;
mod updates;
mod watchdog;

pub use config::{Config, ConfigError};
pub use error::OperatorError;
pub use operator::{Addresses, Operator};
