//! The life of components: which are started, in which order, with which properties, and how they end.

mod open;
mod properties;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::join_all;
use outrigger_component::{Catalog, SecretStore, StateStore, secrets, state};
use outrigger_resources::{Component, Configuration};
use outrigger_telemetry::metrics::RuntimeMetrics;

pub use open::OpenError;

use crate::blocks::state::Opened;
use crate::sidecar::Env;

const LOG: &str = "dapr.runtime.processor";

/// What components are started with.
pub struct Context<'a> {
    /// What this build has.
    pub catalog: &'a Catalog,
    /// The app's id.
    pub app_id: &'a str,
    /// The process's namespace, where it has one.
    pub namespace: Option<&'a str>,
    /// `DAPR_ENV_KEYS`: which variables resources may read.
    pub env_keys: &'a str,
    /// The environment.
    pub env: &'a Env,
    /// Its deny list.
    pub configuration: &'a Configuration,
    /// Counts starts and failures.
    pub metrics: &'a RuntimeMetrics,
}

/// A component as the metadata API lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its name.
    pub name: String,
    /// `state.redis`.
    pub kind: String,
    /// `v1`; may be empty.
    pub version: String,
    /// What it can do.
    pub capabilities: Vec<&'static str>,
}

/// Every component that was started.
#[derive(Default)]
pub struct Components {
    /// State stores.
    pub state: Vec<Opened>,
    /// Secret stores by name.
    pub secrets: Vec<(String, Arc<dyn SecretStore>)>,
    /// What the metadata API lists.
    pub registered: Vec<Registered>,
    /// What has to be closed.
    pub running: Running,
}

/// A component that could not be started and may not be missing.
#[derive(Debug, thiserror::Error)]
#[error("process component {name} error: {error}")]
pub struct StartError {
    /// The component.
    pub name: String,
    /// Why.
    pub error: OpenError,
}

/// Components to be closed at the end.
#[derive(Default)]
pub struct Running(Vec<(String, Handle)>);

enum Handle {
    State(Arc<dyn StateStore>),
    Secrets(Arc<dyn SecretStore>),
}

impl Running {
    /// Closes all of them at once and waits.
    pub async fn close(self) {
        let closing = self.0.into_iter().map(|(name, handle)| async move {
            tracing::info!(target: LOG, "Shutting down component {name}");
            match handle {
                Handle::State(store) => store.close().await,
                Handle::Secrets(store) => store.close().await,
            }
        });
        join_all(closing).await;
    }
}

/// Starts components: secret stores first, each when the store of its own secrets is there, then all others at once.
///
/// # Errors
/// [`StartError`] for the first that fails without `ignoreErrors`; those that run are closed again.
pub async fn start(components: &[Component], context: &Context<'_>) -> Result<Components, StartError> {
    tracing::info!(target: LOG, "Loading components…");
    let allowed = components.iter().filter(|component| {
        let denied = context.configuration.denies(component);
        if denied {
            tracing::warn!(
                target: LOG,
                "component {} is on the deny list of the Configuration and not loaded",
                component.log_name()
            );
        }
        !denied
    });
    let (mut stores, mut others): (Vec<_>, Vec<_>) =
        allowed.partition(|component| component.kind.starts_with("secretstores."));
    let mut started = Components::default();
    let mut result = Ok(());
    while result.is_ok() && !stores.is_empty() {
        let (ready, waiting) = split_ready(stores, &started);
        if ready.is_empty() {
            others.splice(0..0, waiting);
            break;
        }
        stores = waiting;
        result = started.wave(&ready, context).await;
    }
    if result.is_ok() {
        let (ready, parked) = split_ready(others, &started);
        for component in parked {
            tracing::warn!(
                target: LOG,
                "component {} references a secret store that isn't loaded: {}; it is not loaded either",
                component.log_name(),
                component.secret_store
            );
        }
        tracing::info!(target: LOG, "Waiting for all outstanding components to be processed…");
        result = started.wave(&ready, context).await;
    }
    if let Err(error) = result {
        started.running.close().await;
        return Err(error);
    }
    tracing::info!(target: LOG, "All outstanding components processed");
    Ok(started)
}

/// Components that can be started now, and those whose secret store is not there yet.
fn split_ready<'c>(
    components: Vec<&'c Component>,
    started: &Components,
) -> (Vec<&'c Component>, Vec<&'c Component>) {
    components.into_iter().partition(|component| {
        let wants = component.metadata.iter().any(|item| item.secret.is_some());
        let store = component.secret_store.as_str();
        !wants || store.is_empty() || started.secret_store(store).is_some()
    })
}

impl Components {
    /// The secret store of this name.
    pub fn secret_store(&self, name: &str) -> Option<&Arc<dyn SecretStore>> {
        let (_, store) = self.secrets.iter().find(|(store, _)| store == name)?;
        Some(store)
    }

    /// Starts components at once; all that can run do, whatever happens to the others.
    async fn wave(&mut self, components: &[&Component], context: &Context<'_>) -> Result<(), StartError> {
        let opening = components
            .iter()
            .map(|component| open::open(component, self.secret_store(&component.secret_store), context));
        let mut result = Ok(());
        for (component, opened) in components.iter().zip(join_all(opening).await) {
            match opened {
                Ok(opened) => self.add(component, opened, context.metrics),
                Err(error) => {
                    let failed = report(component, error, context.metrics);
                    result = result.and(failed);
                }
            }
        }
        result
    }

    fn add(&mut self, component: &Component, opened: open::Opened, metrics: &RuntimeMetrics) {
        let (capabilities, handle) = match opened {
            open::Opened::State(store) => {
                let capabilities = state_capabilities(store.component.features());
                let handle = Handle::State(Arc::clone(&store.component));
                self.state.push(store);
                (capabilities, handle)
            }
            open::Opened::Secrets(store) => {
                let features = store.features().iter().copied();
                let capabilities = features.map(secrets::Feature::name).collect();
                self.secrets.push((component.name.clone(), Arc::clone(&store)));
                (capabilities, Handle::Secrets(store))
            }
        };
        metrics.component_loaded();
        metrics.component_initialized(&component.kind);
        tracing::info!(target: LOG, "Component loaded: {}", component.log_name());
        self.running.0.push((component.log_name(), handle));
        self.registered.push(Registered {
            name: component.name.clone(),
            kind: component.kind.clone(),
            version: component.version.clone(),
            capabilities,
        });
    }
}

fn state_capabilities(features: &[state::Feature]) -> Vec<&'static str> {
    let mut names: Vec<_> = features.iter().map(|feature| feature.name()).collect();
    let has = |feature| features.contains(&feature);
    if has(state::Feature::Etag) && has(state::Feature::Transactional) {
        names.push("ACTOR");
    }
    names
}

/// Logs and counts a failure; an error unless the component may be missing.
fn report(component: &Component, error: OpenError, metrics: &RuntimeMetrics) -> Result<(), StartError> {
    metrics.component_init_failed(&component.kind, error.reason(), &component.name);
    let name = component.log_name();
    tracing::error!(target: LOG, "Failed to init component {name}: {error}");
    let error = StartError {
        name: component.name.clone(),
        error,
    };
    if component.ignore_errors {
        tracing::error!(target: LOG, "Ignoring error processing component: {error}");
        return Ok(());
    }
    tracing::warn!(target: LOG, "Error processing component, daprd will exit gracefully: {error}");
    Err(error)
}
