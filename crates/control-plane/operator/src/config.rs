//! The settings of an operator process, read from flags and the environment and validated as a whole.

mod flags;

use std::path::PathBuf;
use std::time::Duration;

use outrigger_accept::Listen;
use outrigger_controlplane::config::{Reader, namespace};
use outrigger_flags::Values;
use outrigger_kube::annotations::is_truthy;
use outrigger_resources::value::go_duration;

pub use flags::FLAGS;
pub use outrigger_controlplane::config::{ConfigError, LogSettings};

/// Environment variable that disables the webhook.
const WEBHOOKS_VARIABLE: &str = "ENABLE_WEBHOOKS";

/// Everything an operator needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the control plane's Configuration.
    pub configuration: String,
    /// Namespace of the operator.
    pub namespace: String,
    /// Path of a kubeconfig, for use outside of a pod.
    pub kubeconfig: Option<PathBuf>,
    /// The only namespace to watch; `None` means all.
    pub watch_namespace: Option<String>,
    /// File with the root certificates.
    pub anchors: PathBuf,
    /// Address of the gRPC server.
    pub grpc: Listen,
    /// Address of the health server.
    pub healthz: Listen,
    /// Address of the metrics server; `None` if metrics are off.
    pub metrics: Option<Listen>,
    /// Address of the webhook; `None` if it is off.
    pub webhook: Option<Listen>,
    /// How often to list the watched resources again; `None` means only if a watch fails.
    pub relist: Option<Duration>,
    /// Search for pods without their sidecar; `None` if it is off.
    pub watchdog: Option<Watchdog>,
    /// Whether replicas elect a leader for exclusive work.
    pub elects: bool,
    /// Whether the operator creates services for apps.
    pub services: bool,
    /// Whether Argo rollouts get services too.
    pub rollouts: bool,
    /// Settings of the process log.
    pub log: LogSettings,
}

/// Settings of the search for pods without their sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watchdog {
    /// Interval of searches; `None` means a single one.
    pub interval: Option<Duration>,
    /// Whether to label pods that have their sidecar.
    pub labels: bool,
    /// Maximum number of pods deleted per minute; `None` means no limit.
    pub per_minute: Option<u32>,
}

