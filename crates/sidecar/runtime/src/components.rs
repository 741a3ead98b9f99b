//! The life cycle of components: which are started, in which order and with which properties, and how they
//! change and end.

mod category;
mod change;
mod open;
mod properties;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures::future::{BoxFuture, join_all};
use outrigger_component::Catalog;
use outrigger_resources::{Component, Configuration};
use outrigger_telemetry::metrics::Metrics;
use tokio_util::task::TaskTracker;

use category::RegisteredPart;
pub use category::{Category, Opened, SecretStores};
pub use open::{OpenError, show_unknown};
pub use open::{Opening, Step};
pub use properties::{MissingSecret, Properties, fill_secrets, log_missing};
use status::LeftOut;
pub use status::{ComponentState, ComponentStatus};

const LOG: &str = "dapr.runtime.processor";
/// How long a replaced or removed component waits for calls in flight.
const LAST_CALLS: Duration = Duration::from_secs(30);

/// The namespace used in shared names if the process has none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Looks up an environment variable.
pub type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The environment in which components start.
pub struct Context {
    /// The components of this build.
    pub catalog: Catalog,
    /// The app's id.
    pub app_id: String,
    /// The process's namespace, if it has one.
    pub namespace: Option<String>,
    /// `DAPR_ENV_KEYS`: environment variables that resources may read.
    pub env_keys: String,
    /// The environment.
    pub env: Env,
    /// The Configuration, which has the component deny list.
    pub configuration: Arc<Configuration>,
    /// Counts starts and failures.
    pub metrics: Arc<Metrics>,
    /// Largest response from a component's external system, bytes.
    pub max_answer: usize,
    /// Whether the process has a placement service; if so, one state store may be the actor state store.
    pub actors: bool,
}

/// A component in the metadata API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// `metadata.name` of its resource.
    pub name: String,
    /// `state.redis`.
    pub kind: String,
    /// `v1`; may be empty.
    pub version: String,
    /// Its capabilities in the metadata API.
    pub capabilities: Vec<&'static str>,
}

/// A mandatory component failed to start.
#[derive(Debug, thiserror::Error)]
#[error("process component {name} error: {}", .error.start())]
pub struct StartError {
    /// Name of the component.
    pub name: String,
    /// The failed step and its error.
    pub error: OpenError,
}

impl StartError {
    /// A short error that only names the component, for use after the full error was logged.
    pub fn summary(&self) -> String {
        format!(
            "component {} did not start; its error is logged above",
            self.error.component()
        )
    }
}

/// All components of a sidecar. They may change while calls are in flight: a call keeps the component that it
/// looked up, and the component is closed after its last call.
pub struct Components {
    context: Context,
    categories: Vec<Arc<dyn Category>>,
    secrets: Arc<dyn SecretStores>,
    /// Serialises changes.
    changing: tokio::sync::Mutex<()>,
    table: Mutex<ComponentTable>,
    /// The name of the actor state store.
    actor_store: ArcSwapOption<String>,
    actors: OnceLock<Weak<dyn ActorHost>>,
    closing: TaskTracker,
}

/// Hosts actors while there is an actor state store.
pub trait ActorHost: Send + Sync {
    /// There is a store.
    fn store_runs(&self);

    /// The store is about to end; completes when all actors have ended.
    fn store_ends(&self) -> BoxFuture<'_, ()>;
}

#[derive(Default)]
struct ComponentTable {
    /// In order of start.
    live: Vec<Live>,
    /// Components that wait for their secret store.
    parked: Vec<Component>,
    /// The built-in component.
    implicit: Option<Component>,
    /// Components that do not run, by name, with the reason.
    left_out: BTreeMap<String, LeftOut>,
}

/// A running component.
struct Live {
    component: Component,
    capabilities: Vec<&'static str>,
    parts: Vec<RegisteredPart>,
}

impl Live {
    fn registered(&self) -> Registered {
        Registered {
            name: self.component.name.clone(),
            kind: self.component.kind.clone(),
            version: self.component.version.clone(),
            capabilities: self.capabilities.clone(),
        }
    }
}

impl ComponentTable {
    /// The latest version of every component; a waiting replacement counts as if it had started.
    fn all(&self) -> Vec<Component> {
        let waiting = |live: &&Live| self.parked.iter().all(|p| p.name != live.component.name);
        let live = self.live.iter().filter(waiting).map(|live| &live.component);
        live.chain(&self.parked).cloned().collect()
    }
}

