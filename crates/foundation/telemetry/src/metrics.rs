//! Metrics of one sidecar: a registry, typed recorders per area, and their exposition.
//!
//! A recorder returns handles per target (route, peer app, RPC method). Recording on a handle is a few
//! atomic adds, without a lock or an allocation. Names and labels are those of Dapr v1.18; a family appears
//! after its first observation.

mod by_status;
mod cell;
mod config;
mod encode;
mod error_codes;
mod family;
mod grpc;
mod http_client;
mod http_path;
mod http_server;
mod invoke;
mod pattern;
mod process;
mod registry;
mod resiliency;
mod rules;
mod runtime;
mod server;
mod texts;

use std::sync::Arc;

pub use by_status::Remembered;
pub use cell::{Bytes, Counter, Gauge, Histogram, Millis, Ratio};
pub use config::{HttpMetricsConfig, LabelRewrite, MetricsConfig, MetricsError, RewriteRule};
pub(crate) use encode::go_float;
pub use encode::{Format, push_escaped};
pub use error_codes::ErrorCodeMetrics;
pub use family::Family;
pub use grpc::{GrpcClientMetrics, GrpcMethod, GrpcServerMetrics};
pub use http_client::{HttpClientMetrics, HttpTarget};
pub use http_path::{HttpPathLabel, method_label};
pub use http_server::{HttpRoute, HttpServerMetrics};
pub use invoke::{AclMetrics, InvokeMetrics, InvokedApp, InvokingApp};
pub use pattern::{PatternError, Patterns, wrong_pattern};
pub use process::process_families;
pub use registry::Registry;
pub use resiliency::{BreakerState, FlowDirection, PolicyKind, PolicyMetrics, ResiliencyMetrics};
pub use rules::wrong_regex;
pub use runtime::RuntimeMetrics;
pub use server::{Page, serve};
pub use texts::{BrokenOff, TextBody, Texts};

/// All metrics of one sidecar.
#[derive(Debug)]
pub struct Metrics {
    /// For the families of other crates.
    pub registry: Registry,
    /// Components, identity.
    pub runtime: RuntimeMetrics,
    /// Service invocation and access control.
    pub invoke: InvokeMetrics,
    /// The HTTP API.
    pub http_server: HttpServerMetrics,
    /// HTTP calls to the app.
    pub http_client: HttpClientMetrics,
    /// The gRPC API and the internal server.
    pub grpc_server: GrpcServerMetrics,
    /// gRPC calls to the app, other sidecars and the control plane.
    pub grpc_client: GrpcClientMetrics,
    /// Timeouts, retries, circuit breakers.
    pub resiliency: ResiliencyMetrics,
    /// API errors by code.
    pub error_codes: ErrorCodeMetrics,
}

impl Metrics {
    /// Builds the registry and the recorders. With `enabled: false`, equals [`Metrics::disabled`].
    ///
    /// # Errors
    /// On an invalid rewrite rule, path pattern or bucket list.
    pub fn new(config: &MetricsConfig) -> Result<Arc<Self>, MetricsError> {
        if !config.enabled {
            return Ok(Self::disabled());
        }
        let registry = Registry::new(config)?;
        let path_label = Arc::new(HttpPathLabel::new(&config.http)?);
        let error_codes = if config.record_error_codes {
            registry.clone()
        } else {
            Registry::disabled()
        };
        Ok(Self::recorders(registry, path_label, &error_codes))
    }

    /// Records nothing; the exposition has only the process families.
    pub fn disabled() -> Arc<Self> {
        let registry = Registry::disabled();
        Self::recorders(registry.clone(), Arc::new(HttpPathLabel::default()), &registry)
    }

    fn recorders(registry: Registry, path_label: Arc<HttpPathLabel>, error_codes: &Registry) -> Arc<Self> {
        Arc::new(Self {
            runtime: RuntimeMetrics::new(&registry),
            invoke: InvokeMetrics::new(&registry),
            http_server: HttpServerMetrics::new(&registry, path_label.clone()),
            http_client: HttpClientMetrics::new(&registry, path_label),
            grpc_server: GrpcServerMetrics::new(&registry),
            grpc_client: GrpcClientMetrics::new(&registry),
            resiliency: ResiliencyMetrics::new(&registry),
            error_codes: ErrorCodeMetrics::new(error_codes),
            registry,
        })
    }

    /// The exposition: every observed family, then the process families.
    pub fn render(&self, format: Format) -> String {
        let mut out = String::with_capacity(16 * 1024);
        self.registry.render(format, &mut out);
        process_families(format, &mut out);
        encode::finish(format, &mut out);
        out
    }
}
