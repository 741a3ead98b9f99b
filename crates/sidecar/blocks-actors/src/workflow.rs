//! Workflows: durable functions of the app, run in steps by its workers.
//!
//! An instance is an internal actor, called on whichever sidecar hosts it. Workers open streams of work
//! items; while one is connected, this sidecar hosts the actors of its app's workflows.
//!
//! A module uses only modules below it:
//!
//! 1. `manage`: the management API: list, purge, rerun, status.
//! 2. `client`: starts instances, sends events, waits for a status.
//! 3. `service`: [`Workflows`], which hosts the actors while workers are connected.
//! 4. `instance`: the actors of instances: inbox, run, store, cache.
//! 5. `activity`: the actors of activities: executions, failures.
//! 6. `worker`: the queue of work items, their streams and the answers.
//! 7. `own`: work that the sidecar does itself.
//! 8. `engine`, `reminders`, `access`, `protocol`, `error`, `spans`, `metrics`: shared by all of them.

pub mod access;
mod activity;
mod client;
mod engine;
pub(crate) mod error;
mod instance;
mod limits;
mod manage;
pub mod metrics;
mod own;
mod protocol;
mod reminders;
mod service;
mod signing;
mod spans;
mod worker;

pub use client::Start;
pub use engine::Dependencies;
pub use error::is_final;
pub use limits::scheduler_limits;
pub use manage::error::{Action, InstanceId, WorkflowError};
pub use manage::list::{Listed, Listing};
pub use manage::overview::{Overview, WorkflowWait, WorkflowWork};
pub use manage::purge::Purged;
pub use manage::status::Waits;
pub use own::OwnWork;
pub use service::Workflows;
pub use spans::parent_of;
pub use worker::item::ItemCodec;
pub use worker::oversized::Oversized;
pub use worker::stream::WorkItems;
pub use worker::workers::Workers;
