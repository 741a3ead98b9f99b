//! What a component implements and how it is found.
//!
//! A component is an adapter to a store, a broker or another outside system. Each category is one object-safe
//! trait; the sidecar's blocks use nothing else, so built-in and pluggable components look the same to them.
//! Key prefixes, encryption, resiliency and the wire belong to the blocks, never to a component.
//!
//! * [`Metadata`]: the properties of a component, typed.
//! * [`StateStore`], [`SecretStore`], [`ConfigurationStore`], [`LockStore`], [`OutputBinding`], [`InputBinding`],
//!   [`CryptoProvider`], [`Conversation`], [`Middleware`], [`PubSub`].
//! * [`Error`]: one error type, with the kind the API answers depend on.
//! * [`Catalog`]: types and versions to factories, built explicitly.
//!
//! The rules that each implementation must keep are suites of `outrigger-component-conformance`.

pub mod answer;
pub mod bindings;
pub mod catalog;
pub mod configuration;
pub mod conversation;
pub mod crypto;
pub mod deadline;
mod error;
pub mod lock;
mod metadata;
pub mod middleware;
pub mod pubsub;
pub mod secrets;
pub mod state;

use std::collections::HashMap;

pub use bindings::{InputBinding, OutputBinding};
pub use catalog::{Catalog, Entry, Section, Setup};
pub use configuration::ConfigurationStore;
pub use conversation::Conversation;
pub use crypto::CryptoProvider;
pub use error::{ApiStatus, Error, Kind};
pub use lock::LockStore;
pub use metadata::{GoDuration, Metadata, MetadataError, PropertyType, Unit, Unused, may_be_secret};
pub use middleware::Middleware;
pub use pubsub::PubSub;
pub use secrets::SecretStore;
pub use state::StateStore;

/// Request and response metadata: names to texts, as they come from the API.
pub type Pairs = HashMap<String, String>;

/// What every call of a component returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
