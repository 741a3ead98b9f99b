//! API logging: one info line per call of the HTTP or gRPC API.

use std::time::Duration;

/// Scope of HTTP API log lines.
pub const HTTP_TARGET: &str = "dapr.runtime.http-info";
/// Scope of gRPC API log lines.
pub const GRPC_TARGET: &str = "dapr.runtime.grpc.api-info";

/// API logging settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiLog {
    /// Whether API calls are logged (`--enable-api-logging`, otherwise `logging.apiLogging.enabled`).
    pub enabled: bool,
    /// Log the route name instead of the path (`obfuscateURLs`).
    pub obfuscate_urls: bool,
    /// Omit health checks (`omitHealthChecks`).
    pub omit_health_checks: bool,
}

/// A completed HTTP API call.
#[derive(Clone, Copy, Debug)]
pub struct HttpCall<'a> {
    /// Verb, e.g. `GET`.
    pub method: &'a str,
    /// Request path.
    pub path: &'a str,
    /// Route name, logged instead of verb and path if URLs are obfuscated.
    pub route: &'a str,
    /// `User-Agent` header.
    pub user_agent: Option<&'a str>,
    /// Time from request to response head.
    pub duration: Duration,
    /// Response status code.
    pub code: u16,
    /// Response body bytes.
    pub size: u64,
    /// Whether this is a health route.
    pub health: bool,
}

impl ApiLog {
    /// Logs an HTTP API call.
    pub fn http(&self, call: &HttpCall<'_>) {
        if !self.enabled || (call.health && self.omit_health_checks) {
            return;
        }
        let duration = millis(call.duration);
        let useragent = call.user_agent.filter(|agent| !agent.is_empty());
        let (code, size) = (u64::from(call.code), call.size);
        if self.obfuscate_urls {
            let method = call.route;
            tracing::info!(target: HTTP_TARGET, method, duration, useragent, code, size, "HTTP API Called");
        } else {
            let method = format_args!("{} {}", call.method, call.path);
            tracing::info!(target: HTTP_TARGET, %method, duration, useragent, code, size, "HTTP API Called");
        }
    }

    /// Logs a gRPC API call: full RPC name (`/package.Service/Method`), gRPC status code.
    pub fn grpc(
        &self,
        full_method: &str,
        user_agent: Option<&str>,
        duration: Duration,
        code: i32,
        health: bool,
    ) {
        if !self.enabled || (health && self.omit_health_checks) {
            return;
        }
        let (duration, code) = (millis(duration), i64::from(code));
        let useragent = user_agent.filter(|agent| !agent.is_empty());
        tracing::info!(target: GRPC_TARGET, method = full_method, duration, useragent, code, "gRPC API Called");
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
