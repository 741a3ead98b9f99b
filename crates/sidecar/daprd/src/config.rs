//! The sidecar's settings: parses flags and environment into one validated [`Config`].
//!
//! Names, defaults and texts follow Dapr 1.18.3. All errors of a command line are reported together. Nothing
//! here accesses the process environment, the network or the disk.

mod command;
mod environment;
mod flags;
mod invalid;
mod port;
mod settle;

use std::path::PathBuf;
use std::time::Duration;

use outrigger_runtime::app::App;

pub use command::Command;
pub use flags::usage;
pub use invalid::{Exit, Invalid};
pub use port::stable_port;

/// The contract's version, for `--version` and for tools that depend on it.
pub const VERSION: &str = "1.18.3";

/// The version in `/v1.0/metadata`: the build's own in builds of `scripts/dist`, otherwise the one that
/// Dapr's test suite expects.
pub const METADATA_VERSION: &str = match option_env!("OUTRIGGER_DIST") {
    Some(_) => VERSION,
    None => "edge",
};

/// Where the sidecar runs, which determines the source of its resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Resources from folders and files.
    #[default]
    Standalone,
    /// Resources from the operator.
    Kubernetes,
}

/// All settings of the sidecar, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `--app-id`; never empty and without dots in standalone mode.
    pub app_id: String,
    /// `--mode`.
    pub mode: Mode,
    /// Namespace, pod name and host address of this workload.
    pub workload: Workload,
    /// The app of this sidecar.
    pub app: App,
    /// The public APIs.
    pub api: Api,
    /// The server that other sidecars call.
    pub internal: Internal,
    /// `--dapr-public-port` and its address; `None` turns the server off.
    pub public: Option<Public>,
    /// The metrics server.
    pub metrics: Metrics,
    /// `--enable-profiling` and `--profile-port`.
    pub profiling: Profiling,
    /// Sources of resources and Configurations.
    pub resources: Resources,
    /// Identity and mTLS.
    pub security: Security,
    /// Addresses of the control plane services.
    pub control_plane: ControlPlane,
    /// Shutdown behaviour.
    pub shutdown: Shutdown,
    /// Log level and format.
    pub log: Log,
}

/// Identity of this workload in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// `NAMESPACE` as given; `None` if unset. Resource filters use this raw value.
    pub namespace: Option<String>,
    /// `DAPR_HOST_IP`: overrides host address detection.
    pub host_ip: Option<String>,
}

impl Workload {
    /// The namespace for identity, name resolution, actors, workflows and scheduler: `default` if unset.
    pub fn namespace_or_default(&self) -> &str {
        match self.namespace.as_deref() {
            Some(ns) if !ns.is_empty() => ns,
            _ => "default",
        }
    }

    /// The namespace for resource filters, key prefixes and metric labels: empty if unset.
    pub fn namespace_raw(&self) -> &str {
        self.namespace.as_deref().unwrap_or("")
    }
}

/// The HTTP and gRPC APIs offered to the app.
#[derive(Debug, Clone, PartialEq)]
pub struct Api {
    /// `--dapr-http-port`.
    pub http_port: u16,
    /// `--dapr-grpc-port`.
    pub grpc_port: u16,
    /// `--dapr-listen-addresses`; never empty. An empty element means all interfaces.
    pub listen_addresses: Vec<String>,
    /// `--unix-domain-socket`: if set, the APIs listen only on sockets in this folder.
    pub socket_dir: Option<PathBuf>,
    /// `--allowed-origins`.
    pub cors: Cors,
    /// `--max-body-size` in bytes, for HTTP and gRPC; `None` means no limit.
    pub max_body_size: Option<usize>,
    /// `--read-buffer-size` in bytes: the maximum size of an HTTP request head. gRPC header lists may have
    /// twice as many bytes, and at least 64 KiB.
    pub read_buffer_size: usize,
    /// `--enable-api-logging`; `None` leaves it to the Configuration.
    pub api_logging: Option<bool>,
    /// `DAPR_API_TOKEN`, required from API callers; `None` if no token is required.
    pub token: Option<String>,
    /// `DAPR_HTTP_DISABLE_H2C`: disables cleartext HTTP/2 on the HTTP API.
    pub disable_h2c: bool,
    /// `OUTRIGGER_MEMORY_BUDGET` of the process in bytes; `None` derives it from the available memory.
    pub memory_budget: Option<usize>,
}

