//! Configuration: values in the stores of this sidecar, read once or watched while the app runs. Changes reach the app
//! as calls of its own endpoint, or the caller of a stream.

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

/// Why the configuration block could not do what it was asked.
#[derive(Debug)]
pub enum ConfigurationError {
    /// There is no configuration store at all.
    NotConfigured,
    /// There is none of this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// There is no app that could be told of changes.
    NoApp,
    /// The values could not be read.
    Get {
        /// Name of the configuration store.
        store: String,
        /// The keys asked for; none means all.
        keys: Vec<String>,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The values cannot be watched.
    Subscribe {
        /// Name of the configuration store.
        store: String,
        /// The keys asked for; none means all.
        keys: Vec<String>,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The subscription was not ended, or there is none.
    Unsubscribe {
        /// The subscription.
        id: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
}

/// Every configuration store of the sidecar, and who is told of changes.
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
    /// What applies to telling the app.
    inbound: ComponentPolicy,
    get: Operation,
    subscribe: Operation,
    unsubscribe: Operation,
    /// Ends the subscriptions when the component goes.
    gone: CancellationToken,
    /// What took the place of this one, before it is gone: its subscriptions go on there.
    successor: OnceLock<Arc<Store>>,
}

/// A subscription whose changes the caller takes.
pub struct Updates {
    /// Its id, unique in the store.
    pub id: String,
    /// What changed; ends when the subscription does. Dropping it ends the subscription.
    pub items: mpsc::Receiver<Items>,
}

impl Configurations {
    /// Without stores. `app` is told of the changes it asked for, while it is in good `health`.
    pub fn new(app: Option<Arc<AppChannel>>, health: Health, resilience: Arc<Resilience>) -> Self {
        let metrics = Arc::clone(&resilience.metrics);
        Self {
            stores: Registry::default(),
            watches: Watches::default(),
            app: app.map(|channel| Arc::new(App::new(channel, health, metrics))),
            resilience,
        }
    }

    /// Adds a store, in the place of one with this name. When it is taken out, its subscriptions end.
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

    /// The values of `keys`, of all when there is none; what does not exist is left out.
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

    /// Tells the caller of changes.
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

    /// Tells the app of changes: `POST /configuration/{store}/{key}` for each. Answers with the subscription's id.
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
        if let Err(full) = self.watches.check_room() {
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

    /// Ends a subscription of a store.
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

    /// Ends a subscription, whichever store it is of.
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

    /// Ends all subscriptions: streams end, the app is told nothing more. New ones end at once.
    pub fn stop(&self) {
        self.watches.stop();
    }

    /// Waits until what was under way when [`Configurations::stop`] was called is over.
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
