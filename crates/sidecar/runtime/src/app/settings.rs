//! Settings of the app channel.

use std::time::Duration;

/// The protocol of the app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AppProtocol {
    /// Plain-text HTTP/1.1.
    #[default]
    Http,
    /// HTTP/1.1 over TLS, certificate not verified.
    Https,
    /// Plain-text HTTP/2 with prior knowledge.
    H2c,
    /// Plain-text gRPC.
    Grpc,
    /// gRPC over TLS, certificate not verified.
    Grpcs,
}

/// The app channel.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// `--app-port`; 0 means that the app does not listen and there is no app channel.
    pub port: u16,
    /// `--app-protocol` (with the deprecated `--app-ssl` applied).
    pub protocol: AppProtocol,
    /// `--app-channel-address`: host of the app.
    pub address: String,
    /// `--app-max-concurrency`: concurrent calls of the app; `None` means no limit.
    pub max_concurrency: Option<usize>,
    /// `APP_API_TOKEN`: sent to the app with every call, if set.
    pub api_token: Option<String>,
    /// App health probes; `None` disables them, and the app counts as healthy.
    pub health: Option<AppHealth>,
    /// `--app-health-check-path`.
    pub health_path: String,
    /// `--app-binding-options-timeout`.
    pub binding_options_timeout: Duration,
    /// `--disable-init-endpoints` contains `config`: `/dapr/config` is not read.
    pub skip_config_endpoint: bool,
    /// `--disable-init-endpoints` contains `subscribe`: `/dapr/subscribe` is not read.
    pub skip_subscribe_endpoint: bool,
}

/// Settings of app health probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppHealth {
    /// Time between probes.
    pub interval: Duration,
    /// Timeout of a probe; never above `interval`.
    pub timeout: Duration,
    /// Consecutive failures that make the app unhealthy; at least 1.
    pub threshold: u32,
}