impl Api {
    /// The socket of the HTTP API, if sockets are used.
    pub fn http_socket(&self, app_id: &str) -> Option<PathBuf> {
        self.socket_dir
            .as_ref()
            .map(|dir| dir.join(format!("dapr-{app_id}-http.socket")))
    }

    /// The socket of the gRPC API, if sockets are used.
    pub fn grpc_socket(&self, app_id: &str) -> Option<PathBuf> {
        self.socket_dir
            .as_ref()
            .map(|dir| dir.join(format!("dapr-{app_id}-grpc.socket")))
    }
}

/// `--allowed-origins`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cors {
    /// No CORS handling.
    #[default]
    Off,
    /// Any origin (`*`).
    Any,
    /// Only these origins.
    Only(Vec<String>),
}

/// The internal gRPC server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Internal {
    /// `--dapr-internal-grpc-port`; `None` means the stable port, see [`stable_port`].
    pub port: Option<u16>,
    /// `--dapr-internal-grpc-listen-address`; empty means all interfaces.
    pub listen_address: String,
}

/// The additional HTTP server, with metadata and health only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Port; 0 means any free port.
    pub port: u16,
    /// Bind address; empty means all interfaces.
    pub listen_address: String,
}

/// The metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// `--enable-metrics`.
    pub enabled: bool,
    /// `--metrics-port`.
    pub port: u16,
    /// `--metrics-listen-address`.
    pub listen_address: String,
}

/// The profiling server, which binds to the API addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profiling {
    /// `--enable-profiling`.
    pub enabled: bool,
    /// `--profile-port`.
    pub port: u16,
}

/// Sources of resources.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// `--resources-path` (or the deprecated `--components-path`), in order.
    pub paths: Vec<PathBuf>,
    /// `--config`: file paths (standalone) or resource names (Kubernetes, where only the first is used).
    pub configs: Vec<String>,
    /// `--hot-reload-reconcile-interval`: how often to list resources without reported changes.
    pub relist: Duration,
    /// `--disable-builtin-k8s-secret-store`.
    pub disable_builtin_kubernetes_secret_store: bool,
    /// `DAPR_COMPONENTS_SOCKETS_FOLDER`, or the injector's `DAPR_COMPONENT_SOCKETS_FOLDER`: folder of the
    /// sockets of pluggable components.
    pub pluggable_sockets: PathBuf,
    /// `DAPR_ENV_KEYS` as given: names usable in `envRef`; empty means all except reserved ones.
    pub env_keys: String,
}

/// Identity and mTLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// `--enable-mtls`.
    pub mtls: bool,
    /// `--sentry-address`; empty if not given.
    pub sentry_address: String,
    /// `DAPR_TRUST_ANCHORS`: PEM root certificates.
    pub trust_anchors: Option<String>,
    /// `--control-plane-trust-domain` or its variable.
    pub control_plane_trust_domain: String,
    /// `--control-plane-namespace` or its variable.
    pub control_plane_namespace: String,
    /// `--sentry-request-jwt-audiences`.
    pub jwt_audiences: Vec<String>,
    /// `DAPR_SENTRY_TOKEN_FILE`; `Some("")` (set but empty) is an error where it is used.
    pub token_file: Option<String>,
    /// `SENTRY_LOCAL_IDENTITY`: sent to sentry instead of the app id.
    pub local_identity: Option<String>,
    /// `DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK`.
    pub skip_root_check: bool,
}

/// Addresses of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlPlane {
    /// `--control-plane-address` of the operator; empty if not given.
    pub operator: String,
    /// `--placement-host-address`: list of `host:port`; empty disables placement.
    pub placement: Vec<String>,
    /// `--actors-handover`.
    pub handover: bool,
    /// `--actors-disseminate-timeout`.
    pub disseminate_timeout: Duration,
    /// `--scheduler-host-address` or its variable: list of `host:port`; empty disables the scheduler.
    pub scheduler: Vec<String>,
    /// `--scheduler-job-streams`: number of job streams per scheduler address; at least 1.
    pub scheduler_streams: u32,
}

/// Shutdown behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// `--dapr-graceful-shutdown-seconds`; `None` means no deadline (the flag is 0).
    pub grace: Option<Duration>,
    /// `--dapr-block-shutdown-duration`; `None` if the flag is not given.
    pub block: Option<Duration>,
}

/// Log level and format.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// `--log-level`.
    pub level: LogLevel,
    /// `--log-file`: file to append to, instead of stdout.
    pub file: Option<PathBuf>,
    /// `--log-as-json`.
    pub json: bool,
}

pub use outrigger_telemetry::log::Level as LogLevel;
