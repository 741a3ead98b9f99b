//! The settings of an injector process, read from flags and the environment and validated as a whole.

mod flags;
mod settings;

use std::path::PathBuf;

use outrigger_accept::Listen;
use outrigger_controlplane::config::Reader;
use outrigger_flags::Values;
use outrigger_identity::TrustDomain;

pub use flags::FLAGS;
pub use outrigger_controlplane::config::{ConfigError, LogSettings};
pub use settings::{Service, Settings};

use crate::callers::Callers;

/// Variable with patterns of service accounts that may create pods with sidecars.
const ACCOUNTS: &str = "ALLOWED_SERVICE_ACCOUNTS";
/// Its deprecated second name.
pub(crate) const OLD_ACCOUNTS: &str = "ALLOWED_SERVICE_ACCOUNTS_PREFIX_NAMES";

/// Everything an injector needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the admission webhook.
    pub webhook: Listen,
    /// Address of the health server.
    pub healthz: Listen,
    /// Address of the metrics server; `None` if metrics are off.
    pub metrics: Option<Listen>,
    /// Path of a kubeconfig, for use outside of a pod.
    pub kubeconfig: Option<PathBuf>,
    /// File with the root certificates.
    pub anchors: PathBuf,
    /// Trust domain of the control plane.
    pub trust_domain: TrustDomain,
    /// `host:port` of sentry.
    pub sentry_address: String,
    /// Name of the control plane's Configuration.
    pub configuration: String,
    /// Settings for all sidecars.
    pub settings: Settings,
    /// Callers that may create pods with sidecars.
    pub(crate) callers: Callers,
    /// Settings of the process log.
    pub log: LogSettings,
}

impl Config {
    /// Reads the flags in [`FLAGS`] and, through `env`, the environment.
    ///
    /// # Errors
    /// All problems found, not only the first.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let trust_domain =
            env("DAPR_CONTROL_PLANE_TRUST_DOMAIN").unwrap_or_else(|| "cluster.local".to_owned());
        let trust_domain = trust_domain
            .parse::<TrustDomain>()
            .inspect_err(|error| problems.push(format!("DAPR_CONTROL_PLANE_TRUST_DOMAIN: {error}")))
            .ok();
        let settings = settings::read(
            &env,
            trust_domain.as_ref(),
            flags.boolean("scheduler-enabled"),
            &mut problems,
        );
        let mut callers = Callers::default();
        for name in [ACCOUNTS, OLD_ACCOUNTS] {
            if let Err(error) = callers.add(&env(name).unwrap_or_default()) {
                problems.push(format!("{name}: {error}"));
            }
        }
        let mut reader = Reader::new(flags);
        reader.problems = problems;
        let webhook = reader.listen("listen-address", "port");
        let healthz = reader.listen("healthz-listen-address", "healthz-port");
        let metrics = reader.metrics();
        let log = reader.log();
        let kubeconfig = reader.given("kubeconfig").map(PathBuf::from);
        match (settings, trust_domain, log, reader.problems.is_empty()) {
            (Some(settings), Some(trust_domain), Some(log), true) => Ok(Self {
                webhook,
                healthz,
                metrics,
                kubeconfig,
                anchors: env("DAPR_TRUST_ANCHORS_FILE")
                    .unwrap_or_else(|| "/var/run/dapr.io/tls/ca.crt".to_owned())
                    .into(),
                sentry_address: env("DAPR_SENTRY_ADDRESS")
                    .unwrap_or_else(|| format!("dapr-sentry.{}.svc:443", settings.namespace)),
                configuration: env("DAPR_CONTROL_PLANE_CONFIGURATION")
                    .unwrap_or_else(|| "daprsystem".to_owned()),
                trust_domain,
                callers,
                settings,
                log,
            }),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

#[cfg(test)]
mod tests;
