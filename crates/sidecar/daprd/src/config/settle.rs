//! Turns flags and environment into a [`Config`], and collects all errors.

use std::time::Duration;

use outrigger_accept::address::is_localhost;
use outrigger_accept::budget;
use outrigger_flags::Values;
use outrigger_nearest::hint;
use outrigger_resources::value::{format_go_nanos, go_nanos, quantity, truthy};
use outrigger_runtime::app::{App, AppHealth, AppProtocol};

use super::invalid::Invalid;
use super::{
    Api, Config, ControlPlane, Cors, Internal, Log, LogLevel, Metrics, Mode, Profiling, Public, Resources,
    Security, Shutdown, Workload,
};

/// Default body limit in bytes.
const DEFAULT_MAX_BODY: i64 = 4 << 20;
/// Default limit of a request head in bytes.
const DEFAULT_READ_BUFFER: i64 = 4 << 10;
/// Limit of a request head in bytes if the flag disables the limit; heads stay bounded.
const MAX_READ_BUFFER: usize = 1 << 20;
/// Default interval of lists of resources.
const DEFAULT_RELIST: Duration = Duration::from_secs(60);
/// Default folder of the sockets of pluggable components.
const DEFAULT_SOCKETS: &str = "/tmp/dapr-components-sockets";

/// Collects a configuration and its errors.
pub(super) struct Settings<'a, E> {
    given: &'a Values,
    env: E,
    wrong: Vec<Invalid>,
}

impl<'a, E: Fn(&str) -> Option<String>> Settings<'a, E> {
    pub(super) fn new(given: &'a Values, env: E) -> Self {
        Settings {
            given,
            env,
            wrong: Vec::new(),
        }
    }

    /// The configuration, with defaults in place of invalid values.
    pub(super) fn settle(mut self) -> (Config, Vec<Invalid>) {
        let mode = self.mode();
        let config = Config {
            app_id: self.app_id(mode),
            mode,
            workload: Workload {
                namespace: (self.env)("NAMESPACE"),
                host_ip: self.variable("DAPR_HOST_IP"),
            },
            app: self.app(),
            api: self.api(),
            internal: self.internal(),
            public: self.public(),
            metrics: Metrics {
                enabled: self.given.boolean("enable-metrics"),
                port: self.port("metrics-port", self.given.boolean("enable-metrics")),
                listen_address: self.text("metrics-listen-address"),
            },
            profiling: Profiling {
                enabled: self.given.boolean("enable-profiling"),
                port: self.port("profile-port", self.given.boolean("enable-profiling")),
            },
            resources: self.resources(),
            security: self.security(),
            control_plane: self.control_plane(),
            shutdown: self.shutdown(),
            log: self.log(),
        };
        self.conflicts(&config);
        (config, self.wrong)
    }

