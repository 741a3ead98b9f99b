//! Other sidecars: their addresses and the pooled connections to them.

mod call;
mod hosts;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::join_all;
use http::{Request, Response};
use outrigger_discovery::{Address, Addresses, ResolveError, Resolver};
use outrigger_identity::{Expect, Identity, server_name};
use tokio::sync::watch;

pub use call::Failed;
use hosts::Hosts;

use crate::body::Body;
use crate::conn::{Dialer, H2Pool, KeepAlive, SendError};

/// Time to open a connection to a peer, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Apps whose instances are cached; beyond it the least recently called one is evicted.
const MAX_APPS: usize = 1024;

/// Why a call to a peer failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Name resolution is not ready or failed to start.
    #[error("name resolver not initialized")]
    NoResolver,
    /// The app is unknown.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The app was found, but its sidecar was unreachable or disconnected during the call.
    #[error("{}", crate::error::chain(.0))]
    Send(#[from] SendError),
    /// The request body was already sent and is too large to be replayed.
    #[error("the body of the request cannot be sent again")]
    Spent,
}

/// One sidecar process of an app.
pub struct Instance {
    address: Address,
    pool: H2Pool,
}

impl Instance {
    /// Sends a request over a pooled connection.
    ///
    /// # Errors
    /// [`SendError`] if the peer is unreachable or disconnects before the response head.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, SendError> {
        self.pool.send(request).await
    }

    /// Drops the connections: the next call dials.
    pub fn reset(&self) {
        self.pool.reset();
    }

    fn status(&self, app_id: &str, namespace: &str) -> PeerStatus {
        PeerStatus {
            app_id: app_id.to_owned(),
            namespace: namespace.to_owned(),
            address: self.address.to_string(),
            connections: self.pool.connections(),
        }
    }
}

/// A sidecar that was called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its app id.
    pub app_id: String,
    /// The namespace of its app; empty if it was called by address.
    pub namespace: String,
    /// `host:port`.
    pub address: String,
    /// Open connections to it.
    pub connections: usize,
}

/// All instances of one app, as name resolution reports them.
pub struct Peer {
    app_id: String,
    namespace: String,
    known: watch::Receiver<Addresses>,
    instances: ArcSwap<Snapshot>,
    turn: AtomicUsize,
    /// The value of `Peers::added` at the last call.
    used: AtomicU64,
}

#[derive(Default)]
struct Snapshot {
    addresses: Option<Addresses>,
    instances: Vec<Arc<Instance>>,
}

/// The table of peers.
pub struct Peers {
    resolver: OnceLock<Arc<dyn Resolver>>,
    identity: Option<Identity>,
    peers: ArcSwap<HashMap<String, Arc<Peer>>>,
    /// Apps added so far: a logical clock for eviction.
    added: AtomicU64,
    /// Sidecars called by address.
    hosts: Hosts,
}

impl Peers {
    /// An empty table. With `identity`, connections use mTLS.
    pub fn new(identity: Option<Identity>) -> Self {
        Self {
            resolver: OnceLock::new(),
            identity,
            peers: ArcSwap::default(),
            added: AtomicU64::new(0),
            hosts: Hosts::default(),
        }
    }

    /// Sets the name resolver, once.
    pub fn set_resolver(&self, resolver: Arc<dyn Resolver>) {
        if self.resolver.set(resolver).is_err() {
            tracing::debug!(target: "dapr.runtime", "the name resolver is already set");
        }
    }

    /// Closes idle connections to other sidecars and name resolution.
    pub async fn close(&self) {
        let peers = self.peers.swap(Arc::default());
        let instances = peers
            .values()
            .flat_map(|peer| peer.instances.load().instances.clone());
        join_all(instances.map(|instance| async move { instance.pool.close().await })).await;
        if let Some(resolver) = self.resolver.get() {
            resolver.close().await;
        }
    }

    /// The sidecars of called apps, at most `most` of them, sorted by app.
    pub fn status(&self, most: usize) -> Vec<PeerStatus> {
        let peers = self.peers.load();
        let mut all: Vec<_> = peers
            .values()
            .flat_map(|peer| {
                let snapshot = peer.instances.load();
                let instances = snapshot.instances.iter();
                let status = instances.map(|instance| instance.status(&peer.app_id, &peer.namespace));
                status.collect::<Vec<_>>()
            })
            .collect();
        all.extend(self.hosts.status());
        all.sort_unstable_by(|a, b| (&a.app_id, &a.address).cmp(&(&b.app_id, &b.address)));
        all.truncate(most);
        all
    }

    /// Looks up an app that was called before.
    fn known(&self, key: &str) -> Option<Arc<Peer>> {
        let peers = self.peers.load();
        let peer = peers.get(key)?;
        peer.used
            .store(self.added.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(peer))
    }

