//! The life of components: which are started, in which order, with which properties; how they change and end.

mod category;
mod change;
mod open;
mod properties;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::join_all;
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
/// How long a component that was replaced or removed waits for the calls that use it.
const LAST_CALLS: Duration = Duration::from_secs(30);

/// The namespace in names that others have to find, where the process has none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Looks up an environment variable.
pub type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What components are started with.
pub struct Context {
    /// The components of this build.
    pub catalog: Catalog,
    /// The app's id.
    pub app_id: String,
    /// The process's namespace, where it has one.
    pub namespace: Option<String>,
    /// `DAPR_ENV_KEYS`: which variables resources may read.
    pub env_keys: String,
    /// The environment.
    pub env: Env,
    /// Its deny list.
    pub configuration: Arc<Configuration>,
    /// Counts starts and failures.
    pub metrics: Arc<Metrics>,
    /// Bytes that an answer of a component's outside system may have.
    pub max_answer: usize,
    /// Whether the process has a placement service: then one state store may be that of actors.
    pub actors: bool,
}

/// A component as the metadata API lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// `metadata.name` of its resource.
    pub name: String,
    /// `state.redis`.
    pub kind: String,
    /// `v1`; may be empty.
    pub version: String,
    /// Its capabilities, as the metadata API names them.
    pub capabilities: Vec<&'static str>,
}

/// A component that could not be started and may not be missing.
#[derive(Debug, thiserror::Error)]
#[error("process component {name} error: {}", .error.start())]
pub struct StartError {
    /// Name of the component.
    pub name: String,
    /// The step that failed, with its error.
    pub error: OpenError,
}

impl StartError {
    /// The error for where it was logged before: only names the component.
    pub fn summary(&self) -> String {
        format!(
            "component {} did not start; its error is logged above",
            self.error.component()
        )
    }
}

/// Every component of a sidecar. Components come, change and go while calls are under way: a call that found a
/// component keeps it until the call ends, and only then is the component closed.
pub struct Components {
    context: Context,
    categories: Vec<Arc<dyn Category>>,
    secrets: Arc<dyn SecretStores>,
    /// Changes happen one after the other.
    changing: tokio::sync::Mutex<()>,
    table: Mutex<ComponentTable>,
    closing: TaskTracker,
}

#[derive(Default)]
struct ComponentTable {
    /// In the order of their start.
    live: Vec<Live>,
    /// Those whose secret store is not there yet.
    parked: Vec<Component>,
    /// The name of the state store of actors; it stays the one while the process runs.
    actor_store: Option<String>,
    /// The component that nobody has to describe.
    implicit: Option<Component>,
    /// Those that do not run, by name, and why.
    left_out: BTreeMap<String, LeftOut>,
}

/// A component that works.
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
    /// Every component by its latest description: one that waits to replace another counts as if it did.
    fn all(&self) -> Vec<Component> {
        let waiting = |live: &&Live| self.parked.iter().all(|p| p.name != live.component.name);
        let live = self.live.iter().filter(waiting).map(|live| &live.component);
        live.chain(&self.parked).cloned().collect()
    }
}

impl Components {
    /// Without components; those to come are put into the blocks that `categories` are. `secrets`: the stores of their
    /// secrets.
    pub fn new(context: Context, categories: Vec<Arc<dyn Category>>, secrets: Arc<dyn SecretStores>) -> Self {
        Self {
            context,
            categories,
            secrets,
            changing: tokio::sync::Mutex::default(),
            table: Mutex::default(),
            closing: TaskTracker::new(),
        }
    }

    /// Adds a component that nobody has to describe: it runs as long as no other has its name.
    #[must_use]
    pub fn with_implicit(self, component: Option<Component>) -> Self {
        self.table().implicit = component;
        self
    }

    /// The component that nobody has to describe, unless one of these has its name.
    fn implicit_beside(&self, components: &[Component]) -> Option<Component> {
        let implicit = self.table().implicit.clone();
        implicit.filter(|implicit| components.iter().all(|c| c.name != implicit.name))
    }

    fn table(&self) -> MutexGuard<'_, ComponentTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the metadata API lists: the components that work now.
    pub fn registered(&self) -> Vec<Registered> {
        self.table().live.iter().map(Live::registered).collect()
    }

