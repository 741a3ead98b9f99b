//! HTTP calls to the app and to external endpoints, and health probes.

use std::sync::Arc;
use std::time::Duration;

use super::by_status::{ByStatus, Remembered};
use super::{Bytes, Counter, Family, Histogram, HttpPathLabel, Millis, Registry};

/// `dapr_http_client_*` and `dapr_http_healthprobes_*`.
#[derive(Clone, Debug)]
pub struct HttpClientMetrics {
    /// `None` if metrics are disabled.
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    path_label: Arc<HttpPathLabel>,
    completed_count: Family<Counter, 3>,
    roundtrip: Family<Histogram<Millis>, 3>,
    sent_bytes: Family<Histogram<Bytes>, 3>,
    received_bytes: Histogram<Bytes>,
    probe_count: Family<Counter, 1>,
    probe_roundtrip: Family<Histogram<Millis>, 1>,
    probes: ByStatus<(Counter, Histogram<Millis>)>,
    /// By verb, then path.
    targets: Remembered<Arc<Remembered<HttpTarget>>>,
}

/// The handles of one verb and method path.
#[derive(Clone, Debug, Default)]
pub struct HttpTarget {
    inner: Option<Arc<Target>>,
}

#[derive(Debug)]
struct Target {
    client: Arc<Inner>,
    method: &'static str,
    path: Box<str>,
    sent_bytes: Histogram<Bytes>,
    by_status: ByStatus<(Counter, Histogram<Millis>)>,
}

impl HttpClientMetrics {
    pub(super) fn new(registry: &Registry, path_label: Arc<HttpPathLabel>) -> Self {
        let labels = ["method", "path", "status"];
        let completed_count = registry.counter(
            "http_client_completed_count",
            "HTTP calls to the app completed.",
            labels,
        );
        if !completed_count.is_enabled() {
            return Self { inner: None };
        }
        let received_bytes = registry.size(
            "http_client_received_bytes",
            "Body size of the app's HTTP responses.",
            [],
        );
        let inner = Inner {
            path_label,
            completed_count,
            roundtrip: registry.latency(
                "http_client_roundtrip_latency",
                "Time of an HTTP call to the app.",
                labels,
            ),
            sent_bytes: registry.size(
                "http_client_sent_bytes",
                "Body size of HTTP requests to the app.",
                labels,
            ),
            received_bytes: received_bytes.with([]),
            probe_count: registry.counter(
                "http_healthprobes_completed_count",
                "HTTP health probes of the app completed.",
                ["status"],
            ),
            probe_roundtrip: registry.latency(
                "http_healthprobes_roundtrip_latency",
                "Time of an HTTP health probe of the app.",
                ["status"],
            ),
            probes: ByStatus::default(),
            targets: Remembered::default(),
        };
        Self {
            inner: Some(Arc::new(inner)),
        }
    }

    /// The handles for a verb and method path. Repeated calls cost two lookups, without a lock.
    pub fn target(&self, method: &str, path: &str) -> HttpTarget {
        let Some(inner) = &self.inner else {
            return HttpTarget::default();
        };
        let by_path = inner.targets.get(super::method_label(method), Arc::default);
        by_path.get(path, || inner.resolve(method, path))
    }

    /// Records a health probe of the app.
    pub fn probe_completed(&self, status: u16, elapsed: Duration) {
        let Some(inner) = &self.inner else { return };
        let resolve = || {
            let status = status.to_string();
            (
                inner.probe_count.with([&status]),
                inner.probe_roundtrip.with([&status]),
            )
        };
        inner.probes.with(i32::from(status), resolve, |(count, latency)| {
            count.inc();
            latency.observe(elapsed);
        });
    }
}

impl Inner {
    fn resolve(self: &Arc<Self>, method: &str, path: &str) -> HttpTarget {
        let method = self.path_label.method(method);
        let path: Box<str> = self.path_label.label(path).into();
        // The status is unknown when the request is sent: the label stays empty.
        let sent_bytes = self.sent_bytes.with([method, &path, ""]);
        let target = Target {
            client: self.clone(),
            method,
            path,
            sent_bytes,
            by_status: ByStatus::default(),
        };
        HttpTarget {
            inner: Some(Arc::new(target)),
        }
    }
}

impl HttpTarget {
    /// Records a request sent, with its body size in bytes.
    pub fn started(&self, sent_bytes: u64) {
        if let Some(target) = &self.inner {
            target.sent_bytes.observe(sent_bytes);
        }
    }

    /// Records a response: status code (500 for a transport error), time, and body bytes received.
    pub fn completed(&self, status: u16, elapsed: Duration, received_bytes: u64) {
        let Some(target) = &self.inner else { return };
        let resolve = || {
            let status = status.to_string();
            let labels = [target.method, &target.path, &status];
            (
                target.client.completed_count.with(labels),
                target.client.roundtrip.with(labels),
            )
        };
        target
            .by_status
            .with(i32::from(status), resolve, |(count, latency)| {
                count.inc();
                latency.observe(elapsed);
            });
        target.client.received_bytes.observe(received_bytes);
    }
}
