//! Sidecars called by address: actor hosts from the placement tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use outrigger_discovery::{Address, ResolveError};

use super::{Failed, Instance, PeerError, PeerStatus, Peers};

/// Hosts whose connections are cached; beyond it the least recently called one is evicted.
const MAX_HOSTS: usize = 4096;

#[derive(Default)]
pub(super) struct Hosts {
    known: ArcSwap<HashMap<String, Arc<CachedInstance>>>,
    /// Hosts added so far: a logical clock for eviction.
    added: AtomicU64,
}

struct CachedInstance {
    instance: Arc<Instance>,
    /// The app id that its certificate must contain.
    app_id: String,
    used: AtomicU64,
}

impl Hosts {
    /// The known hosts.
    pub(super) fn status(&self) -> Vec<PeerStatus> {
        let known = self.known.load();
        let all = known.values().map(|host| host.instance.status(&host.app_id, ""));
        all.collect()
    }

    fn get(&self, address: &str, app_id: &str) -> Option<Arc<Instance>> {
        let known = self.known.load();
        let host = known.get(address).filter(|host| host.app_id == app_id)?;
        host.used
            .store(self.added.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(&host.instance))
    }

    /// Adds a host. It replaces another app's entry at the same address.
    fn add(&self, address: &str, app_id: &str, instance: Instance) -> Arc<Instance> {
        let host = Arc::new(CachedInstance {
            instance: Arc::new(instance),
            app_id: app_id.to_owned(),
            used: AtomicU64::new(self.added.fetch_add(1, Ordering::Relaxed) + 1),
        });
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            if known.len() >= MAX_HOSTS && !known.contains_key(address) {
                let oldest = known
                    .iter()
                    .min_by_key(|(_, host)| host.used.load(Ordering::Relaxed));
                if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                    known.remove(&oldest);
                }
            }
            known.insert(address.to_owned(), Arc::clone(&host));
            known
        });
        Arc::clone(&host.instance)
    }
}

impl Peers {
    /// The sidecar of an app at an address; its certificate must name the app.
    ///
    /// # Errors
    /// [`PeerError`] if `address` is not an address.
    fn at(&self, (app_id, namespace): (&str, &str), address: &str) -> Result<Arc<Instance>, PeerError> {
        if let Some(instance) = self.hosts.get(address, app_id) {
            return Ok(instance);
        }
        let parsed: Address = address.parse().map_err(|_| ResolveError::NotFound {
            app_id: app_id.to_owned(),
        })?;
        let instance = Instance {
            pool: self.pool(app_id, namespace, &parsed),
            address: parsed,
        };
        Ok(self.hosts.add(address, app_id, instance))
    }

    /// Calls the sidecar of an app at an address. After a connection failure the next call dials.
    ///
    /// # Errors
    /// The error of `send`, or that of `unknown` for an invalid address.
    pub async fn call_at<T, E, F>(
        &self,
        target: (&str, &str),
        address: &str,
        unknown: impl FnOnce(PeerError) -> Failed<E>,
        send: impl FnOnce(Arc<Instance>) -> F,
    ) -> Result<T, Failed<E>>
    where
        F: Future<Output = Result<T, Failed<E>>>,
    {
        let instance = self.at(target, address).map_err(unknown)?;
        let result = send(Arc::clone(&instance)).await;
        if result.as_ref().is_err_and(|failed| failed.connection) {
            instance.reset();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn caches_by_address_and_app() {
        let peers = Peers::new(None);
        let one = peers.at(("a", "default"), "127.0.0.1:1").unwrap();
        let again = peers.at(("a", "default"), "127.0.0.1:1").unwrap();
        assert!(Arc::ptr_eq(&one, &again));
        let other = peers.at(("b", "default"), "127.0.0.1:1").unwrap();
        assert!(
            !Arc::ptr_eq(&one, &other),
            "the other app must present its own name"
        );
        assert!(peers.at(("a", "default"), "nowhere").is_err());
    }

    #[tokio::test]
    async fn bounds_number_of_hosts() {
        let peers = Peers::new(None);
        for port in 1..=MAX_HOSTS + 10 {
            peers.at(("a", "default"), &format!("127.0.0.1:{port}")).unwrap();
        }
        assert_eq!(peers.hosts.known.load().len(), MAX_HOSTS);
    }
}
