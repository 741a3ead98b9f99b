//! Client of the Kubernetes API for the control plane: requests, watched collections, leases.
//!
//! Connections, credentials and TLS come from the crate `kube`. Objects are JSON: each caller reads the few
//! fields it needs and preserves unknown ones.
//!
//! Watching does not use `kube-runtime`, for four reasons. It fails on lists without a version, which small
//! API servers return. It bounds neither pages, nor events, nor collections. It never lists again after a
//! refused watch, not even after status 410. Its store keeps complete objects: a component takes 8.7 KB
//! there, and 1.1 KB here.

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