    /// A variable, if it is set and not empty.
    fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, flag: &'static str) -> String {
        self.given.text(flag).to_owned()
    }

    /// The value of a step; its error is recorded for the report.
    fn keep<T: Default>(&mut self, result: Result<T, Invalid>) -> T {
        result.unwrap_or_else(|invalid| {
            self.wrong.push(invalid);
            T::default()
        })
    }

    /// A port flag. Launchers pass any number for ports that they did not choose, so an invalid port of a
    /// disabled server counts as 0.
    fn port(&mut self, flag: &'static str, listens: bool) -> u16 {
        let port = match self.given.text(flag).parse::<i64>() {
            Ok(number) if !listens => Ok(number.try_into().unwrap_or(0)),
            _ => port(self.given, flag),
        };
        self.keep(port)
    }

    fn mode(&mut self) -> Mode {
        let mode = match self.given.text("mode") {
            "standalone" => Ok(Mode::Standalone),
            "kubernetes" => Ok(Mode::Kubernetes),
            other => Err(Invalid::flag(
                "mode",
                format!("invalid value for 'mode': {other}"),
                hint(other, ["standalone", "kubernetes"]) + "give standalone or kubernetes",
            )),
        };
        self.keep(mode)
    }

    fn app_id(&mut self, mode: Mode) -> String {
        let id = self.text("app-id");
        let problem = match mode {
            Mode::Kubernetes => None,
            Mode::Standalone if id.is_empty() => Some("parameter app-id cannot be empty"),
            Mode::Standalone if id.contains('.') => Some("parameter app-id cannot contain dots"),
            Mode::Standalone => None,
        };
        if let Some(what) = problem {
            self.wrong.push(Invalid::flag(
                "app-id",
                what,
                "give the app a name of letters, digits and dashes",
            ));
        }
        id
    }

    fn app(&mut self) -> App {
        let protocol = self.protocol();
        let port = if self.given.text("app-port").is_empty() {
            0
        } else {
            self.port("app-port", true)
        };
        let (config, subscribe) = self.skipped_endpoints();
        let health = self.health();
        let binding_timeout = duration(self.given, "app-binding-options-timeout");
        App {
            port,
            protocol,
            address: self.text("app-channel-address"),
            max_concurrency: usize::try_from(self.given.int("app-max-concurrency"))
                .ok()
                .filter(|n| *n > 0),
            api_token: self.variable("APP_API_TOKEN"),
            health,
            health_path: self.text("app-health-check-path"),
            binding_options_timeout: if binding_timeout.is_zero() {
                Duration::from_secs(3)
            } else {
                binding_timeout
            },
            skip_config_endpoint: config,
            skip_subscribe_endpoint: subscribe,
        }
    }

    fn protocol(&mut self) -> AppProtocol {
        let text = self.given.text("app-protocol");
        let tls = self.given.boolean("app-ssl");
        let protocol = match text.to_lowercase().as_str() {
            "http" if tls => Ok(AppProtocol::Https),
            "grpc" if tls => Ok(AppProtocol::Grpcs),
            "http" | "" => Ok(AppProtocol::Http),
            "https" => Ok(AppProtocol::Https),
            "h2c" => Ok(AppProtocol::H2c),
            "grpc" => Ok(AppProtocol::Grpc),
            "grpcs" => Ok(AppProtocol::Grpcs),
            _ => Err(Invalid::flag(
                "app-protocol",
                format!("invalid value for 'app-protocol': {text}"),
                hint(text, ["http", "https", "h2c", "grpc", "grpcs"])
                    + "give http, https, h2c, grpc or grpcs",
            )),
        };
        self.keep(protocol)
    }

    /// Whether to skip `/dapr/config` and `/dapr/subscribe`.
    fn skipped_endpoints(&mut self) -> (bool, bool) {
        let (mut config, mut subscribe) = (false, false);
        for item in self.given.list("disable-init-endpoints") {
            match item.trim().to_lowercase().as_str() {
                "" => {}
                "config" => config = true,
                "subscribe" => subscribe = true,
                other => self.wrong.push(Invalid::flag(
                    "disable-init-endpoints",
                    format!("invalid value for 'disable-init-endpoints': {other}"),
                    hint(other, ["config", "subscribe"]) + "give config, subscribe or both",
                )),
            }
        }
        (config, subscribe)
    }

    fn health(&mut self) -> Option<AppHealth> {
        let positive = |flag, default: u64| {
            u64::try_from(self.given.int(flag))
                .ok()
                .filter(|n| *n > 0)
                .unwrap_or(default)
        };
        let interval = Duration::from_secs(positive("app-health-probe-interval", 5));
        let timeout = Duration::from_millis(positive("app-health-probe-timeout", 500));
        let threshold = u32::try_from(self.given.int("app-health-threshold")).ok();
        let threshold = threshold
            .filter(|n| (1..i32::MAX.unsigned_abs()).contains(n))
            .unwrap_or(3);
        if timeout > interval {
            self.wrong.push(Invalid::flag(
                "app-health-probe-timeout",
                "value for 'health-probe-timeout' must be smaller than 'health-probe-interval'",
                format!(
                    "give at most {} ms or raise --app-health-probe-interval",
                    interval.as_millis()
                ),
            ));
        }
        self.given
            .boolean("enable-app-health-check")
            .then_some(AppHealth {
                interval,
                timeout,
                threshold,
            })
    }

    fn api(&mut self) -> Api {
        let body = self.size("max-body-size", "dapr-http-max-request-size", 20);
        let head = self.size("read-buffer-size", "dapr-http-read-buffer-size", 10);
        let socket_dir = path(self.given.text("unix-domain-socket"));
        Api {
            http_port: self.port("dapr-http-port", socket_dir.is_none()),
            grpc_port: self.port("dapr-grpc-port", socket_dir.is_none()),
            listen_addresses: self
                .given
                .text("dapr-listen-addresses")
                .split(',')
                .map(|a| a.trim().to_owned())
                .collect(),
            socket_dir,
            cors: cors(self.given.text("allowed-origins")),
            max_body_size: limit(if body == -1 { DEFAULT_MAX_BODY } else { body }),
            read_buffer_size: limit(if head == -1 { DEFAULT_READ_BUFFER } else { head })
                .unwrap_or(MAX_READ_BUFFER),
            api_logging: self
                .given
                .given("enable-api-logging")
                .then(|| self.given.boolean("enable-api-logging")),
            token: self.variable("DAPR_API_TOKEN"),
            disable_h2c: self.variable("DAPR_HTTP_DISABLE_H2C").is_some_and(|v| truthy(&v)),
            memory_budget: self.memory_budget(),
        }
    }

    fn memory_budget(&mut self) -> Option<usize> {
        let read = budget::read(|name| (self.env)(name), quantity);
        self.keep(read.map_err(|what| Invalid::new(budget::VARIABLE, what, "give a size such as 256Mi")))
    }

    /// A size in bytes: a quantity, or the older flag in units of 2^shift if only that is given.
    fn size(&mut self, flag: &'static str, older: &'static str, shift: u32) -> i64 {
        if !self.given.given(flag) && self.given.given(older) {
            let count = self.given.int(older);
            return if count > 0 {
                count.saturating_mul(1 << shift)
            } else {
                count
            };
        }
        let size = quantity(self.given.text(flag)).map_err(|e| {
            let remedy = "give a quantity such as 4Mi, 512Ki or 1048576";
            Invalid::flag(flag, format!("invalid value for '{flag}' option: {e}"), remedy)
        });
        self.keep(size)
    }

    fn internal(&mut self) -> Internal {
        let port = match self.given.text("dapr-internal-grpc-port") {
            "" | "0" => None,
            _ => Some(self.port("dapr-internal-grpc-port", true)),
        };
        Internal {
            port,
            listen_address: self.text("dapr-internal-grpc-listen-address"),
        }
    }

    fn public(&mut self) -> Option<Public> {
        if self.given.text("dapr-public-port").is_empty() {
            return None;
        }
        let port = self.port("dapr-public-port", true);
        Some(Public {
            port,
            listen_address: self.text("dapr-public-listen-address"),
        })
    }

    fn resources(&self) -> Resources {
        let mut paths = self.given.list("resources-path");
        let older = self.given.text("components-path");
        if paths.is_empty() && !older.is_empty() {
            paths.push(older.to_owned());
        }
        let relist = duration(self.given, "hot-reload-reconcile-interval");
        Resources {
            relist: match relist.is_zero() {
                true => DEFAULT_RELIST,
                false => relist,
            },
            paths: paths.into_iter().map(Into::into).collect(),
            configs: self.given.list("config"),
            disable_builtin_kubernetes_secret_store: self.given.boolean("disable-builtin-k8s-secret-store"),
            pluggable_sockets: self
                .variable("DAPR_COMPONENTS_SOCKETS_FOLDER")
                // The injector's name for the variable.
                .or_else(|| self.variable("DAPR_COMPONENT_SOCKETS_FOLDER"))
                .unwrap_or_else(|| DEFAULT_SOCKETS.to_owned())
                .into(),
            env_keys: self.variable("DAPR_ENV_KEYS").unwrap_or_default(),
        }
    }

    fn security(&self) -> Security {
        let or_env = |flag: &'static str, name: &str| match (self.env)(name) {
            Some(value) if !self.given.given(flag) => value,
            _ => self.text(flag),
        };
        Security {
            mtls: self.given.boolean("enable-mtls"),
            sentry_address: self.text("sentry-address"),
            trust_anchors: self.variable("DAPR_TRUST_ANCHORS"),
            control_plane_trust_domain: or_env(
                "control-plane-trust-domain",
                "DAPR_CONTROLPLANE_TRUST_DOMAIN",
            ),
            control_plane_namespace: or_env("control-plane-namespace", "DAPR_CONTROLPLANE_NAMESPACE"),
            jwt_audiences: self.given.list("sentry-request-jwt-audiences"),
            token_file: (self.env)("DAPR_SENTRY_TOKEN_FILE"),
            local_identity: self.variable("SENTRY_LOCAL_IDENTITY"),
            skip_root_check: (self.env)("DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK").as_deref()
                == Some("true"),
        }
    }

    fn control_plane(&mut self) -> ControlPlane {
        let given = self.given;
        let placement = match (given.text("placement-host-address"), given.text("actors-service")) {
            ("", service) => service.strip_prefix("placement:").unwrap_or(""),
            (addresses, _) => addresses,
        };
        let scheduler = if given.given("scheduler-host-address") {
            given.list("scheduler-host-address").join(",")
        } else {
            self.variable("DAPR_SCHEDULER_HOST_ADDRESS_DNS_A")
                .unwrap_or_default()
        };
        let streams = match u32::try_from(given.uint("scheduler-job-streams")) {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(Invalid::flag(
                "scheduler-job-streams",
                "invalid value for 'scheduler-job-streams': must be at least 1",
                "give the number of job streams per scheduler address",
            )),
        };
        let timeout = "actors-disseminate-timeout";
        let disseminate_timeout = match go_nanos(given.text(timeout)) {
            Ok(nanos @ ..=0) => Err(Invalid::flag(
                timeout,
                format!(
                    "invalid value for '{timeout}' option: must be positive, got {}",
                    format_go_nanos(nanos)
                ),
                "give a positive duration, such as 30s",
            )),
            _ => Ok(duration(given, timeout)),
        };
        ControlPlane {
            operator: self.text("control-plane-address"),
            placement: addresses(placement),
            handover: given.boolean("actors-handover"),
            disseminate_timeout: self.keep(disseminate_timeout),
            scheduler: addresses(&scheduler),
            scheduler_streams: self.keep(streams),
        }
    }

    fn shutdown(&self) -> Shutdown {
        let grace = match self.given.int("dapr-graceful-shutdown-seconds") {
            0 => None,
            seconds => Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(5))),
        };
        let block = "dapr-block-shutdown-duration";
        Shutdown {
            grace,
            block: self.given.given(block).then(|| duration(self.given, block)),
        }
    }

    fn log(&mut self) -> Log {
        let text = self.given.text("log-level");
        let level = match text.to_lowercase().as_str() {
            "debug" => Ok(LogLevel::Debug),
            "info" => Ok(LogLevel::Info),
            "warn" => Ok(LogLevel::Warn),
            "error" => Ok(LogLevel::Error),
            "fatal" => Ok(LogLevel::Fatal),
            _ => Err(Invalid::flag(
                "log-level",
                format!("invalid value for 'log-level': {text}"),
                hint(text, ["debug", "info", "warn", "error", "fatal"])
                    + "give debug, info, warn, error or fatal",
            )),
        };
        Log {
            level: self.keep(level),
            file: path(self.given.text("log-file")),
            json: self.given.boolean("log-as-json"),
        }
    }

    /// Reports sidecar ports that the app uses too. As in the contract, an app on another machine conflicts
    /// only with the API ports.
    fn conflicts(&mut self, config: &Config) {
        if config.app.port == 0 {
            return;
        }
        let here = is_localhost(&config.app.address);
        let ports = [
            ("dapr-http-port", config.api.http_port, true),
            ("dapr-grpc-port", config.api.grpc_port, true),
            ("dapr-internal-grpc-port", config.internal.port.unwrap_or(0), here),
            (
                "dapr-public-port",
                config.public.as_ref().map_or(0, |public| public.port),
                here,
            ),
            (
                "metrics-port",
                config.metrics.port,
                here && config.metrics.enabled,
            ),
            (
                "profile-port",
                config.profiling.port,
                here && config.profiling.enabled,
            ),
        ];
        for (flag, port, checked) in ports {
            if checked && port == config.app.port {
                self.wrong.push(Invalid::flag(
                    flag,
                    format!("the '{flag}' argument value {port} conflicts with 'app-port'"),
                    "give it another port than --app-port",
                ));
            }
        }
    }
}

