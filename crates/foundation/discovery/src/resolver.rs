//! What every name resolver offers.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::Address;

/// All healthy instances of one app, in an order that does not change while they stay.
pub type Addresses = Arc<[Address]>;

/// Finds the sidecars of an app.
///
/// Resolvers answer with every instance they know; spreading calls over them is up to the
/// caller. On a hot path, call [`resolve`](Resolver::resolve) once to wait for the first answer,
/// then keep the receiver of [`watch`](Resolver::watch): reading it costs no look-up.
#[async_trait]
pub trait Resolver: Send + Sync {
    /// Name of the component, for example `mdns`.
    fn name(&self) -> &'static str;

    /// The instances of an app; never an empty list. Answered from memory when it is fresh there.
    async fn resolve(&self, app_id: &str, namespace: &str) -> Result<Addresses, ResolveError>;

    /// The instances of an app as they come and go; empty while none is known. The app is kept
    /// under observation for as long as the receiver exists. The receiver ends when the resolver is
    /// dropped, and at once when too many apps are tracked; then use [`resolve`](Resolver::resolve).
    fn watch(&self, app_id: &str, namespace: &str) -> watch::Receiver<Addresses>;

    /// Tells that an instance could not be reached: it is forgotten, and looked for again at once.
    fn evict(&self, app_id: &str, namespace: &str, address: &Address);

    /// Withdraws the registration of this sidecar and stops all background work.
    async fn close(&self);
}

/// Why an app could not be found. The texts are those of Dapr's resolvers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// mDNS: nobody answered within the time of a browse.
    #[error("couldn't find service: {app_id}")]
    NotFound {
        /// The app looked for.
        app_id: String,
    },
    /// SQLite: no row, or none that was renewed in time.
    #[error("no host found with the given ID")]
    NoHost,
    /// Consul: no instance whose checks pass.
    #[error("no healthy services found with AppID '{app_id}'")]
    NoHealthyService {
        /// The app looked for.
        app_id: String,
    },
    /// Consul: instances exist, but none says where its sidecar listens.
    #[error("target service AppID '{app_id}' found but {key} missing from meta")]
    PortMissing {
        /// The app looked for.
        app_id: String,
        /// The metadata key that must hold the port.
        key: String,
    },
    /// Kubernetes: no address for the name of the service.
    #[error("failed to resolve address for '{name}': {cause}")]
    Dns {
        /// The DNS name asked for.
        name: String,
        /// The DNS server answered, and has no address for the name.
        absent: bool,
        /// The error of the DNS client.
        cause: String,
    },
    /// The registry behind the resolver failed.
    #[error("{resolver} name resolver: failed to look up '{app_id}': {cause}")]
    Registry {
        /// Name of the resolver.
        resolver: &'static str,
        /// The app looked for.
        app_id: String,
        /// The reason, for the message.
        cause: String,
    },
    /// Too many different apps are being looked for at the same time.
    #[error("too many apps are being resolved at once ({limit}); retry later")]
    Busy {
        /// How many apps are tracked at most.
        limit: usize,
    },
    /// [`Resolver::close`] was called.
    #[error("the name resolver is closed")]
    Closed,
}

impl ResolveError {
    /// Whether the registry answered, and the answer is that the app has no instance.
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
