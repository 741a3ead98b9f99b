//! What there is to know of the app before it is called.

use std::time::Duration;

/// How the sidecar talks to the app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AppProtocol {
    /// HTTP/1.1 in clear text.
    #[default]
    Http,
    /// HTTP over TLS, certificate not verified.
    Https,
    /// HTTP/2 in clear text with prior knowledge.
    H2c,
    /// gRPC in clear text.
    Grpc,
    /// gRPC over TLS, certificate not verified.
    Grpcs,
}

/// The app channel.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// `--app-port`; 0 = the app does not listen, there is no app channel.
    pub port: u16,
    /// `--app-protocol` (with the deprecated `--app-ssl` applied).
    pub protocol: AppProtocol,
    /// `--app-channel-address`: host the app listens on.
    pub address: String,
    /// `--app-max-concurrency`: calls into the app at once; `None` = unlimited.
    pub max_concurrency: Option<usize>,
    /// `APP_API_TOKEN`: presented to the app on every call; `None` = none.
    pub api_token: Option<String>,
    /// App health probes; `None` = off (the app counts as healthy).
    pub health: Option<AppHealth>,
    /// `--app-health-check-path`.
    pub health_path: String,
    /// `--app-binding-options-timeout`.
    pub binding_options_timeout: Duration,
    /// `--disable-init-endpoints` contains `config`: do not read `/dapr/config`.
    pub skip_config_endpoint: bool,
    /// `--disable-init-endpoints` contains `subscribe`: do not read `/dapr/subscribe`.
    pub skip_subscribe_endpoint: bool,
}

/// App health probing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppHealth {
    /// Time between probes.
    pub interval: Duration,
    /// Time limit of a probe; never above `interval`.
    pub timeout: Duration,
    /// Consecutive failures that make the app unhealthy; at least 1.
    pub threshold: u32,
}
