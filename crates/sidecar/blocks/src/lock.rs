//! Locks: leases with an owner, held in lock stores.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use outrigger_component::LockStore;
use outrigger_component::lock::Unlocked;
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::components::{Category, OpenError, Opened, Opening};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;

use super::outbound::{Cause, Outbound};
use super::state::{IllegalKey, SEPARATOR};

/// Why a lock or unlock call failed.
#[derive(Debug)]
pub enum LockError {
    /// The expiry is zero or negative.
    ExpiryNotPositive {
        /// The store asked for.
        store: String,
    },
    /// The sidecar has no lock store.
    NotConfigured,
    /// The request has no resource.
    NoResource {
        /// The store asked for.
        store: String,
    },
    /// The request has no owner.
    NoOwner {
        /// The store asked for.
        store: String,
    },
    /// There is no store with this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// The store could not be asked for the lock.
    TryLock(Cause),
    /// The store could not be asked to release the lock.
    Unlock(Cause),
}

/// The key prefix of a lock store's resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockKeys {
    /// Includes the separator.
    prefix: String,
}

impl LockKeys {
    /// Parses the store's `keyPrefix`: a strategy (`appid`, `name`, `none`) or a literal prefix. State stores
    /// have one more strategy.
    ///
    /// # Errors
    /// [`IllegalKey`] for a prefix with `||`.
    pub fn parse(strategy: Option<&str>, store: &str, app_id: &str) -> Result<Self, IllegalKey> {
        let strategy = strategy.unwrap_or("appid").to_lowercase();
        if strategy.contains(SEPARATOR) {
            return Err(IllegalKey(strategy));
        }
        let part = match strategy.as_str() {
            "none" => "",
            "name" => store,
            "appid" => app_id,
            other => other,
        };
        let mut prefix = format!("lock{SEPARATOR}");
        if !part.is_empty() {
            prefix.push_str(part);
            prefix.push_str(SEPARATOR);
        }
        Ok(Self { prefix })
    }

    fn stored(&self, resource: &str) -> Result<String, IllegalKey> {
        if resource.contains(SEPARATOR) {
            return Err(IllegalKey(resource.to_owned()));
        }
        Ok(format!("{}{resource}", self.prefix))
    }
}

/// All lock stores of the sidecar.
pub struct Locks {
    stores: Registry<Store>,
    resilience: Arc<Resilience>,
}

struct Store {
    component: Arc<dyn LockStore>,
    keys: LockKeys,
    outbound: Outbound,
}

impl Locks {
    /// No stores yet; later ones are called under the policies of `resilience`.
    pub fn new(resilience: Arc<Resilience>) -> Self {
        Self {
            stores: Registry::default(),
            resilience,
        }
    }

    /// Adds or replaces a store.
    fn insert(
        &self,
        name: &str,
        component: Arc<dyn LockStore>,
        keys: LockKeys,
        hidden: Secrets,
    ) -> Registration {
        let store = Store {
            component,
            keys,
            outbound: Outbound::new(name, ComponentKind::Lock, &self.resilience, hidden),
        };
        self.stores.insert(name, store)
    }

    /// Takes a lock if it is free, and returns whether it was. The lock expires after `expiry` seconds.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn try_lock(
        &self,
        store: &str,
        resource: &str,
        owner: &str,
        expiry: i32,
    ) -> Result<bool, LockError> {
        let expiry = u64::try_from(expiry).ok().filter(|seconds| *seconds > 0);
        let expiry = expiry.ok_or_else(|| LockError::ExpiryNotPositive {
            store: store.to_owned(),
        })?;
        let expiry = Duration::from_secs(expiry);
        let store = &*self.store(store, resource, owner)?;
        let key = &store.key(resource).map_err(LockError::TryLock)?;
        let attempt = || store.component.try_lock(key, owner, expiry);
        store
            .outbound
            .run_uncounted(attempt)
            .await
            .map_err(LockError::TryLock)
    }

    /// Releases a lock held by `owner`.
    ///
    /// # Errors
    /// [`LockError`].
    pub async fn unlock(&self, store: &str, resource: &str, owner: &str) -> Result<Unlocked, LockError> {
        let store = &*self.store(store, resource, owner)?;
        let key = &store.key(resource).map_err(LockError::Unlock)?;
        let attempt = || store.component.unlock(key, owner);
        store
            .outbound
            .run_uncounted(attempt)
            .await
            .map_err(LockError::Unlock)
    }

    fn store(&self, name: &str, resource: &str, owner: &str) -> Result<Arc<Store>, LockError> {
        let store = || name.to_owned();
        if self.stores.is_empty() {
            return Err(LockError::NotConfigured);
        }
        if resource.is_empty() {
            return Err(LockError::NoResource { store: store() });
        }
        if owner.is_empty() {
            return Err(LockError::NoOwner { store: store() });
        }
        let found = self.stores.get(name);
        found.ok_or_else(|| LockError::NotFound { store: store() })
    }
}

impl Category for Locks {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let (entry, setup) = opening.prepare(&opening.catalog().lock).await?;
            let prefix = setup.metadata.text(&["keyPrefix"]);
            let keys = LockKeys::parse(prefix, opening.name(), opening.app_id())
                .map_err(|error| opening.bad_key_prefix(error))?;
            let (name, store) = (opening.name().to_owned(), opening.build(&entry, setup).await?);
            let (closing, hidden) = (Arc::clone(&store), opening.hidden());
            Ok(
                Opened::new(Vec::new()).part(move || self.insert(&name, store, keys, hidden), async move {
                    closing.close().await
                }),
            )
        })
    }
}

impl Store {
    fn key(&self, resource: &str) -> Result<String, Cause> {
        let stored = self.keys.stored(resource);
        stored.map_err(|error| Cause::Own(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_prefix_strategies() {
        for (strategy, expected) in [
            (None, "lock||app||r"),
            (Some("AppID"), "lock||app||r"),
            (Some("name"), "lock||store||r"),
            (Some("none"), "lock||r"),
            (Some("Shared"), "lock||shared||r"),
            (Some("namespace"), "lock||namespace||r"),
        ] {
            let keys = LockKeys::parse(strategy, "store", "app").unwrap();
            assert_eq!(keys.stored("r").unwrap(), expected, "{strategy:?}");
        }
    }

    #[test]
    fn refuses_separator() {
        let keys = LockKeys::parse(None, "store", "app").unwrap();
        let error = keys.stored("a||b").unwrap_err().to_string();
        assert_eq!(error, "input key/keyPrefix 'a||b' can't contain '||'");
        assert!(LockKeys::parse(Some("x||y"), "store", "app").is_err());
    }
}
