//! Resource files of a sidecar: what is read at start, and what becomes of it.

use std::time::Duration;

use outrigger_resources::configuration::{self, Configuration};
use outrigger_resources::load::{self, Kinds, Loaded};
use outrigger_resources::{HttpEndpoint, NameValue, env_ref};

use super::{Env, LOG, SidecarError};
use crate::blocks::invoke::EndpointSpec;
use crate::blocks::secrets::Secrets;
use crate::components::{fill_secrets, log_missing};
use crate::config::Config;

/// How long the secrets of one endpoint may take.
const SECRETS: Duration = Duration::from_secs(5);

/// The Configuration from `--config` files, over the defaults.
pub(super) fn configuration(config: &Config, env: &Env) -> Result<Configuration, SidecarError> {
    if config.resources.configs.is_empty() {
        tracing::info!(target: LOG, "loading default configuration");
    }
    let loaded = configuration::load(&config.resources.configs, |name| env(name))
        .map_err(|problems| SidecarError::Configuration(summary(&problems)))?;
    for warning in &loaded.warnings {
        tracing::warn!(target: LOG, "{warning}");
    }
    let names: Vec<_> = loaded.configuration.features.names().collect();
    if !names.is_empty() {
        tracing::info!(target: LOG, "Enabled features: {}", names.join(" "));
    }
    Ok(loaded.configuration)
}

/// Everything in `--resources-path` folders that concerns this app.
pub(super) fn resources(config: &Config) -> Result<Loaded, SidecarError> {
    let request = load::Request {
        paths: &config.resources.paths,
        kinds: Kinds::ALL,
        namespace: config.workload.namespace.as_deref(),
        app_id: &config.app_id,
    };
    let loaded = load::folders(&request).map_err(|problems| SidecarError::Resources(summary(&problems)))?;
    for warning in &loaded.warnings {
        tracing::warn!(target: LOG, "{warning}");
    }
    Ok(loaded)
}

fn summary(problems: &[outrigger_resources::Problem]) -> String {
    outrigger_resources::problem::summary(problems)
}

/// HTTPEndpoint resources with their secrets and environment references resolved.
pub(super) async fn endpoints(
    endpoints: Vec<HttpEndpoint>,
    config: &Config,
    env: &Env,
    secrets: &Secrets,
) -> Vec<EndpointSpec> {
    tracing::info!(target: LOG, "Loading endpoints…");
    let mut specs = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        tracing::info!(target: LOG, "Found http endpoint: {}", endpoint.name);
        specs.push(spec(endpoint, config, env, secrets).await);
    }
    tracing::info!(target: LOG, "Waiting for all outstanding http endpoints to be processed…");
    tracing::info!(target: LOG, "All outstanding http endpoints processed");
    specs
}

async fn spec(mut endpoint: HttpEndpoint, config: &Config, env: &Env, secrets: &Secrets) -> EndpointSpec {
    let count = endpoint.headers.len();
    let mut items = std::mem::take(&mut endpoint.headers);
    let tls = endpoint.tls.take().unwrap_or_default();
    items.extend(tls.documents().cloned());
    fill(&mut items, &endpoint, config, env, secrets).await;
    let documents = items.split_off(count);
    let document = |wanted: &Option<NameValue>| {
        let name = &wanted.as_ref()?.name;
        let found = documents.iter().find(|item| item.name == *name);
        found
            .and_then(|item| item.value.clone())
            .filter(|text| !text.is_empty())
    };
    EndpointSpec {
        headers: items
            .into_iter()
            .filter_map(|h| Some((h.name, h.value?)))
            .collect(),
        root_ca: document(&tls.root_ca),
        client: document(&tls.certificate).zip(document(&tls.private_key)),
        name: endpoint.name,
        base_url: endpoint.base_url,
    }
}

/// Puts the values of secrets and variables in place; says which cannot be had.
async fn fill(
    items: &mut [NameValue],
    endpoint: &HttpEndpoint,
    config: &Config,
    env: &Env,
    secrets: &Secrets,
) {
    let named = endpoint.secret_store.as_str();
    let store = secrets.component(named);
    let filling = fill_secrets(items, &endpoint.namespace, named, store.as_deref());
    match tokio::time::timeout(SECRETS, filling).await {
        Ok(missing) => log_missing(&missing, "http endpoint", &endpoint.name),
        Err(_) => tracing::error!(
            target: LOG,
            "http endpoint {}: {named} gave its secrets not within {SECRETS:?}; the endpoint is used without \
             those that are missing",
            endpoint.name
        ),
    }
    for refused in env_ref::resolve(items, &config.resources.env_keys, |name| env(name)) {
        tracing::warn!(
            target: LOG,
            "http endpoint {}: environment variable {refused:?} may not be read by resources",
            endpoint.name
        );
    }
}
