//! The placement service: tells sidecars, over streams that they open, which of them hosts which actors.
//!
//! [`Config`] → [`Placement::build`] → [`Placement::run`].

pub mod config;
mod dissemination;
mod election;
mod error;
mod frames;
mod metrics;
mod namespaces;
mod placement;
mod report;
mod service;
mod state;
mod term;

pub use config::{Config, ConfigError};
pub use election::ElectionError;
pub use error::PlacementError;
pub use placement::{Addresses, Placement};