impl Components {
    /// No components yet; later ones are registered in the blocks of `categories`. `secrets`: the stores of
    /// their secrets.
    pub fn new(context: Context, categories: Vec<Arc<dyn Category>>, secrets: Arc<dyn SecretStores>) -> Self {
        Self {
            context,
            categories,
            secrets,
            changing: tokio::sync::Mutex::default(),
            table: Mutex::default(),
            actor_store: ArcSwapOption::empty(),
            actors: OnceLock::new(),
            closing: TaskTracker::new(),
        }
    }

    /// Sets the host of actors, which learns of later changes of the actor state store.
    pub fn set_actor_host(&self, host: Weak<dyn ActorHost>) {
        // Set once, at start.
        let _first = self.actors.set(host);
    }

    fn actor_host(&self) -> Option<Arc<dyn ActorHost>> {
        self.actors.get()?.upgrade()
    }

    /// Adds a built-in component, which runs while no resource has its name.
    #[must_use]
    pub fn with_implicit(self, component: Option<Component>) -> Self {
        self.table().implicit = component;
        self
    }

    /// The built-in component, unless one of `components` has its name.
    fn implicit_beside(&self, components: &[Component]) -> Option<Component> {
        let implicit = self.table().implicit.clone();
        implicit.filter(|implicit| components.iter().all(|c| c.name != implicit.name))
    }

    fn table(&self) -> MutexGuard<'_, ComponentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running components, for the metadata API.
    pub fn registered(&self) -> Vec<Registered> {
        self.table().live.iter().map(Live::registered).collect()
    }

