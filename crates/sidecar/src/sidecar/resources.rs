//! Resource files of a sidecar: what is read at start, and what becomes of it.

use outrigger_resources::configuration::{self, Configuration};
use outrigger_resources::load::{self, Kinds, Loaded};
use outrigger_resources::{HttpEndpoint, NameValue, env_ref};

use super::{Env, LOG, SidecarError};
use crate::blocks::invoke::EndpointSpec;
use crate::config::Config;

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

/// HTTPEndpoint resources with their environment references resolved.
pub(super) fn endpoints(endpoints: Vec<HttpEndpoint>, config: &Config, env: &Env) -> Vec<EndpointSpec> {
    tracing::info!(target: LOG, "Loading endpoints…");
    let specs = endpoints.into_iter().map(|endpoint| {
        tracing::info!(target: LOG, "Found http endpoint: {}", endpoint.name);
        spec(endpoint, config, env)
    });
    let specs = specs.collect();
    tracing::info!(target: LOG, "Waiting for all outstanding http endpoints to be processed…");
    tracing::info!(target: LOG, "All outstanding http endpoints processed");
    specs
}

fn spec(endpoint: HttpEndpoint, config: &Config, env: &Env) -> EndpointSpec {
    let resolve = |mut items: Vec<NameValue>| {
        for refused in env_ref::resolve(&mut items, &config.resources.env_keys, |name| env(name)) {
            tracing::warn!(
                target: LOG,
                "http endpoint {}: environment variable {refused:?} may not be read by resources",
                endpoint.name
            );
        }
        for item in items
            .iter()
            .filter(|item| item.value.is_none() && item.secret.is_some())
        {
            tracing::warn!(
                target: LOG,
                "http endpoint {}: {} references a secret store that isn't loaded",
                endpoint.name,
                item.name
            );
        }
        items
    };
    let headers = resolve(endpoint.headers.clone());
    let tls = endpoint.tls.clone().unwrap_or_default();
    let one = |item: Option<NameValue>| {
        let item = resolve(item.into_iter().collect()).pop()?;
        item.value.filter(|v| !v.is_empty())
    };
    let client = one(tls.certificate).zip(one(tls.private_key));
    EndpointSpec {
        headers: headers
            .into_iter()
            .filter_map(|h| Some((h.name, h.value?)))
            .collect(),
        root_ca: one(tls.root_ca),
        client,
        name: endpoint.name,
        base_url: endpoint.base_url,
    }
}
