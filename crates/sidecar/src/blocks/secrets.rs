//! Secrets: what the app may read from the secret stores of this sidecar.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_component::{Pairs, SecretStore};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_resources::configuration::SecretScope;

use super::outbound::{Cause, FamilyNames, Operation, Outbound};
use crate::resilience::Resilience;

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_secret_count",
    latencies: "component_secret_latencies",
};

/// Why a secret was not given.
#[derive(Debug)]
pub enum SecretError {
    /// There is no secret store at all.
    NotConfigured,
    /// There is none of this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// The Configuration does not let this app read it.
    Denied {
        /// The store.
        store: String,
        /// The secret.
        key: String,
    },
    /// The store failed.
    Get {
        /// The store.
        store: String,
        /// The secret; `None` when all were asked for.
        key: Option<String>,
        /// Why.
        cause: Cause,
    },
}

/// Every secret store of the sidecar.
pub struct Secrets {
    stores: HashMap<String, Store>,
}

struct Store {
    component: Arc<dyn SecretStore>,
    scope: Option<SecretScope>,
    outbound: Outbound,
    get: Operation,
    bulk_get: Operation,
}

impl Secrets {
    /// Stores by name, with their scopes from the Configuration and the policies and metrics of `resilience`.
    pub fn new(
        opened: Vec<(String, Arc<dyn SecretStore>)>,
        scope: impl Fn(&str) -> Option<SecretScope>,
        resilience: &Resilience,
    ) -> Self {
        let registry = &resilience.metrics.all().registry;
        let stores = opened.into_iter().map(|(name, component)| {
            let operation = |operation| Operation::new(registry, FAMILIES, &name, operation);
            let store = Store {
                component,
                scope: scope(&name),
                outbound: Outbound::new(&name, ComponentKind::Secretstore, resilience),
                get: operation("get"),
                bulk_get: operation("bulk_get"),
            };
            (name, store)
        });
        Self {
            stores: stores.collect(),
        }
    }

    fn store(&self, name: &str) -> Result<&Store, SecretError> {
        self.stores.get(name).ok_or_else(|| {
            if self.stores.is_empty() {
                SecretError::NotConfigured
            } else {
                SecretError::NotFound {
                    store: name.to_owned(),
                }
            }
        })
    }

    /// One secret.
    ///
    /// # Errors
    /// [`SecretError`].
    pub async fn get(&self, store: &str, key: &str, metadata: &Pairs) -> Result<Pairs, SecretError> {
        let found = self.store(store)?;
        if !found.allows(key) {
            return Err(SecretError::Denied {
                store: store.to_owned(),
                key: key.to_owned(),
            });
        }
        let attempt = || found.component.get(key, metadata);
        let secret = found.outbound.run(&found.get, attempt).await;
        secret.map_err(|cause| SecretError::Get {
            store: store.to_owned(),
            key: Some(key.to_owned()),
            cause,
        })
    }

    /// All secrets that the app may read.
    ///
    /// # Errors
    /// [`SecretError`].
    pub async fn bulk_get(
        &self,
        store: &str,
        metadata: &Pairs,
    ) -> Result<HashMap<String, Pairs>, SecretError> {
        let found = self.store(store)?;
        let attempt = || found.component.bulk_get(metadata);
        let secrets = found.outbound.run(&found.bulk_get, attempt).await;
        let mut secrets = secrets.map_err(|cause| SecretError::Get {
            store: store.to_owned(),
            key: None,
            cause,
        })?;
        secrets.retain(|key, _| found.allows(key));
        Ok(secrets)
    }
}

impl Store {
    fn allows(&self, secret: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.allows(secret))
    }
}