/// The duration of a flag whose format was checked with the command line; negative values count as zero.
fn duration(given: &Values, flag: &'static str) -> Duration {
    let nanos = go_nanos(given.text(flag)).unwrap_or(0);
    Duration::from_nanos(nanos.max(0).unsigned_abs())
}

/// A port flag; 0 means any free port.
pub(super) fn port(given: &Values, flag: &'static str) -> Result<u16, Invalid> {
    let text = given.text(flag);
    text.parse().map_err(|_| {
        Invalid::flag(
            flag,
            format!("error parsing {flag}: {text:?} is not a port"),
            "give a number from 0 to 65535",
        )
    })
}

fn limit(bytes: i64) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|n| *n > 0)
}

fn path(text: &str) -> Option<std::path::PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

/// A comma-separated list of addresses. Launchers pass empty values in various quotes.
fn addresses(text: &str) -> Vec<String> {
    let trimmed = |item: &str| {
        item.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\'' | '"'))
            .to_owned()
    };
    text.split(',')
        .map(trimmed)
        .filter(|address| !address.is_empty())
        .collect()
}

fn cors(text: &str) -> Cors {
    let origins: Vec<String> = text
        .split(',')
        .map(|o| o.trim().to_owned())
        .filter(|o| !o.is_empty())
        .collect();
    match origins.as_slice() {
        [] => Cors::Off,
        all if all.iter().any(|o| o == "*") => Cors::Any,
        _ => Cors::Only(origins),
    }
}
