//! The scheduler of the control plane: it keeps jobs and reminders, and triggers them, over streams that sidecars open,
//! when they are due.
//!
//! [`Config`] → [`Scheduler::build`] → [`Scheduler::run`].

pub mod config;
mod error;
mod etcd_api;
mod metrics;
mod names;
mod proto;
mod scheduler;
mod service;
mod storage;
mod stored;
mod triggers;

pub use config::{Config, ConfigError};
pub use error::SchedulerError;
pub use scheduler::{Addresses, Scheduler};
pub use storage::{OpenError, StorageError};
pub use triggers::StoreEnded;
