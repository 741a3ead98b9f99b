//! Service invocation and access control.

use std::sync::Arc;
use std::time::Duration;

use super::by_status::ByStatus;
use super::{Counter, Family, Histogram, Millis, Registry};

/// `dapr_runtime_service_invocation_*` and `dapr_runtime_acl_*`.
#[derive(Clone, Debug)]
pub struct InvokeMetrics {
    families: Arc<Families>,
}

#[derive(Debug)]
struct Families {
    req_sent: Family<Counter, 2>,
    req_recv: Family<Counter, 1>,
    res_sent: Family<Counter, 2>,
    res_recv: Family<Counter, 3>,
    res_latency: Family<Histogram<Millis>, 2>,
    acl: [Family<Counter, 2>; 4],
}

/// Caller side: handles for one called app.
#[derive(Clone, Debug)]
pub struct InvokedApp {
    inner: Arc<Invoked>,
}

#[derive(Debug)]
struct Invoked {
    families: Arc<Families>,
    app_id: Box<str>,
    sent_unary: Counter,
    sent_streaming: Counter,
    unary: ByStatus<(Counter, Histogram<Millis>)>,
    streaming: ByStatus<Counter>,
}

/// Callee side: handles for one calling app.
#[derive(Clone, Debug)]
pub struct InvokingApp {
    inner: Arc<Invoking>,
}

#[derive(Debug)]
struct Invoking {
    families: Arc<Families>,
    app_id: Box<str>,
    received: Counter,
    responses: ByStatus<Counter>,
}

/// Handles for access control decisions about one caller.
#[derive(Clone, Debug, Default)]
pub struct AclMetrics {
    /// Allowed by the app's policy.
    pub app_allowed: Counter,
    /// Allowed by the global default.
    pub global_allowed: Counter,
    /// Blocked by the app's policy.
    pub app_blocked: Counter,
    /// Blocked by the global default.
    pub global_blocked: Counter,
}

impl InvokeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let acl = |name: &str, help| registry.counter(name, help, ["trustDomain", "namespace"]);
        let prefix = "runtime_service_invocation";
        Self {
            families: Arc::new(Families {
                req_sent: registry.counter(
                    &format!("{prefix}_req_sent_total"),
                    "Requests sent to other apps.",
                    ["dst_app_id", "type"],
                ),
                req_recv: registry.counter(
                    &format!("{prefix}_req_recv_total"),
                    "Requests received from other apps.",
                    ["src_app_id"],
                ),
                res_sent: registry.counter(
                    &format!("{prefix}_res_sent_total"),
                    "Responses sent to other apps.",
                    ["dst_app_id", "status"],
                ),
                res_recv: registry.counter(
                    &format!("{prefix}_res_recv_total"),
                    "Responses received from other apps.",
                    ["src_app_id", "status", "type"],
                ),
                res_latency: registry.latency(
                    &format!("{prefix}_res_recv_latency_ms"),
                    "Time until another app's response.",
                    ["src_app_id", "status"],
                ),
                acl: [
                    acl(
                        "runtime_acl_app_policy_action_allowed_total",
                        "Requests an app's policy allowed.",
                    ),
                    acl(
                        "runtime_acl_global_policy_action_allowed_total",
                        "Requests the global policy allowed.",
                    ),
                    acl(
                        "runtime_acl_app_policy_action_blocked_total",
                        "Requests an app's policy blocked.",
                    ),
                    acl(
                        "runtime_acl_global_policy_action_blocked_total",
                        "Requests the global policy blocked.",
                    ),
                ],
            }),
        }
    }

    /// Handles for calling an app. Cache them with its resolved address.
    pub fn invoked(&self, app_id: &str) -> InvokedApp {
        let families = self.families.clone();
        InvokedApp {
            inner: Arc::new(Invoked {
                sent_unary: families.req_sent.with([app_id, "unary"]),
                sent_streaming: families.req_sent.with([app_id, "streaming"]),
                families,
                app_id: app_id.into(),
                unary: ByStatus::default(),
                streaming: ByStatus::default(),
            }),
        }
    }

    /// Handles for calls from an app. Cache them with its access rules.
    pub fn invoking(&self, app_id: &str) -> InvokingApp {
        let families = self.families.clone();
        InvokingApp {
            inner: Arc::new(Invoking {
                received: families.req_recv.with([app_id]),
                families,
                app_id: app_id.into(),
                responses: ByStatus::default(),
            }),
        }
    }

    /// Handles for decisions about callers of a trust domain and namespace.
    pub fn acl(&self, trust_domain: &str, namespace: &str) -> AclMetrics {
        let [app_allowed, global_allowed, app_blocked, global_blocked] = self
            .families
            .acl
            .each_ref()
            .map(|family| family.with([trust_domain, namespace]));
        AclMetrics {
            app_allowed,
            global_allowed,
            app_blocked,
            global_blocked,
        }
    }
}

impl InvokedApp {
    /// Counts a unary request sent.
    pub fn sent(&self) {
        self.inner.sent_unary.inc();
    }

    /// Counts a streaming request sent.
    pub fn sent_streaming(&self) {
        self.inner.sent_streaming.inc();
    }

    /// Records a unary response. `status` is the app's HTTP or gRPC code.
    pub fn received(&self, status: i32, elapsed: Duration) {
        let inner = &*self.inner;
        let resolve = || {
            let status = status.to_string();
            (
                inner.families.res_recv.with([&inner.app_id, &status, "unary"]),
                inner.families.res_latency.with([&inner.app_id, &status]),
            )
        };
        inner.unary.with(status, resolve, |(count, latency)| {
            count.inc();
            latency.observe(elapsed);
        });
    }

    /// Counts a streaming response.
    pub fn received_streaming(&self, status: i32) {
        let inner = &*self.inner;
        let resolve = || {
            inner
                .families
                .res_recv
                .with([&inner.app_id, &status.to_string(), "streaming"])
        };
        inner.streaming.with(status, resolve, Counter::inc);
    }
}

impl InvokingApp {
    /// Counts a request received.
    pub fn received(&self) {
        self.inner.received.inc();
    }

    /// Counts a response sent. `status` is the app's HTTP or gRPC code.
    pub fn responded(&self, status: i32) {
        let inner = &*self.inner;
        let resolve = || inner.families.res_sent.with([&inner.app_id, &status.to_string()]);
        inner.responses.with(status, resolve, Counter::inc);
    }
}
