//! Settings that all control plane processes share.

use std::path::PathBuf;
use std::time::Duration;

use outrigger_accept::Listen;
use outrigger_flags::{Flag, Kind, Values};
use outrigger_identity::{Mode, TrustDomain};
use outrigger_nearest::hint;
use outrigger_resources::value::go_duration;
use outrigger_telemetry::log::Level;

use crate::TlsConfig;

/// Namespace if the environment names none.
const DEFAULT_NAMESPACE: &str = "default";

/// Settings of the process log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Minimum severity.
    pub level: Level,
    /// Whether to write JSON lines.
    pub json: bool,
    /// File to append to, instead of standard output.
    pub file: Option<PathBuf>,
}

/// Why flags and environment cannot be used, one line per problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// The error for a value that is not among `known`, with the most similar known value.
pub fn unknown(value: &str, known: &[&str]) -> String {
    let hint = hint(value, known.iter().copied());
    let (last, others) = known.split_last().unwrap_or((&"nothing", &[]));
    let or = if others.is_empty() { "" } else { " or " };
    format!(
        "\"{value}\" is unknown, {hint}want {}{or}{last}",
        others.join(", ")
    )
}

/// The namespace of this process.
pub fn namespace(env: impl Fn(&str) -> Option<String>) -> String {
    env("NAMESPACE")
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}

/// Reads flags and collects their problems.
pub struct Reader<'a> {
    /// The command line, parsed.
    pub flags: &'a Values,
    /// Problems so far, one line each.
    pub problems: Vec<String>,
}

impl<'a> Reader<'a> {
    /// A reader of these flags.
    pub const fn new(flags: &'a Values) -> Self {
        Self {
            flags,
            problems: Vec::new(),
        }
    }

    /// Adds a problem.
    pub fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// The value of a text flag, if it was given and is not empty.
    pub fn given(&self, flag: &str) -> Option<String> {
        Some(self.flags.text(flag))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    }

    /// The port of a number flag; 0 if it is not valid.
    pub fn port(&mut self, flag: &str) -> u16 {
        let value = self.flags.int(flag);
        self.checked_port(flag, value)
    }

    /// The value of a number flag as a port; 0 if it is not valid.
    pub fn checked_port(&mut self, flag: &str, value: i64) -> u16 {
        u16::try_from(value).unwrap_or_else(|_| {
            self.problem(format!("--{flag} {value} is not a port, want 0 to 65535"));
            0
        })
    }

    /// The address in a host flag and a port flag.
    pub fn listen(&mut self, host: &str, port: &str) -> Listen {
        let port = self.port(port);
        let host = self.flags.text(host).to_owned();
        Listen { host, port }
    }

    /// The address of the metrics server, if `--enable-metrics` is set.
    pub fn metrics(&mut self) -> Option<Listen> {
        let port = self.metrics_port()?;
        let host = self.flags.text("metrics-listen-address").to_owned();
        Some(Listen { host, port })
    }

    /// The port of `--metrics-port`, if `--enable-metrics` is set.
    pub fn metrics_port(&mut self) -> Option<u16> {
        if !self.flags.boolean("enable-metrics") {
            return None;
        }
        let text = self.flags.text("metrics-port");
        Some(text.parse().unwrap_or_else(|_| {
            self.problem(format!(
                "--metrics-port \"{text}\" is not a port, want 0 to 65535"
            ));
            0
        }))
    }

    /// The value of a flag of kind [`DURATION`].
    pub fn duration(&self, flag: &str) -> Duration {
        // Validated by the flag's kind.
        go_duration(self.flags.text(flag)).unwrap_or_default()
    }

    /// Reads `--trust-domain`; an invalid value adds a problem.
    pub fn trust_domain(&mut self) -> Option<TrustDomain> {
        let parsed = self.flags.text("trust-domain").parse();
        parsed
            .inspect_err(|error| self.problem(format!("--trust-domain: {error}")))
            .ok()
    }

    /// Reads `--mode`; an invalid value adds a problem.
    pub fn mode(&mut self) -> Mode {
        match self.flags.text("mode") {
            "standalone" => Mode::Standalone,
            "kubernetes" => Mode::Kubernetes,
            other => {
                self.problem(format!(
                    "--mode {}",
                    unknown(other, &["standalone", "kubernetes"])
                ));
                Mode::Standalone
            }
        }
    }

