//! The Kubernetes API, as the control plane uses it: requests, collections that are watched, leases.
//!
//! Connections, credentials and TLS are those of the crate `kube`. Objects are JSON: each part reads the few fields that
//! it needs, and hands on what it does not know.
//!
//! Watching does not use the crate `kube-runtime`. It fails on lists without a version, which small servers of the API
//! give; it bounds neither a page, nor an event, nor a collection; and it never lists again after a refused watch, be the
//! status 410. Its store keeps whole objects: a component takes 8.7 KB there, and 1.1 KB here.

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
