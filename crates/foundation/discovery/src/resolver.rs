//! The interface of all name resolvers.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::Address;

/// All healthy instances of one app, in a stable order.
pub type Addresses = Arc<[Address]>;

/// Finds the sidecars of an app.
///
/// Resolvers return all known instances; load balancing is up to the caller. On a hot path, call
/// [`resolve`](Resolver::resolve) once to wait for the first answer, then keep the receiver of
/// [`watch`](Resolver::watch): reading it costs no lookup.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// Name of the component, for example `mdns`.
    fn name(&self) -> &'static str;

    /// The instances of an app; never empty. Served from the cache while fresh.
    async fn resolve(&self, app_id: &str, namespace: &str) -> Result<Addresses, ResolveError>;

    /// A live list of the instances of an app; empty while none is known. The app is watched as long as the
    /// receiver exists. The receiver closes when the resolver is dropped, and at once if too many apps are
    /// tracked; then use [`resolve`](Resolver::resolve).
    fn watch(&self, app_id: &str, namespace: &str) -> watch::Receiver<Addresses>;

    /// Reports an unreachable instance: it is removed, and looked up again at once.
    fn evict(&self, app_id: &str, namespace: &str, address: &Address);

    /// Withdraws the registration of this sidecar and stops all background tasks.
    async fn close(&self);
}

/// Why a lookup failed. The texts match Dapr's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// mDNS: no instance answered in time.
    #[error("couldn't find service: {app_id}")]
    NotFound {
        /// The app looked for.
        app_id: String,
    },
    /// SQLite: no row, or only stale ones.
    #[error("no host found with the given ID")]
    NoHost,
    /// Consul: no instance with passing checks.
    #[error("no healthy services found with AppID '{app_id}'")]
    NoHealthyService {
        /// The app looked for.
        app_id: String,
    },
    /// Consul: no instance declares the port of its sidecar.
    #[error("target service AppID '{app_id}' found but {key} missing from meta")]
    PortMissing {
        /// The app looked for.
        app_id: String,
        /// The metadata key of the port.
        key: String,
    },
    /// Kubernetes: no address for the service name.
    #[error("failed to resolve address for '{name}': {cause}")]
    Dns {
        /// The requested DNS name.
        name: String,
        /// The DNS server answered that the name has no address.
        absent: bool,
        /// The DNS client's error.
        cause: String,
    },
    /// The app ID is empty.
    #[error("empty ID not allowed")]
    EmptyId,
    /// The registry failed.
    #[error("{resolver} name resolver: failed to look up '{app_id}': {cause}")]
    Registry {
        /// Name of the resolver.
        resolver: &'static str,
        /// The app looked for.
        app_id: String,
        /// The cause.
        cause: String,
    },
    /// Too many apps are being looked up at the same time.
    #[error("too many apps are being resolved at once ({limit}); retry later")]
    Busy {
        /// Maximum number of apps.
        limit: usize,
    },
    /// [`Resolver::close`] was called.
    #[error("the name resolver is closed")]
    Closed,
}

impl ResolveError {
    /// True if the registry answered that the app has no instance.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. }
                | Self::NoHost
                | Self::NoHealthyService { .. }
                | Self::PortMissing { .. }
                | Self::Dns { absent: true, .. }
        )
    }
}
