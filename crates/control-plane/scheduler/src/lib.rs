//! The scheduler of the control plane: it stores jobs and reminders and triggers them when due, over streams
//! that sidecars open.
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