    /// Resolves an app on its first call. It is cached only if it is found, so unknown names leave nothing
    /// behind.
    async fn find(&self, key: &str, app_id: &str, namespace: &str) -> Result<Arc<Peer>, PeerError> {
        let resolver = self.resolver.get().ok_or(PeerError::NoResolver)?;
        resolver.resolve(app_id, namespace).await?;
        let peer = Arc::new(Peer {
            app_id: app_id.to_owned(),
            namespace: namespace.to_owned(),
            known: resolver.watch(app_id, namespace),
            instances: ArcSwap::default(),
            turn: AtomicUsize::new(0),
            used: AtomicU64::new(self.added.fetch_add(1, Ordering::Relaxed) + 1),
        });
        self.peers.rcu(|peers| {
            let mut peers = HashMap::clone(peers);
            if peers.len() >= MAX_APPS && !peers.contains_key(key) {
                let oldest = peers
                    .iter()
                    .min_by_key(|(_, peer)| peer.used.load(Ordering::Relaxed));
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    peers.remove(&oldest);
                }
            }
            peers.entry(key.to_owned()).or_insert_with(|| Arc::clone(&peer));
            peers
        });
        // Of concurrent lookups, one wins the entry; all use its connections.
        Ok(self.peers.load().get(key).map_or(peer, Arc::clone))
    }

    fn forget(&self, key: &str) {
        self.peers.rcu(|peers| {
            let mut peers = HashMap::clone(peers);
            peers.remove(key);
            peers
        });
    }

    /// The next instance of the app, round-robin; the others follow as alternatives.
    ///
    /// # Errors
    /// [`PeerError`] if no instance is known.
    async fn pick(&self, app_id: &str, namespace: &str) -> Result<Picked, PeerError> {
        // An app id cannot contain `.`, so this key is unambiguous.
        let key = format!("{app_id}.{namespace}");
        let peer = match self.known(&key) {
            Some(peer) => peer,
            // Boxed: the rare path must not widen the future of every call.
            None => Box::pin(self.find(&key, app_id, namespace)).await?,
        };
        let snapshot = match self.snapshot(&peer).await {
            Err(PeerError::Resolve(error)) if error.is_not_found() => {
                self.forget(&key);
                return Err(error.into());
            }
            found => found?,
        };
        let turn = peer.turn.fetch_add(1, Ordering::Relaxed);
        let instance = Arc::clone(&snapshot.instances[turn % snapshot.instances.len()]);
        Ok(Picked { peer, instance })
    }

    async fn snapshot(&self, peer: &Peer) -> Result<Arc<Snapshot>, PeerError> {
        let known = Arc::clone(&peer.known.borrow());
        let current = peer.instances.load_full();
        if !known.is_empty() && current.addresses.as_ref().is_some_and(|a| Arc::ptr_eq(a, &known)) {
            return Ok(current);
        }
        let known = if known.is_empty() {
            let resolver = self.resolver.get().ok_or(PeerError::NoResolver)?;
            resolver.resolve(&peer.app_id, &peer.namespace).await?
        } else {
            known
        };
        if known.is_empty() {
            return Err(ResolveError::NotFound {
                app_id: peer.app_id.clone(),
            }
            .into());
        }
        let current = peer.instances.load_full();
        let keep = |address: &Address| current.instances.iter().find(|i| i.address == *address);
        let instances = known
            .iter()
            .map(|address| match keep(address) {
                Some(instance) => Arc::clone(instance),
                None => Arc::new(self.instance(peer, address)),
            })
            .collect();
        let snapshot = Arc::new(Snapshot {
            addresses: Some(known),
            instances,
        });
        peer.instances.store(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    fn instance(&self, peer: &Peer, address: &Address) -> Instance {
        Instance {
            address: address.clone(),
            pool: self.pool(&peer.app_id, &peer.namespace, address),
        }
    }

    /// The connections to a sidecar of an app.
    fn pool(&self, app_id: &str, namespace: &str, address: &Address) -> H2Pool {
        let text = address.to_string();
        let dialer = match &self.identity {
            Some(identity) => {
                let expect = Expect::Path {
                    namespace: namespace.to_owned(),
                    app_id: app_id.to_owned(),
                };
                let name = server_name(address.host());
                Dialer::mutual(text, identity, expect, name, CONNECT_TIMEOUT)
            }
            None => Dialer::plain(text, CONNECT_TIMEOUT),
        };
        H2Pool::new(dialer, Some(KeepAlive::OF_PEERS))
    }

    /// Marks an instance as unreachable, so that it is resolved again.
    fn failed(&self, picked: &Picked) {
        if let Some(resolver) = self.resolver.get() {
            resolver.evict(
                &picked.peer.app_id,
                &picked.peer.namespace,
                &picked.instance.address,
            );
        }
        picked.instance.reset();
    }
}

/// An instance to send a call to.
struct Picked {
    peer: Arc<Peer>,
    /// Its connections.
    instance: Arc<Instance>,
}

#[cfg(test)]
mod tests;
