//! The sidecar's own settings: flags and environment in, one validated [`Config`] out.
//!
//! Names, defaults and texts follow Dapr 1.17.13. Everything wrong with a command line is reported
//! at once; nothing here touches the process environment, the network or the disk.

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

/// The version of the contract, for `--version` and the tools that decide by it.
pub const VERSION: &str = "1.17.13";

/// What `/v1.0/metadata` reports: the version in a build of `scripts/dist`, and in any other what Dapr's suite expects.
pub const METADATA_VERSION: &str = match option_env!("OUTRIGGER_DIST") {
    Some(_) => VERSION,
    None => "edge",
};

/// Where the sidecar runs, and with that where its resources come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Resources from folders and files.
    #[default]
    Standalone,
    /// Resources from the operator.
    Kubernetes,
}

/// Everything the sidecar was told by its flags and environment, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `--app-id`; never empty and without dots in standalone mode.
    pub app_id: String,
    /// `--mode`.
    pub mode: Mode,
    /// Namespace, pod name and host address of this workload.
    pub workload: Workload,
    /// The app beside us.
    pub app: App,
    /// The public APIs.
    pub api: Api,
    /// The server other sidecars call.
    pub internal: Internal,
    /// `--dapr-public-port` and its address; `None` = server off.
    pub public: Option<Public>,
    /// The metrics server.
    pub metrics: Metrics,
    /// `--enable-profiling` and `--profile-port`.
    pub profiling: Profiling,
    /// Where resources and Configurations are read from.
    pub resources: Resources,
    /// Identity and mTLS.
    pub security: Security,
    /// The other control-plane services.
    pub control_plane: ControlPlane,
    /// How the sidecar ends.
    pub shutdown: Shutdown,
    /// Log level and form.
    pub log: Log,
}

/// Where this workload lives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// `NAMESPACE` as given; `None` when unset. Resource filtering uses this raw value.
    pub namespace: Option<String>,
    /// `POD_NAME`.
    pub pod_name: Option<String>,
    /// `DAPR_HOST_IP`: overrides host address detection.
    pub host_ip: Option<String>,
}

impl Workload {
    /// The namespace for identity, name resolution, actors, workflows and scheduler: `default` when unset.
    pub fn namespace_or_default(&self) -> &str {
        match self.namespace.as_deref() {
            Some(ns) if !ns.is_empty() => ns,
            _ => "default",
        }
    }

    /// The namespace for resource filters, key prefixes and the label of metrics: empty when unset.
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
    /// `--dapr-listen-addresses`: never empty; an empty string element = every interface.
    pub listen_addresses: Vec<String>,
    /// `--unix-domain-socket`: when set, the APIs listen only on sockets in this folder.
    pub socket_dir: Option<PathBuf>,
    /// `--allowed-origins`.
    pub cors: Cors,
    /// `--max-body-size` in bytes, for HTTP and gRPC; `None` = no limit.
    pub max_body_size: Option<usize>,
    /// `--read-buffer-size` in bytes: largest HTTP request head. Header lists of gRPC may have twice as many bytes, and
    /// at least 64 KiB.
    pub read_buffer_size: usize,
    /// `--enable-api-logging`; `None` = as the Configuration says.
    pub api_logging: Option<bool>,
    /// `DAPR_API_TOKEN`: required from API callers; `None` = not required.
    pub token: Option<String>,
    /// `DAPR_HTTP_DISABLE_H2C`: no HTTP/2 in clear text on the HTTP API.
    pub disable_h2c: bool,
    /// `OUTRIGGER_MEMORY_BUDGET` in bytes, of the process; `None` = by the memory that it may have.
    pub memory_budget: Option<usize>,
}

impl Api {
    /// The socket of the HTTP API, when sockets are used.
    pub fn http_socket(&self, app_id: &str) -> Option<PathBuf> {
        self.socket_dir
            .as_ref()
            .map(|dir| dir.join(format!("dapr-{app_id}-http.socket")))
    }

    /// The socket of the gRPC API, when sockets are used.
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
    /// These origins.
    Only(Vec<String>),
}

/// The internal gRPC server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Internal {
    /// `--dapr-internal-grpc-port`; `None` = the stable port, see [`stable_port`].
    pub port: Option<u16>,
    /// `--dapr-internal-grpc-listen-address`; empty = every interface.
    pub listen_address: String,
}

/// The extra HTTP server with metadata and health only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Public {
    /// Port; 0 = any free one.
    pub port: u16,
    /// Bind address; empty = every interface.
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

/// The profiling server; it binds to the addresses of the APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profiling {
    /// `--enable-profiling`.
    pub enabled: bool,
    /// `--profile-port`.
    pub port: u16,
}

/// Where resources come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// `--resources-path` (or the deprecated `--components-path`), in order.
    pub paths: Vec<PathBuf>,
    /// `--config`: file paths (standalone) or resource names (kubernetes: only the first is used).
    pub configs: Vec<String>,
    /// `--disable-builtin-k8s-secret-store`.
    pub disable_builtin_kubernetes_secret_store: bool,
    /// `DAPR_COMPONENTS_SOCKETS_FOLDER`, or `DAPR_COMPONENT_SOCKETS_FOLDER` of the injector: sockets of pluggable components.
    pub pluggable_sockets: PathBuf,
    /// `DAPR_ENV_KEYS` as given: names usable in `envRef`; empty = all (but the reserved ones).
    pub env_keys: String,
}

/// Identity and mTLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// `--enable-mtls`.
    pub mtls: bool,
    /// `--sentry-address`; empty = not given.
    pub sentry_address: String,
    /// `DAPR_TRUST_ANCHORS`: PEM root certificates.
    pub trust_anchors: Option<String>,
    /// `--control-plane-trust-domain` or its variable.
    pub control_plane_trust_domain: String,
    /// `--control-plane-namespace` or its variable.
    pub control_plane_namespace: String,
    /// `--sentry-request-jwt-audiences`.
    pub jwt_audiences: Vec<String>,
    /// `DAPR_SENTRY_TOKEN_FILE`; `Some("")` (set but empty) is an error for who uses it.
    pub token_file: Option<String>,
    /// `SENTRY_LOCAL_IDENTITY`: sent to sentry instead of the app id.
    pub local_identity: Option<String>,
    /// `DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK`.
    pub skip_root_check: bool,
}

/// Addresses of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlPlane {
    /// `--control-plane-address`: operator; empty = not given.
    pub operator: String,
    /// `--placement-host-address`: `host:port` list; empty = no placement.
    pub placement: Vec<String>,
    /// `--actors-handover`.
    pub handover: bool,
    /// `--scheduler-host-address` or its variable: `host:port` list; empty = no scheduler.
    pub scheduler: Vec<String>,
    /// `--scheduler-job-streams`: job streams per scheduler address; at least 1.
    pub scheduler_streams: u32,
}

/// How the sidecar ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// `--dapr-graceful-shutdown-seconds`; `None` = no time limit (0 was given).
    pub grace: Option<Duration>,
    /// `--dapr-block-shutdown-duration`; `None` = flag not given.
    pub block: Option<Duration>,
}

/// Log level and form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// `--log-level`.
    pub level: LogLevel,
    /// `--log-file`: append here instead of stdout.
    pub file: Option<PathBuf>,
    /// `--log-as-json`.
    pub json: bool,
}

pub use outrigger_telemetry::log::Level as LogLevel;
