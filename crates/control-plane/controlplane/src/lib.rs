//! The shared parts of control plane processes: command line and process lifetime, gRPC servers, webhooks,
//! identity, health, metrics and tasks.

pub mod actor_types;
pub mod config;
pub mod grpc;
pub mod health;
mod identity;
mod monitoring;
mod process;
mod tasks;
pub mod webhook;

pub use identity::{TlsConfig, obtain, obtain_into};
pub use monitoring::Monitoring;
pub use process::{Binary, environment, host_name};
pub use tasks::{TaskFailed, chain, fine, serve_unless_stopped, supervise};
