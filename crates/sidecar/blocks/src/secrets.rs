//! Secrets: reads of secret stores, limited to those that the app may see.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_component::secrets::Feature;
use outrigger_component::{Pairs, SecretStore};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_resources::configuration::SecretScope;
use outrigger_runtime::components::{Category, OpenError, Opened, Opening, SecretStores};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;

use super::outbound::{Cause, FamilyNames, Operation, Outbound};

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_secret_count",
    latencies: "component_secret_latencies",
};

/// Why a secret could not be read.
#[derive(Debug)]
pub enum SecretError {
    /// The sidecar has no secret store.
    NotConfigured,
    /// There is no store with this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// The Configuration denies the app this secret.
    Denied {
        /// Name of the secret store.
        store: String,
        /// The secret.
        key: String,
    },
    /// The store returned an error.
    Get {
        /// Name of the secret store.
        store: String,
        /// The secret; `None` for a bulk read.
        key: Option<String>,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
}

/// All secret stores of the sidecar.
pub struct Secrets {
    stores: Registry<Store>,
    scopes: Vec<SecretScope>,
    resilience: Arc<Resilience>,
}

struct Store {
    component: Arc<dyn SecretStore>,
    scope: Option<SecretScope>,
    outbound: Outbound,
    get: Operation,
    bulk_get: Operation,
}

impl Secrets {
    /// No stores yet; later ones are limited by the scopes of the Configuration and called under the policies
    /// and metrics of `resilience`.
    pub fn new(scopes: Vec<SecretScope>, resilience: Arc<Resilience>) -> Self {
        Self {
            stores: Registry::default(),
            scopes,
            resilience,
        }
    }

    /// Adds or replaces a store.
    fn insert(
        &self,
        name: &str,
        component: Arc<dyn SecretStore>,
        hidden: outrigger_redact::Secrets,
    ) -> Registration {
        let registry = &self.resilience.metrics.all().registry;
        let operation = |operation| Operation::new(registry, FAMILIES, name, operation);
        let scope = self.scopes.iter().find(|scope| scope.store_name == name);
        let store = Store {
            component,
            scope: scope.cloned(),
            outbound: Outbound::new(name, ComponentKind::Secretstore, &self.resilience, hidden),
            get: operation("get"),
            bulk_get: operation("bulk_get"),
        };
        self.stores.insert(name, store)
    }

    fn store(&self, name: &str) -> Result<Arc<Store>, SecretError> {
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

/// Reads by the sidecar itself; the scopes of the app do not apply.
impl SecretStores for Secrets {
    fn component(&self, name: &str) -> Option<Arc<dyn SecretStore>> {
        let store = self.stores.get(name)?;
        Some(Arc::clone(&store.component))
    }
}

impl Category for Secrets {
    fn name(&self) -> &'static str {
        "secretstores"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let component = opening.start(&opening.catalog().secrets).await?;
            let features = component.features().iter().copied();
            let capabilities = features.map(Feature::name).collect();
            let (name, closing) = (opening.name().to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            Ok(
                Opened::new(capabilities).part(move || self.insert(&name, component, hidden), async move {
                    closing.close().await
                }),
            )
        })
    }
}

impl Store {
    fn allows(&self, secret: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.allows(secret))
    }
}