    /// Starts the first components: secret stores, each when the store of its own secrets is there, then all others
    /// at once.
    ///
    /// # Errors
    /// [`StartError`] for the first that fails without `ignoreErrors`; those that run are closed again.
    pub async fn start(&self, components: &[Component]) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        tracing::info!(target: LOG, "Loading components…");
        let implicit = self.implicit_beside(components);
        let all = components.iter().chain(&implicit);
        let result = self.start_all(all.filter(|c| self.allows(c)).collect()).await;
        if let Some(implicit) = implicit {
            let mut table = self.table();
            if table.live.iter().all(|live| live.component.name != implicit.name) {
                // What it lacked at the start does not come later: it is told once.
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
        // What fails does not hide what else does: everything that can be started is, and all mistakes are shown.
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

    /// Starts a component. One with this name that runs already is replaced: it takes calls until the new one works.
    /// When that does not start and may be missing, the old one ends: nobody wants it any more.
    ///
    /// # Errors
    /// [`StartError`] when it fails without `ignoreErrors`; the old one stays.
    pub async fn add(&self, component: &Component) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        if !self.allows(component) {
            self.drop_out(&component.name);
            return Ok(());
        }
        self.start_all(vec![component]).await
    }

    /// Puts a component in the place of the one with its name.
    ///
    /// # Errors
    /// [`StartError`] as of [`Components::add`].
    pub async fn replace(&self, component: &Component) -> Result<(), StartError> {
        self.add(component).await
    }

    /// Ends, replaces and starts components until those run that are wanted. What has not changed is left alone; what
    /// could not be started before is tried again.
    ///
    /// # Errors
    /// [`StartError`] as of [`Components::add`]; everything else is done.
    pub async fn reconcile(&self, wanted: &[Component]) -> Result<(), StartError> {
        let _changing = self.changing.lock().await;
        let current = self.table().all();
        let implicit = self.implicit_beside(wanted);
        let all = wanted.iter().chain(&implicit);
        let allowed: Vec<_> = all.filter(|c| self.allows(c)).collect();
        let changes = change::between(&current, &allowed);
        self.retain_left_out(wanted);
        for component in &changes.refused {
            let why = "a state store of actors does not change while the sidecar runs; a restart loads it";
            self.leave_out(component, ComponentState::Skipped, why.to_owned(), None);
        }
        if changes.is_empty() {
            return Ok(());
        }
        for name in &changes.ended {
            tracing::info!(target: LOG, "Component was removed: {name}");
            self.drop_out(name);
        }
        self.start_all(changes.put).await
    }

    /// Ends a component. Calls that start now do not find it, calls under way end with it; it is closed behind them.
    pub async fn remove(&self, name: &str) {
        let _changing = self.changing.lock().await;
        self.drop_out(name);
        self.table().left_out.remove(name);
    }

    fn drop_out(&self, name: &str) {
        self.table().parked.retain(|parked| parked.name != name);
        self.take_out(name);
    }

    /// Closes every component at once and waits. Nothing may call them any more.
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

    /// Whether the Configuration lets a component be loaded; says so when not.
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

    /// Whether the store of a component's secrets is there, where it needs one.
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

    /// Keeps a component until its secret store comes.
    fn park(&self, component: &Component) {
        tracing::warn!(
            target: LOG,
            "{}: component {} references a secret store that isn't loaded: {}; it is not loaded either: add that store, \
             or correct auth.secretStore",
            component.source,
            component.log_name(),
            component.secret_store
        );
        self.table().parked.push(component.clone());
    }

    /// Starts what waited for a secret store that is there now.
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

    /// Starts components at once; all that can run do, whatever happens to the others.
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

    /// Makes a state store that works and asks for it the one of actors; closes one that is too many.
    async fn claim_actors(&self, component: &Component, opened: Opened) -> Result<Opened, OpenError> {
        if !self.context.actors || !change::asks_for_actors(component) {
            return Ok(opened);
        }
        let first = {
            let mut table = self.table();
            table
                .actor_store
                .get_or_insert_with(|| {
                    tracing::info!(target: LOG, "Using '{}' as actor state store", component.name);
                    component.name.clone()
                })
                .clone()
        };
        if first == component.name {
            return Ok(opened);
        }
        opened.close().await;
        Err(OpenError::second_actor_store(&first, component))
    }

    /// The name of the state store of actors.
    pub fn actor_store(&self) -> Option<String> {
        self.table().actor_store.clone()
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

    /// Takes a component out and closes it behind the last call that uses it.
    fn retire(&self, live: Live) {
        self.closing.spawn(live.end(LAST_CALLS));
    }

    /// Logs and counts a failure; an error unless the component may be missing.
    fn report(&self, component: &Component, error: OpenError) -> Result<(), StartError> {
        let metrics = &self.context.metrics.runtime;
        metrics.component_init_failed(&component.kind, error.reason(), &component.name);
        let effect = match component.ignore_errors {
            true => "ignoreErrors is set, and the sidecar runs without it",
            false => "the sidecar ends",
        };
        tracing::error!(target: LOG, "{}; {effect}", error.told());
        // The same in the words that tools match.
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
    /// Takes the component out of its blocks at once; see [`RegisteredPart::end`] for what comes back.
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