    /// mTLS settings, if `--tls-enabled` is set; always in Kubernetes.
    pub fn tls(&mut self, namespace: &str, mode: Mode) -> Option<TlsConfig> {
        let trust_domain = self.trust_domain()?;
        let file = "trust-anchors-file";
        let anchors = self.flags.given(file).then(|| self.flags.text(file).into());
        let on = mode == Mode::Kubernetes || self.flags.boolean("tls-enabled");
        on.then(|| TlsConfig {
            trust_domain,
            anchors,
            sentry_address: self
                .given("sentry-address")
                .unwrap_or_else(|| format!("dapr-sentry.{namespace}.svc:443")),
            mode,
        })
    }

    /// Settings of the process log.
    pub fn log(&mut self) -> Option<LogSettings> {
        let text = self.flags.text("log-level");
        let Ok(level) = text.parse() else {
            let levels = ["debug", "info", "warn", "error", "fatal"];
            self.problem(format!("--log-level {}", unknown(text, &levels)));
            return None;
        };
        Some(LogSettings {
            level,
            json: self.flags.boolean("log-as-json"),
            file: self.given("log-file").map(PathBuf::from),
        })
    }
}

fn check_duration(text: &str) -> Result<(), String> {
    go_duration(text).map(drop).map_err(|error| error.to_string())
}

/// The kind of flags with a Go duration.
pub const DURATION: Kind = Kind::Checked {
    name: "duration",
    expected: "a duration such as 500ms, 2s or 1h30m",
    check: check_duration,
};

/// `--trust-domain`.
pub const TRUST_DOMAIN: Flag = Flag::text("trust-domain", "localhost", "Trust domain of the control plane");
/// `--tls-enabled`.
pub const TLS_ENABLED: Flag = Flag::boolean("tls-enabled", "false", "mTLS with certificates of sentry");
/// `--trust-anchors-file`.
pub const TRUST_ANCHORS_FILE: Flag = Flag::text(
    "trust-anchors-file",
    "/var/run/secrets/dapr.io/tls/ca.crt",
    "File of the root certificates; defaults to the variable DAPR_TRUST_ANCHORS",
);
/// `--sentry-address`.
pub const SENTRY_ADDRESS: Flag = Flag::text(
    "sentry-address",
    "",
    "Address of sentry; by default dapr-sentry.NAMESPACE.svc:443",
);
/// `--healthz-port`.
pub const HEALTHZ_PORT: Flag = Flag::int("healthz-port", "8080", "Port of the health server");
/// `--healthz-listen-address`.
pub const HEALTHZ_LISTEN_ADDRESS: Flag = Flag::text(
    "healthz-listen-address",
    "",
    "Address of the health server; empty means all addresses",
);
/// `--healthz-listen-address` without effect.
pub const HEALTHZ_LISTEN_ADDRESS_IGNORED: Flag = Flag::text(
    "healthz-listen-address",
    "",
    "No effect: the health server listens on all addresses",
);
/// `--log-level`.
pub const LOG_LEVEL: Flag = Flag::text(
    "log-level",
    "info",
    "Lowest severity logged: debug, info, warn, error or fatal",
);
/// `--log-as-json`.
pub const LOG_AS_JSON: Flag = Flag::boolean("log-as-json", "false", "Log JSON lines");
/// `--log-file`.
pub const LOG_FILE: Flag = Flag::text("log-file", "", "Append the log to this file");
/// `--enable-metrics`.
pub const ENABLE_METRICS: Flag = Flag::boolean("enable-metrics", "true", "Serve Prometheus metrics");
/// `--metrics-port`.
pub const METRICS_PORT: Flag = Flag::text("metrics-port", "9090", "Port of the metrics server");
/// `--metrics-listen-address`.
pub const METRICS_LISTEN_ADDRESS: Flag = Flag::text(
    "metrics-listen-address",
    "0.0.0.0",
    "Address of the metrics server",
);
/// `--metrics-listen-address` without effect.
pub const METRICS_LISTEN_ADDRESS_IGNORED: Flag = Flag::text(
    "metrics-listen-address",
    "0.0.0.0",
    "No effect: the metrics server listens on the address of --listen-address",
);
