//! The Kubernetes API, as the control plane uses it: requests, collections that are watched, leases.
//!
//! Connections, credentials and TLS are those of the crate `kube`. Objects are JSON: each part reads the few fields that
//! it needs, and hands on what it does not know. Watching is our own, because lists without a version (as smaller
//! servers of the API give) have to work, and because reconnecting is where a control plane becomes a burden to the API.

pub mod annotations;
mod client;
mod domain;
mod error;
mod kind;
mod lease;
mod list;
mod reflector;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watch;

pub use client::{Client, Patch};
pub use domain::cluster_domain;
pub use error::{ApiError, ConnectError};
pub use kind::{Kind, is_object_name};
pub use lease::{Election, Leadership, Leads, Pace};
pub use reflector::{Progress, Reflector, Scope, WatchState};
pub use store::{Change, Changes, Meta, Store, Watched};
