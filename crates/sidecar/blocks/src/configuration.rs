//! Configuration: values from configuration stores, read once or watched. Changes are posted to an endpoint
//! of the app or sent on the caller's stream.

mod delivery;
mod watch;

use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use outrigger_component::configuration::{Items, Request};
use outrigger_component::{ConfigurationStore, Pairs};
use outrigger_policy::resiliency::{ComponentKind, Direction};
use outrigger_redact::Secrets;
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::components::{Category, OpenError, Opened, Opening};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::{ComponentPolicy, Resilience};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use self::delivery::item_json;

use self::delivery::App;
use self::watch::{Receiver, Watch, Watches};
use super::outbound::{Cause, FamilyNames, Operation, Outbound};

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_configuration_count",
    latencies: "component_configuration_latencies",
};

/// Why a call of the configuration block failed.
#[derive(Debug)]
pub enum ConfigurationError {
    /// The sidecar has no configuration store.
    NotConfigured,
    /// There is no store with this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// There is no app to notify of changes.
    NoApp,
    /// The values could not be read.
    Get {
        /// Name of the configuration store.
        store: String,
        /// The requested keys; empty means all.
        keys: Vec<String>,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The values cannot be watched.
    Subscribe {
        /// Name of the configuration store.
        store: String,
        /// The requested keys; empty means all.
        keys: Vec<String>,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The subscription does not exist or could not be ended.
    Unsubscribe {
        /// The subscription id.
        id: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
}

/// All configuration stores of the sidecar, and their subscriptions.
pub struct Configurations {
    stores: Registry<Store>,
    watches: Watches,
    app: Option<Arc<App>>,
    resilience: Arc<Resilience>,
}

struct Store {
    name: String,
    component: Arc<dyn ConfigurationStore>,
    outbound: Outbound,
    /// The policy for notifying the app.
    inbound: ComponentPolicy,
    get: Operation,
    subscribe: Operation,
    unsubscribe: Operation,
    /// Cancelled when the component is removed or replaced.
    gone: CancellationToken,
    /// The replacement of this store, set before `gone`; it takes over the subscriptions.
    successor: OnceLock<Arc<Store>>,
}

/// A subscription whose caller receives the changes.
pub struct Updates {
    /// Its id, unique within the store.
    pub id: String,
    /// The changes, until the subscription ends. Dropping the receiver ends it.
    pub items: mpsc::Receiver<Items>,
}

impl Configurations {
    /// No stores yet. `app` receives changes while its `health` is good.
    pub fn new(app: Option<Arc<AppChannel>>, health: Health, resilience: Arc<Resilience>) -> Self {
        let metrics = Arc::clone(&resilience.metrics);
        Self {
            stores: Registry::default(),
            watches: Watches::default(),
            app: app.map(|channel| Arc::new(App::new(channel, health, metrics))),
            resilience,
        }
    }

    /// Adds or replaces a store. Removing it ends its subscriptions.
    fn insert(&self, name: &str, component: Arc<dyn ConfigurationStore>, hidden: Secrets) -> Registration {
        let registry = &self.resilience.metrics.all().registry;
        let operation = |operation| Operation::new(registry, FAMILIES, name, operation);
        let kind = ComponentKind::Configuration;
        let store = Store {
            name: name.to_owned(),
            component,
            outbound: Outbound::new(name, kind, &self.resilience, hidden),
            inbound: self.resilience.policies.component(name, kind, Direction::Inbound),
            get: operation("get"),
            subscribe: operation("subscribe"),
            unsubscribe: operation("unsubscribe"),
            gone: CancellationToken::new(),
            successor: OnceLock::new(),
        };
        let replaced = self.stores.get(name);
        let gone = store.gone.clone();
        let registration = self.stores.insert(name, store).then(move || gone.cancel());
        if let Some(replaced) = replaced {
            if let Some(successor) = self.stores.get(name) {
                let _once = replaced.successor.set(successor);
            }
            replaced.gone.cancel();
        }
        registration
    }

    fn store(&self, name: &str) -> Result<Arc<Store>, ConfigurationError> {
        self.stores.get(name).ok_or_else(|| {
            if self.stores.is_empty() {
                ConfigurationError::NotConfigured
            } else {
                ConfigurationError::NotFound {
                    store: name.to_owned(),
                }
            }
        })
    }

    /// The values of `keys`, or of all keys if empty; missing keys are left out.
    ///
    /// # Errors
    /// [`ConfigurationError`].
    pub async fn get(
        &self,
        store: &str,
        keys: Vec<String>,
        metadata: Pairs,
    ) -> Result<Items, ConfigurationError> {
        let store = self.store(store)?;
        let request = Request { keys, metadata };
        let attempt = || store.component.get(&request);
        let items = store.outbound.run(&store.get, attempt).await;
        items.map_err(|cause| ConfigurationError::Get {
            store: store.name.clone(),
            keys: request.keys,
            cause,
        })
    }

    /// Subscribes the caller to changes.
    ///
    /// # Errors
    /// [`ConfigurationError`].
    pub async fn subscribe(
        &self,
        store: &str,
        keys: Vec<String>,
        metadata: Pairs,
    ) -> Result<Updates, ConfigurationError> {
        let store = self.store(store)?;
        let (sender, items) = mpsc::channel(1);
        let id = self
            .watch(store, keys, metadata, Receiver::Stream(sender))
            .await?;
        Ok(Updates { id, items })
    }

    /// Subscribes the app to changes: `POST /configuration/{store}/{key}` for each. Returns the subscription
    /// id.
    ///
    /// # Errors
    /// [`ConfigurationError`].
    pub async fn subscribe_app(
        &self,
        store: &str,
        keys: Vec<String>,
        metadata: Pairs,
    ) -> Result<String, ConfigurationError> {
        let store = self.store(store)?;
        let app = self.app.as_ref().ok_or(ConfigurationError::NoApp)?;
        self.watch(store, keys, metadata, Receiver::App(Arc::clone(app)))
            .await
    }

    async fn watch(
        &self,
        store: Arc<Store>,
        keys: Vec<String>,
        metadata: Pairs,
        receiver: Receiver,
    ) -> Result<String, ConfigurationError> {
        let request = Request { keys, metadata };
        let failed = |keys, cause| ConfigurationError::Subscribe {
            store: store.name.clone(),
            keys,
            cause,
        };
        if let Err(full) = self.watches.check_limit() {
            return Err(failed(request.keys, Cause::Own(full)));
        }
        let attempt = || store.component.subscribe(&request);
        let subscription = match store.outbound.run(&store.subscribe, attempt).await {
            Ok(subscription) => subscription,
            Err(cause) => return Err(failed(request.keys, cause)),
        };
        let id = subscription.id.clone();
        self.watches.start(Watch {
            store: Arc::clone(&store),
            request,
            subscription,
            receiver,
        });
        Ok(id)
    }

    /// Ends a subscription of one store.
    ///
    /// # Errors
    /// [`ConfigurationError`].
    pub async fn unsubscribe(&self, store: &str, id: &str) -> Result<(), ConfigurationError> {
        let store = self.store(store)?;
        match self.watches.take(|running| running.store.name == store.name, id) {
            Some((store, own_id)) => store.end(&own_id).await,
            None => store.end(id).await,
        }
    }

    /// Ends a subscription of any store.
    ///
    /// # Errors
    /// [`ConfigurationError::Unsubscribe`].
    pub async fn unsubscribe_anywhere(&self, id: &str) -> Result<(), ConfigurationError> {
        match self.watches.take(|_| true, id) {
            Some((store, own_id)) => store.end(&own_id).await,
            None => Err(ConfigurationError::Unsubscribe {
                id: id.to_owned(),
                cause: Cause::Own("subscription does not exist".to_owned()),
            }),
        }
    }

    /// Ends all subscriptions, now and in future.
    pub fn stop(&self) {
        self.watches.stop();
    }

    /// Waits until all subscriptions have finished after [`Configurations::stop`].
    pub async fn stopped(&self) {
        self.watches.stopped().await;
    }
}

impl Category for Configurations {
    fn name(&self) -> &'static str {
        "configuration"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let component = opening.start(&opening.catalog().configuration).await?;
            let (name, closing) = (opening.name().to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            Ok(
                Opened::new(Vec::new()).part(move || self.insert(&name, component, hidden), async move {
                    closing.close().await
                }),
            )
        })
    }
}

impl Store {
    async fn end(&self, id: &str) -> Result<(), ConfigurationError> {
        let attempt = || self.component.unsubscribe(id);
        let ended = self.outbound.run(&self.unsubscribe, attempt).await;
        ended.map_err(|cause| ConfigurationError::Unsubscribe {
            id: id.to_owned(),
            cause,
        })
    }
}
