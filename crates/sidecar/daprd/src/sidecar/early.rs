//! The steps before resources are read. An error of one step does not hide those of others or of the
//! resources, so all can be fixed together.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_component::Catalog;
use outrigger_identity::Identity;
use outrigger_policy::access::AccessControl;
use outrigger_policy::resiliency::{Problem, Resiliency, undefined};
use outrigger_resources::configuration::Configuration;
use outrigger_resources::load::Loaded;
use outrigger_resources::resiliency as spec;
use outrigger_runtime::components;
use outrigger_telemetry::export::{self, Pipeline};
use outrigger_telemetry::metrics::Metrics;
use outrigger_telemetry::trace::Tracer;
use tokio::runtime::Handle;

use super::build::{Reported, sources};
use super::context::access_protocol;
use super::ports::{PortsError, Sockets};
use super::security::{IdentityCounts, secure};
use super::settings::{metrics_config, tracing_config};
use super::{Env, LOG, Secured, SidecarError, resources};
use crate::config::{Config, Mode};
use crate::operator::{Operator, OperatorError};

/// The state of a sidecar before its resources are read.
pub(super) struct Environment {
    pub(super) used: AppliedConfiguration,
    /// Configuration files without a document.
    pub(super) empty: Vec<PathBuf>,
    pub(super) sockets: Sockets,
    pub(super) secured: Secured,
    /// The identity towards control plane services; `None` for cleartext.
    pub(super) towards_control: Option<Identity>,
    /// Set in Kubernetes.
    pub(super) operator: Option<Operator>,
}

/// A Configuration and the parts built from it.
pub(super) struct AppliedConfiguration {
    pub(super) settings: Configuration,
    pub(super) access: Option<AccessControl>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tracer: Tracer,
    pub(super) pipeline: Pipeline,
    /// Watched before they are read, so that no change is missed.
    pub(super) sources: Vec<Reported>,
}

/// Reads the Configuration, binds the ports, obtains the identity. On a restart, ports that the last sidecar
/// has not released yet are bound again.
///
/// # Errors
/// [`SidecarError`] with all problems, including those of the resources.
pub(super) async fn prepare(
    config: &Config,
    env: &Env,
    control: &Handle,
    is_restart: bool,
) -> Result<Environment, SidecarError> {
    let sockets = Sockets::bind(config, is_restart).await;
    match config.mode {
        Mode::Standalone => standalone(config, env, control, sockets).await,
        Mode::Kubernetes => kubernetes(config, env, control, sockets?).await,
    }
}

async fn standalone(
    config: &Config,
    env: &Env,
    control: &Handle,
    sockets: Result<Sockets, PortsError>,
) -> Result<Environment, SidecarError> {
    let mut found = Found::default();
    let read = found.keep(resources::read_configuration(config, env, control).await);
    let sockets = found.keep(sockets);
    let (settings, empty) = read.map(|read| (read.configuration, read.empty)).unzip();
    let used = settings.and_then(|settings| found.used(config, env, control, settings, None));
    if let (Some(used), Some(sockets), Some(empty)) = (used, sockets, empty) {
        // A sidecar that cannot start makes no calls.
        let counts = IdentityCounts::default();
        if let Some(secured) = found.keep(secure(config, env, control, &counts).await) {
            counts.start(&used.metrics);
            tracing::info!(target: LOG, "standalone mode configured");
            return Ok(Environment {
                used,
                empty,
                sockets,
                towards_control: secured.identity.clone(),
                secured,
                operator: None,
            });
        }
    }
    let (loaded, usable) = resources::read_resources(config, control).await;
    found.keep(usable);
    log_problems_of(&loaded, config).await;
    Err(found.into_error())
}

async fn kubernetes(
    config: &Config,
    env: &Env,
    control: &Handle,
    sockets: Sockets,
) -> Result<Environment, SidecarError> {
    let counts = IdentityCounts::default();
    let mut secured = secure(config, env, control, &counts).await?;
    let operator = resources::operator(config, secured.identity.as_ref())?;
    let settings = match resources::operator_configuration(config, env, &operator).await {
        // The operator would not answer the next request either.
        Err(error @ SidecarError::Operator(OperatorError::Call { .. })) => return Err(error),
        settings => settings,
    };
    let mut found = Found::default();
    let settings = found.keep(settings);
    let used = settings.and_then(|settings| found.used(config, env, control, settings, Some(&operator)));
    if let Some(used) = used {
        counts.start(&used.metrics);
        let towards_control = secured.identity.clone();
        tracing::info!(target: LOG, "kubernetes mode configured");
        if !config.security.mtls {
            // The identity is used only towards the control plane.
            secured.identity = None;
        }
        return Ok(Environment {
            used,
            empty: Vec::new(),
            sockets,
            secured,
            towards_control,
            operator: Some(operator),
        });
    }
    if let Some(loaded) = found.keep(operator.load().await) {
        log_problems_of(&loaded, config).await;
    }
    Err(found.into_error())
}

/// Collects errors.
#[derive(Default)]
pub(super) struct Found(Vec<SidecarError>);

impl From<Vec<SidecarError>> for Found {
    fn from(errors: Vec<SidecarError>) -> Self {
        Self(errors)
    }
}

impl Found {
    /// The result of a step; an error is recorded.
    pub(super) fn keep<T>(&mut self, result: Result<T, impl Into<SidecarError>>) -> Option<T> {
        result.map_err(|error| self.0.push(error.into())).ok()
    }

    /// All errors as one.
    pub(super) fn into_error(mut self) -> SidecarError {
        match self.0.len() {
            1 => self.0.remove(0),
            _ => SidecarError::Several(self.0),
        }
    }

    /// Builds the used parts from a Configuration.
    fn used(
        &mut self,
        config: &Config,
        env: &Env,
        control: &Handle,
        settings: Configuration,
        operator: Option<&Operator>,
    ) -> Option<AppliedConfiguration> {
        let access = AccessControl::build(&settings.access_control, access_protocol(config));
        let access = self.keep(access);
        let metrics = self.keep(Metrics::new(&metrics_config(config, &settings)));
        let traced = export::build(tracing_config(&settings), &config.app_id, |name| env(name));
        let traced = self.keep(traced);
        let sources = sources(config, &settings, operator, control);
        let (tracer, pipeline) = traced?;
        Some(AppliedConfiguration {
            access: access?,
            metrics: metrics?,
            tracer,
            pipeline,
            sources,
            settings,
        })
    }
}

/// Logs problems of resources, for a start that ends before they are used.
pub(super) async fn log_problems_of(loaded: &Loaded, config: &Config) {
    let (_unused, problems) = resiliency(&loaded.resiliency, &config.app_id);
    crate::log_problems!(LOG, &problems);
    components::show_unknown(&loaded.components, &catalog(config).await);
}

/// The policies and their problems.
pub(super) fn resiliency(resources: &[spec::Resiliency], app_id: &str) -> (Resiliency, Vec<Problem>) {
    let (policies, mut problems) = Resiliency::build(resources, app_id);
    problems.extend(undefined(resources, app_id));
    (policies, problems)
}

/// The built-in components, and pluggable ones of other processes.
pub(super) async fn catalog(config: &Config) -> Catalog {
    #[allow(unused_mut, reason = "a build without them")]
    let mut catalog = outrigger_components::builtin();
    #[cfg(feature = "pluggable")]
    outrigger_components::pluggable::discover(&mut catalog, &super::settings::pluggable_components(config))
        .await;
    #[cfg(not(feature = "pluggable"))]
    let _ = config;
    catalog
}
