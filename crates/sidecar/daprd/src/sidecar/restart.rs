//! Restarts of the sidecar in its process, on SIGHUP or when the Configuration changes.

use std::convert::Infallible;

use outrigger_policy::access::AccessControl;
use outrigger_resources::configuration::{self, Configuration};
use outrigger_resources::load::{self, Kind};
use outrigger_runtime::life::Shutdown;
use outrigger_telemetry::export;
use outrigger_telemetry::metrics::Metrics;
use tokio::runtime::Handle;

use super::context::access_protocol;
use super::resources::summary;
use super::settings::{metrics_config, tracing_config};
use super::{Env, LOG, SidecarError};
use crate::config::Config;
use crate::operator::Operator;
use crate::value_checks::value_checks;

/// The inputs of the next start.
pub(super) struct Restarts {
    pub(super) config: Config,
    pub(super) env: Env,
    /// Runs blocking calls.
    pub(super) control: Handle,
    pub(super) operator: Option<Operator>,
}

impl Restarts {
    /// Ends the sidecar when a restart is wanted, unless its Configuration or its resources cannot be used:
    /// then it keeps running.
    pub(super) async fn follow(&self, shutdown: &Shutdown) -> Infallible {
        loop {
            shutdown.restart_wanted().await;
            match self.check().await {
                Ok(()) => shutdown.restart(),
                Err(error) => tracing::error!(
                    target: LOG,
                    "the sidecar does not restart, because it could not start again: {error}; it runs on with its settings"
                ),
            }
        }
    }

    async fn check(&self) -> Result<(), SidecarError> {
        let settings = match (&self.operator, self.config.resources.configs.first()) {
            (Some(operator), Some(name)) => operator.configuration_now(name).await?.configuration,
            (Some(_), None) => Configuration::default(),
            (None, _) => self.files().await?,
        };
        AccessControl::build(&settings.access_control, access_protocol(&self.config))?;
        Metrics::new(&metrics_config(&self.config, &settings))?;
        export::build(tracing_config(&settings), &self.config.app_id, |name| {
            (self.env)(name)
        })?;
        Ok(())
    }

    /// The Configuration in the files; resources are read too.
    async fn files(&self) -> Result<Configuration, SidecarError> {
        let (config, env) = (self.config.clone(), self.env.clone());
        let reading = self.control.spawn_blocking(move || {
            let loaded = configuration::load(&config.resources.configs, &value_checks(), |name| env(name));
            let loaded = loaded.map_err(|problems| SidecarError::Configuration(summary(&problems)))?;
            let request = load::Request {
                paths: &config.resources.paths,
                kinds: Kind::ALL,
                namespace: config.workload.namespace.as_deref(),
                app_id: &config.app_id,
            };
            load::folders(&request).map_err(|problems| SidecarError::Resources(summary(&problems)))?;
            Ok(loaded.configuration)
        });
        reading
            .await
            .map_err(|error| SidecarError::Resources(error.to_string()))?
    }
}
