//! Traits of components, and the catalog of their implementations.
//!
//! A component is an adapter to a store, a broker or another outside system. Each category is one object-safe
//! trait. The sidecar's blocks use only these traits, so built-in and pluggable components look alike. Key
//! prefixes, encryption, resiliency and the wire formats belong to the blocks.
//!
//! * [`Metadata`]: the properties of a component, typed.
//! * [`StateStore`], [`SecretStore`], [`ConfigurationStore`], [`LockStore`], [`OutputBinding`],
//!   [`InputBinding`], [`CryptoProvider`], [`Conversation`], [`Middleware`], [`PubSub`].
//! * [`Error`]: one error type, with the kind that decides the API's answer.
//! * [`Catalog`]: factories by type and version, built explicitly.
//!
//! The rules for implementations are test suites in `outrigger-component-conformance`.

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

/// Request or response metadata: names to texts, as in the API.
pub type Pairs = HashMap<String, String>;

/// Result of a component call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
