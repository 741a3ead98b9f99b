//! Name resolution: finds the sidecars of an app, and registers this one.
//!
//! [`build`] creates the resolver that the Configuration resource names: multicast DNS, a shared SQLite
//! file, a Consul agent, or the DNS of a Kubernetes cluster. All use the same registries and record formats
//! as Dapr's resolvers, so both kinds of sidecars find each other.

mod address;
mod catalog;
#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod mdns;
mod nameformat;
mod polled;
mod registration;
mod resolver;
mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "consul")]
pub use crate::consul::{AgentError, ConsulConfigError, ConsulError};
#[cfg(feature = "kubernetes")]
pub use crate::kubernetes::{KubernetesError, TemplateError};
#[cfg(feature = "fuzzing")]
pub use crate::mdns::fuzz_message;
pub use crate::nameformat::NameFormatError;
pub use crate::settings::SettingsError;
#[cfg(feature = "sqlite")]
pub use crate::sqlite::{SqliteConfigError, SqliteError};
pub use crate::{
    address::{Address, AddressError},
    catalog::{BuildError, FatalError, FatalHook, Options, REGISTERED, build, default_component},
    mdns::{Mdns, MdnsError, NameError, NoMulticast},
    registration::Registration,
    resolver::{Addresses, ResolveError, Resolver},
};
