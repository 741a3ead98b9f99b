//! The resources of a sidecar, from files or from the operator, as read at start.

use std::sync::Arc;

use outrigger_identity::{Identity, SpiffeId, TrustDomain};
use outrigger_resources::component::DEFAULT_INIT_TIMEOUT;
use outrigger_resources::configuration::{self, Configuration, LoadedConfiguration};
use outrigger_resources::load::{self, Kind, Loaded};
use outrigger_resources::{Component, Source};

use tokio::runtime::Handle;

use super::{Env, LOG, SidecarError};
use crate::config::{Config, Mode};
use crate::operator::{CLUSTER_SECRETS, Operator, Workload};
use crate::value_checks::value_checks;

/// The operator's app id.
const OPERATOR_APP_ID: &str = "dapr-operator";
/// The placement service's app id.
pub(super) const PLACEMENT_APP_ID: &str = "dapr-placement";

/// Logs problems of the Configuration and the resources of a sidecar that cannot start for another reason, so
/// that all can be fixed together.
pub fn check(config: &Config, env: &Env) {
    if config.mode == Mode::Standalone {
        // Each problem is logged where it is found.
        let _read = configuration(config, env).is_ok();
        let _read = resources(config).1.is_ok();
    }
}

/// Like [`configuration()`], on a blocking thread, so that signals are handled.
pub(super) async fn read_configuration(
    config: &Config,
    env: &Env,
    control: &Handle,
) -> Result<LoadedConfiguration, SidecarError> {
    let (config, env) = (config.clone(), Arc::clone(env));
    reading(control, move || configuration(&config, &env)).await
}

/// Like [`resources`], on a blocking thread.
pub(super) async fn read_resources(config: &Config, control: &Handle) -> (Loaded, Result<(), SidecarError>) {
    let config = config.clone();
    let read = reading(control, move || Ok(resources(&config))).await;
    read.unwrap_or_else(|error| (Loaded::default(), Err(error)))
}

async fn reading<T: Send + 'static>(
    control: &Handle,
    read: impl FnOnce() -> Result<T, SidecarError> + Send + 'static,
) -> Result<T, SidecarError> {
    let read = control.spawn_blocking(read).await;
    read.unwrap_or_else(|error| Err(SidecarError::Resources(error.to_string())))
}

/// The Configuration from `--config` files, over the defaults.
fn configuration(config: &Config, env: &Env) -> Result<LoadedConfiguration, SidecarError> {
    if config.resources.configs.is_empty() {
        tracing::info!(target: LOG, "loading default configuration");
    }
    let loaded = configuration::load(&config.resources.configs, &value_checks(), |name| env(name))
        .map_err(|problems| SidecarError::Configuration(summary(&problems)))?;
    show(&loaded);
    Ok(loaded)
}

/// The app's resources in the `--resources-path` folders, and the error that must end the start.
fn resources(config: &Config) -> (Loaded, Result<(), SidecarError>) {
    let request = load::Request {
        paths: &config.resources.paths,
        kinds: Kind::ALL,
        namespace: config.workload.namespace.as_deref(),
        app_id: &config.app_id,
    };
    let (loaded, problems) = load::folders_every(&request);
    crate::log_problems!(LOG, &loaded.warnings);
    let usable = match problems.is_empty() {
        true => Ok(()),
        false => Err(SidecarError::Resources(summary(&problems))),
    };
    (loaded, usable)
}

/// The trust domain of the control plane.
pub(super) fn control_plane(config: &Config) -> Result<TrustDomain, SidecarError> {
    let domain = &config.security.control_plane_trust_domain;
    let invalid = |error| SidecarError::Security(format!("--control-plane-trust-domain {domain:?}: {error}"));
    domain.parse().map_err(invalid)
}

/// The identity that a control plane service must prove.
pub(super) fn service_id(config: &Config, app_id: &str) -> Result<SpiffeId, SidecarError> {
    let namespace = &config.security.control_plane_namespace;
    let id = SpiffeId::new(&control_plane(config)?, namespace, app_id);
    id.map_err(|error| SidecarError::Security(format!("--control-plane-namespace: {error}")))
}

/// The operator of the cluster.
pub(super) fn operator(config: &Config, identity: Option<&Identity>) -> Result<Operator, SidecarError> {
    let id = service_id(config, OPERATOR_APP_ID)?;
    let identity = identity.ok_or_else(|| {
        SidecarError::Security(
            "the sidecar has no certificate for its calls to the operator: check that sentry issued one"
                .to_owned(),
        )
    })?;
    let workload = Workload {
        app_id: config.app_id.clone(),
        namespace: config.workload.namespace_or_default().to_owned(),
    };
    Ok(Operator::new(
        &config.control_plane.operator,
        identity,
        id,
        workload,
    )?)
}

/// The cluster's secret store, which exists in Kubernetes without a resource.
pub(super) fn cluster_secrets(config: &Config) -> Option<Component> {
    if config.mode != Mode::Kubernetes || config.resources.disable_builtin_kubernetes_secret_store {
        return None;
    }
    Some(Component {
        name: CLUSTER_SECRETS.to_owned(),
        namespace: String::new(),
        kind: "secretstores.kubernetes".to_owned(),
        version: "v1".to_owned(),
        // A pod without a service account token can run without it.
        ignore_errors: true,
        init_timeout: DEFAULT_INIT_TIMEOUT,
        metadata: Vec::new(),
        secret_store: String::new(),
        scopes: Vec::new(),
        source: Source::default(),
    })
}

/// The Configuration that `--config` names, or the defaults.
pub(super) async fn operator_configuration(
    config: &Config,
    env: &Env,
    operator: &Operator,
) -> Result<Configuration, SidecarError> {
    let Some(name) = config.resources.configs.first() else {
        return Ok(configuration(config, env)?.configuration);
    };
    let loaded = operator.configuration(name).await?;
    show(&loaded);
    Ok(loaded.configuration)
}

/// Logs problems of a usable Configuration, and the features that it enables.
fn show(loaded: &LoadedConfiguration) {
    for warning in &loaded.warnings {
        tracing::warn!(target: LOG, "{warning}");
    }
    for mistake in &loaded.mistakes {
        tracing::error!(target: LOG, "{mistake}");
    }
    let names: Vec<_> = loaded.configuration.features.names().collect();
    if !names.is_empty() {
        tracing::info!(target: LOG, "Enabled features: {}", names.join(" "));
    }
}

/// Logs each problem with place and remedy; the returned text for the last line has neither.
pub(super) fn summary(problems: &[outrigger_resources::Problem]) -> String {
    for problem in problems {
        tracing::error!(target: LOG, "{problem}");
    }
    outrigger_resources::problem::summary(problems)
}
