//! The public HTTP API.

use std::sync::Arc;
use std::time::Duration;

use super::by_status::{ByStatus, Remembered};
use super::{Bytes, Counter, Family, Histogram, HttpPathLabel, Millis, Registry};

/// `dapr_http_server_*`.
#[derive(Clone, Debug)]
pub struct HttpServerMetrics {
    /// `None` if metrics are disabled.
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    path_label: Arc<HttpPathLabel>,
    request_count: Family<Counter, 3>,
    latency: Family<Histogram<Millis>, 3>,
    response_count: Option<Family<Counter, 3>>,
    request_bytes: Histogram<Bytes>,
    response_bytes: Histogram<Bytes>,
    /// By verb, then path.
    routes: Remembered<Arc<Remembered<HttpRoute>>>,
}

/// The handles of one verb and path.
#[derive(Clone, Debug, Default)]
pub struct HttpRoute {
    inner: Option<Arc<Route>>,
}

#[derive(Debug)]
struct Route {
    server: Arc<Inner>,
    method: &'static str,
    path: Box<str>,
    by_status: ByStatus<Handles>,
}

#[derive(Clone, Debug)]
struct Handles {
    request_count: Counter,
    latency: Histogram<Millis>,
    response_count: Counter,
}

impl HttpServerMetrics {
    pub(super) fn new(registry: &Registry, path_label: Arc<HttpPathLabel>) -> Self {
        let labels = ["method", "path", "status"];
        let request_count = registry.counter(
            "http_server_request_count",
            "HTTP API requests completed.",
            labels,
        );
        if !request_count.is_enabled() {
            return Self { inner: None };
        }
        let response_count = path_label
            .increased_cardinality()
            .then(|| registry.counter("http_server_response_count", "HTTP API responses sent.", labels));
        let request_bytes = registry.size("http_server_request_bytes", "Body size of HTTP API requests.", []);
        let response_bytes = registry.size(
            "http_server_response_bytes",
            "Body size of HTTP API responses.",
            [],
        );
        Self {
            inner: Some(Arc::new(Inner {
                path_label,
                request_count,
                latency: registry.latency(
                    "http_server_latency",
                    "Time to answer an HTTP API request.",
                    labels,
                ),
                response_count,
                request_bytes: request_bytes.with([]),
                response_bytes: response_bytes.with([]),
                routes: Remembered::default(),
            })),
        }
    }

    /// The handles for a request. Repeated verbs and paths cost two lookups, without a lock.
    pub fn route(&self, method: &str, path: &str) -> HttpRoute {
        let Some(inner) = &self.inner else {
            return HttpRoute::default();
        };
        let by_path = inner.routes.get(super::method_label(method), Arc::default);
        by_path.get(path, || inner.resolve(method, path))
    }
}

impl Inner {
    fn resolve(self: &Arc<Self>, method: &str, path: &str) -> HttpRoute {
        let route = Route {
            server: self.clone(),
            method: self.path_label.method(method),
            path: self.path_label.label(path).into(),
            by_status: ByStatus::default(),
        };
        HttpRoute {
            inner: Some(Arc::new(route)),
        }
    }
}

impl HttpRoute {
    /// Records a response: status code, time, and body bytes in both directions.
    pub fn completed(&self, status: u16, elapsed: Duration, request_bytes: u64, response_bytes: u64) {
        let Some(route) = &self.inner else { return };
        route.by_status.with(
            i32::from(status),
            || route.handles(status),
            |handles| {
                handles.request_count.inc();
                handles.latency.observe(elapsed);
                handles.response_count.inc();
            },
        );
        route.server.request_bytes.observe(request_bytes);
        route.server.response_bytes.observe(response_bytes);
    }
}

impl Route {
    fn handles(&self, status: u16) -> Handles {
        let status = status.to_string();
        let labels = [self.method, &self.path, &status];
        Handles {
            request_count: self.server.request_count.with(labels),
            latency: self.server.latency.with(labels),
            response_count: self
                .server
                .response_count
                .as_ref()
                .map(|f| f.with(labels))
                .unwrap_or_default(),
        }
    }
}