impl Config {
    /// Reads the flags in [`FLAGS`] and, through `env`, the environment.
    ///
    /// # Errors
    /// All problems found, not only the first.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(flags);
        let log = reader.log();
        let webhooks = env(WEBHOOKS_VARIABLE).is_none_or(|text| text.is_empty() || is_truthy(&text));
        let metrics = reader.metrics();
        // Read before the log level, so that all problems are reported together.
        let grpc = reader.listen("listen-address", "port");
        let healthz = reader.listen("healthz-listen-address", "healthz-port");
        let webhook = webhooks.then(|| reader.listen("webhook-server-listen-address", "webhook-server-port"));
        let watchdog = watchdog(&mut reader);
        let relist = reader.duration("cache-sync-period");
        let config = log.map(|log| Self {
            configuration: flags.text("config").to_owned(),
            namespace: namespace(&env),
            kubeconfig: reader.given("kubeconfig").map(PathBuf::from),
            watch_namespace: reader.given("watch-namespace"),
            anchors: flags.text("trust-anchors-file").into(),
            grpc,
            healthz,
            metrics,
            webhook,
            relist: (!relist.is_zero()).then_some(relist),
            watchdog,
            elects: !flags.boolean("disable-leader-election"),
            services: !flags.boolean("disable-service-reconciler"),
            rollouts: flags.boolean("enable-argo-rollout-service-reconciler"),
            log,
        });
        match (config, reader.problems.is_empty()) {
            (Some(config), true) => Ok(config),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

fn watchdog(reader: &mut Reader<'_>) -> Option<Watchdog> {
    let text = reader.flags.text("watch-interval");
    let interval = match text.to_lowercase().as_str() {
        "" | "0" | "false" | "f" | "no" | "off" => return None,
        "once" => None,
        _ => match go_duration(text) {
            Ok(interval) if interval >= Duration::from_secs(1) => Some(interval),
            Ok(_) => {
                reader.problem(format!(
                    "--watch-interval {text}: want at least 1s, once, or 0 for never"
                ));
                None
            }
            Err(error) => {
                reader.problem(format!(
                    "--watch-interval: {error}; want a duration such as 30s, once, or 0 for never"
                ));
                None
            }
        },
    };
    let most = reader.flags.int("max-pod-restarts-per-minute");
    Some(Watchdog {
        interval,
        labels: reader.flags.boolean("watchdog-can-patch-pod-labels"),
        per_minute: (most > 0).then(|| u32::try_from(most).unwrap_or(u32::MAX)),
    })
}

#[cfg(test)]
mod tests {
    use outrigger_flags::{Parsed, parse};

    use super::*;

    fn config(args: &[&str]) -> Result<Config, ConfigError> {
        with_env(args, &[("NAMESPACE", "dapr-system")])
    }

    fn with_env(args: &[&str], env: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let Ok(Parsed::Run(flags)) = parse(FLAGS, args.iter().map(|&arg| arg.to_owned())) else {
            panic!("{args:?}");
        };
        Config::from_flags(&flags, |name| {
            env.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn has_dapr_defaults() {
        let config = config(&[]).unwrap();
        assert_eq!((config.grpc.port, config.healthz.port), (6500, 8080));
        assert_eq!(config.metrics.unwrap().port, 9090);
        assert_eq!(config.webhook.unwrap().port, 19443);
        assert_eq!(
            (config.configuration.as_str(), config.namespace.as_str()),
            ("daprsystem", "dapr-system")
        );
        assert!(config.elects && config.services && !config.rollouts);
        assert_eq!(config.watchdog, None);
    }

    #[test]
    fn reads_watchdog_interval() {
        for off in ["0", "false", "F", "no", "off"] {
            assert_eq!(
                config(&["--watch-interval", off]).unwrap().watchdog,
                None,
                "{off}"
            );
        }
        let once = config(&["--watch-interval=once", "--max-pod-restarts-per-minute=0"])
            .unwrap()
            .watchdog
            .unwrap();
        assert_eq!((once.interval, once.per_minute), (None, None));
        let often = config(&["--watch-interval=90s", "--watchdog-can-patch-pod-labels"])
            .unwrap()
            .watchdog
            .unwrap();
        assert_eq!(
            (often.interval, often.per_minute),
            (Some(Duration::from_secs(90)), Some(20))
        );
        assert!(often.labels);
    }

    #[test]
    fn environment_disables_webhook() {
        assert!(
            with_env(&[], &[("ENABLE_WEBHOOKS", "false")])
                .unwrap()
                .webhook
                .is_none()
        );
        assert!(
            with_env(&[], &[("ENABLE_WEBHOOKS", "true")])
                .unwrap()
                .webhook
                .is_some()
        );
        assert_eq!(with_env(&[], &[]).unwrap().namespace, "default");
    }

    #[test]
    fn rejects_invalid_settings() {
        for (arg, text) in [
            ("--watch-interval=500ms", "at least 1s"),
            ("--watch-interval=often", "--watch-interval: "),
            ("--port=70000", "--port 70000"),
            ("--metrics-port=x", "--metrics-port \"x\""),
            ("--log-level=loud", "--log-level"),
        ] {
            let problems = config(&[arg]).unwrap_err().to_string();
            assert!(problems.contains(text), "{arg}: {problems}");
        }
    }

    #[test]
    fn reports_all_errors_together() {
        let ConfigError(problems) =
            config(&["--log-level=loud", "--port=70000", "--watch-interval=often"]).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems:?}");
        for (problem, text) in problems
            .iter()
            .zip(["--log-level", "--port 70000", "--watch-interval: "])
        {
            assert!(problem.contains(text), "{problems:?}");
        }
    }
}
