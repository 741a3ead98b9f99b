//! The scheduler of the control plane: it keeps jobs and reminders, and triggers them, over streams that sidecars open,
//! when they are due.
//!
//! [`Config`] → [`Scheduler::build`] → [`Scheduler::run`].

mod backlog;
pub mod config;
mod defragment;
mod error;
mod etcd_api;
mod etcd_child;
mod fault;
mod metrics;
mod migrate;
mod names;
mod namespaces;
mod opened;
mod proto;
mod scheduler;
mod service;
mod storage;
mod stored;
mod triggers;

pub use config::{Config, ConfigError};
pub use error::SchedulerError;
pub use etcd_child::ChildError;
pub use migrate::MigrateError;
pub use scheduler::{Addresses, Scheduler};
pub use storage::etcd::EndpointError;
pub use storage::{OpenError, StorageError};
pub use triggers::StoreEnded;