    /// Starts the initial components: secret stores first, each after the store that holds its secrets, then
    /// all others concurrently.
    ///
    /// # Errors
    /// [`StartError`] of the first that fails without `ignoreErrors`; running ones are closed again.
    pub async fn start(&self, components: &[Component]) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        tracing::info!(target: LOG, "Loading components…");
        let implicit = self.implicit_beside(components);
        let all = components.iter().chain(&implicit);
        let result = self.start_all(all.filter(|c| self.allows(c)).collect()).await;
        if let Some(implicit) = implicit {
            let mut table = self.table();
            if table.live.iter().all(|live| live.component.name != implicit.name) {
                // Its requirements do not appear later, so it is reported once.
                table.implicit = None;
            }
        }
        match &result {
            Ok(()) => tracing::info!(target: LOG, "All outstanding components processed"),
            Err(_) => self.close_all().await,
        }
        result
    }

    async fn start_all(&self, components: Vec<&Component>) -> Result<(), StartError> {
        let named = |parked: &Component| components.iter().any(|c| c.name == parked.name);
        self.table().parked.retain(|parked| !named(parked));
        let (mut stores, mut others): (Vec<_>, Vec<_>) =
            components.into_iter().partition(|c| is_secret_store(c));
        // All components are attempted and all errors are reported.
        let mut result = Ok(());
        while !stores.is_empty() {
            let (ready, waiting) = self.split_ready(stores);
            if ready.is_empty() {
                others.splice(0..0, waiting);
                break;
            }
            stores = waiting;
            result = result.and(self.wave(&ready).await);
        }
        let (ready, waiting) = self.split_ready(others);
        for component in waiting {
            self.park(component);
        }
        tracing::info!(target: LOG, "Waiting for all outstanding components to be processed…");
        result = result.and(self.wave(&ready).await);
        result.and(self.unpark().await)
    }

    /// Starts a component. It replaces a running one with its name once the new one works. If the new one
    /// fails and is optional, the old one still ends, because it is obsolete.
    ///
    /// # Errors
    /// [`StartError`] if it fails without `ignoreErrors`; the old one stays.
    pub async fn add(&self, component: &Component) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        if !self.allows(component) {
            self.drop_out(&component.name);
            return Ok(());
        }
        self.start_all(vec![component]).await
    }

    /// Replaces the component with the same name.
    ///
    /// # Errors
    /// [`StartError`] as in [`Components::add`].
    pub async fn replace(&self, component: &Component) -> Result<(), StartError> {
        self.add(component).await
    }

    /// Ends, replaces and starts components until the wanted ones run. Unchanged ones are not touched; failed
    /// ones are retried.
    ///
    /// # Errors
    /// [`StartError`] as in [`Components::add`]; all other changes are made.
    pub async fn reconcile(&self, wanted: &[Component]) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        let current = self.table().all();
        let implicit = self.implicit_beside(wanted);
        let all = wanted.iter().chain(&implicit);
        let allowed: Vec<_> = all.filter(|c| self.allows(c)).collect();
        let actor_store = self.actor_store();
        let actor_store = actor_store.as_deref().map(String::as_str);
        let changes = change::between(&current, &allowed, actor_store, self.context.actors);
        self.retain_left_out(wanted);
        for (component, first) in &changes.refused {
            self.skip_actor_store(component, first);
        }
        if changes.ends_actors {
            self.end_actors().await;
        }
        if changes.is_empty() {
            return Ok(());
        }
        for name in &changes.ended {
            tracing::info!(target: LOG, "Component was removed: {name}");
            self.drop_out(name);
        }
        let started = self.start_all(changes.put).await;
        self.settle_actor_store().await;
        started
    }

    /// Logs once that a component may not become a second actor state store.
    fn skip_actor_store(&self, component: &Component, first: &str) {
        let why = format!(
            "{first} is already the actor state store; remove {first}, or its actorStateStore, to load this one"
        );
        let is_known = self
            .table()
            .left_out
            .get(&component.name)
            .is_some_and(|known| known.why == why);
        if !is_known {
            tracing::error!(target: LOG, "Skipping hot reload of {}: {why}", component.log_name());
            self.leave_out(component, ComponentState::Skipped, why, None);
        }
    }

    /// Ends all actors, and then the role of their state store.
    async fn end_actors(&self) {
        if let Some(host) = self.actor_host() {
            host.store_ends().await;
        }
        if let Some(name) = self.actor_store.swap(None) {
            tracing::info!(target: LOG, "'{name}' is no longer the actor state store");
        }
    }

    /// Lets actors be hosted if their store runs. A store that failed in a change has ended.
    async fn settle_actor_store(&self) {
        let Some(name) = self.actor_store() else {
            return;
        };
        let runs = self.table().live.iter().any(|live| live.component.name == *name);
        match self.actor_host() {
            Some(host) if runs => host.store_runs(),
            _ if runs => {}
            _ => self.end_actors().await,
        }
    }

    /// Removes a component. New calls do not find it; it is closed after the calls in flight.
    pub async fn remove(&self, name: &str) {
        let _changing = self.changing.lock().await;
        self.drop_out(name);
        self.table().left_out.remove(name);
    }

    fn drop_out(&self, name: &str) {
        self.table().parked.retain(|parked| parked.name != name);
        self.take_out(name);
    }

    /// Closes all components and waits. There must be no calls in flight.
    pub async fn close(&self) {
        let _changing = self.changing.lock().await;
        self.close_all().await;
        self.closing.close();
        self.closing.wait().await;
    }

    async fn close_all(&self) {
        let live = std::mem::take(&mut self.table().live);
        let closing = live.into_iter().map(|live| live.end(Duration::ZERO));
        join_all(closing).await;
    }

    /// Whether the Configuration allows a component; logs if not.
    fn allows(&self, component: &Component) -> bool {
        let denied = self.context.configuration.denies(component);
        if denied {
            tracing::warn!(
                target: LOG,
                "component {} is on the deny list of the Configuration and not loaded",
                component.log_name()
            );
            let why = "it is on the deny list of the Configuration".to_owned();
            self.leave_out(component, ComponentState::Skipped, why, None);
        }
        !denied
    }

    /// Whether the store of a component's secrets is loaded, if it needs one.
    fn is_ready(&self, component: &Component) -> bool {
        let wants = component.metadata.iter().any(|item| item.secret.is_some());
        let store = component.secret_store.as_str();
        !wants || store.is_empty() || self.secrets.component(store).is_some()
    }

    fn split_ready<'c>(&self, components: Vec<&'c Component>) -> (Vec<&'c Component>, Vec<&'c Component>) {
        components
            .into_iter()
            .partition(|component| self.is_ready(component))
    }

    /// Keeps a component until its secret store is loaded.
    fn park(&self, component: &Component) {
        tracing::warn!(
            target: LOG,
            "{}: component {} references a secret store that isn't loaded: {}; the component waits for it: add that store, \
             or correct auth.secretStore",
            component.source,
            component.log_name(),
            component.secret_store
        );
        self.table().parked.push(component.clone());
    }

    /// Starts components whose secret store is now loaded.
    async fn unpark(&self) -> Result<(), StartError> {
        let mut result = Ok(());
        loop {
            let parked = std::mem::take(&mut self.table().parked);
            let (ready, waiting): (Vec<_>, Vec<_>) = parked.into_iter().partition(|c| self.is_ready(c));
            self.table().parked = waiting;
            if ready.is_empty() {
                return result;
            }
            result = result.and(self.wave(&ready.iter().collect::<Vec<_>>()).await);
        }
    }

    /// Starts components concurrently; failures do not affect the others.
    async fn wave(&self, components: &[&Component]) -> Result<(), StartError> {
        let opening = components.iter().map(|component| async {
            let secrets = self.secrets.component(&component.secret_store);
            let opening = Opening {
                component,
                secrets: secrets.as_deref(),
                context: &self.context,
                hidden: OnceLock::new(),
            };
            open::open(&opening, &self.categories).await
        });
        let mut result = Ok(());
        for (component, opened) in components.iter().zip(join_all(opening).await) {
            let claimed = match opened {
                Ok(opened) => self.claim_actors(component, opened).await,
                Err(error) => Err(error),
            };
            match claimed {
                Ok(opened) => self.put_in(component, opened),
                Err(error) => {
                    let failed = self.report(component, error);
                    result = result.and(failed);
                }
            }
        }
        result
    }

    /// Makes a new state store with the property the actor state store; closes a second one.
    async fn claim_actors(&self, component: &Component, opened: Opened) -> Result<Opened, OpenError> {
        if !self.context.actors || !change::asks_for_actors(component) {
            return Ok(opened);
        }
        let first = self.actor_store().unwrap_or_else(|| {
            tracing::info!(target: LOG, "Using '{}' as actor state store", component.name);
            let name = Arc::new(component.name.clone());
            self.actor_store.store(Some(Arc::clone(&name)));
            name
        });
        if *first == component.name {
            return Ok(opened);
        }
        opened.close().await;
        Err(OpenError::second_actor_store(&first, component))
    }

    /// The name of the actor state store.
    pub fn actor_store(&self) -> Option<Arc<String>> {
        self.actor_store.load_full()
    }

    fn put_in(&self, component: &Component, opened: Opened) {
        let mut live = Live {
            component: component.clone(),
            capabilities: opened.capabilities.clone(),
            parts: opened.register(),
        };
        let metrics = &self.context.metrics.runtime;
        metrics.component_loaded();
        metrics.component_initialized(&component.kind);
        tracing::info!(target: LOG, "Component loaded: {}", component.log_name());
        let mut table = self.table();
        table.left_out.remove(&component.name);
        let place = table
            .live
            .iter_mut()
            .find(|known| known.component.name == component.name);
        match place {
            Some(known) => {
                std::mem::swap(known, &mut live);
                self.retire(live);
            }
            None => table.live.push(live),
        }
    }

    fn take_out(&self, name: &str) {
        let mut table = self.table();
        let place = table.live.iter().position(|live| live.component.name == name);
        if let Some(place) = place {
            self.retire(table.live.remove(place));
        }
    }

    /// Removes a component and closes it after its last call.
    fn retire(&self, live: Live) {
        self.closing.spawn(live.end(LAST_CALLS));
    }

    /// Logs and counts a failure; returns an error unless the component is optional.
    fn report(&self, component: &Component, error: OpenError) -> Result<(), StartError> {
        let metrics = &self.context.metrics.runtime;
        metrics.component_init_failed(&component.kind, error.reason(), &component.name);
        let effect = match component.ignore_errors {
            true => "ignoreErrors is set, and the sidecar runs without it",
            false => "the sidecar ends",
        };
        tracing::error!(target: LOG, "{}; {effect}", error.describe());
        // The same in the text that tools match.
        tracing::debug!(target: LOG, "Failed to init component {}: {error}", component.log_name());
        let (why, place) = (error.cause().to_owned(), error.place().to_owned());
        self.leave_out(component, ComponentState::Failed, why, Some(place));
        let error = StartError {
            name: component.name.clone(),
            error,
        };
        if component.ignore_errors {
            tracing::debug!(target: LOG, "Ignoring error processing component: {error}");
            self.take_out(&component.name);
            return Ok(());
        }
        tracing::debug!(target: LOG, "Error processing component, daprd will exit gracefully: {error}");
        Err(error)
    }
}

impl Live {
    /// Removes the component from its blocks at once; see [`RegisteredPart::end`] for the returned future.
    fn end(self, limit: Duration) -> impl Future<Output = ()> + Send {
        let log_name = self.component.log_name();
        let parts = self.parts.into_iter();
        let closing: Vec<_> = parts.map(|part| part.end(log_name.clone(), limit)).collect();
        async move {
            tracing::info!(target: LOG, "Shutting down component {log_name}");
            join_all(closing).await;
        }
    }
}

fn is_secret_store(component: &Component) -> bool {
    component.kind.starts_with("secretstores.")
}
