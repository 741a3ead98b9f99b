//! Metrics of the sidecar, with handles resolved once for each target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use outrigger_policy::access::{CallerId, Decision};
use outrigger_policy::resiliency::{BreakerState as State, Direction, Event, Execution, Policy};
use outrigger_telemetry::metrics::{
    AclMetrics, BreakerState, FlowDirection, InvokedApp, InvokingApp, Metrics, PolicyKind, PolicyMetrics,
    Remembered,
};
use tonic::Code;

/// The recorders of [`Metrics`], with cached handles.
pub struct SidecarMetrics {
    all: Arc<Metrics>,
    invoked: Remembered<InvokedApp>,
    invoking: Remembered<InvokingApp>,
    inbound: Remembered<[PolicyMetrics; 3]>,
    outbound: Remembered<[PolicyMetrics; 3]>,
    /// By `trust domain/namespace` of callers.
    access: Remembered<AclMetrics>,
}

impl SidecarMetrics {
    /// Records into `all`.
    pub fn new(all: Arc<Metrics>) -> Self {
        Self {
            all,
            invoked: Remembered::default(),
            invoking: Remembered::default(),
            inbound: Remembered::default(),
            outbound: Remembered::default(),
            access: Remembered::default(),
        }
    }

    /// The recorders themselves.
    #[inline]
    pub fn all(&self) -> &Arc<Metrics> {
        &self.all
    }

    /// A handled request of the HTTP API.
    #[inline]
    pub fn http_server(
        &self,
        method: &Method,
        path: &str,
        status: u16,
        elapsed: Duration,
        received: u64,
        sent: u64,
    ) {
        self.all
            .http_server
            .route(method.as_str(), path)
            .completed(status, elapsed, received, sent);
    }

    /// A finished HTTP call of the app or an endpoint.
    #[inline]
    pub fn http_client(
        &self,
        method: &Method,
        path: &str,
        status: u16,
        elapsed: Duration,
        sent: u64,
        received: u64,
    ) {
        let target = self.all.http_client.target(method.as_str(), path);
        target.started(sent);
        target.completed(status, elapsed, received);
    }

    /// A finished unary call of the app or another sidecar.
    #[inline]
    pub fn grpc_client(&self, method: &str, code: Code, elapsed: Duration, sent: u64, received: u64) {
        self.all
            .grpc_client
            .method(method)
            .completed(code, elapsed, received, sent);
    }

    /// A finished unary call from an API client or another sidecar.
    #[inline]
    pub fn grpc_server(&self, method: &str, code: Code, elapsed: Duration, received: u64, sent: u64) {
        self.all
            .grpc_server
            .method(method)
            .completed(code, elapsed, received, sent);
    }

    /// A finished proxied call from an API client.
    #[inline]
    pub fn grpc_server_stream(&self, method: &str, code: Code, elapsed: Duration) {
        self.all
            .grpc_server
            .method(method)
            .stream_completed(code, elapsed);
    }

    /// A finished proxied call from another sidecar.
    #[inline]
    pub fn grpc_client_stream(&self, method: &str, code: Code, elapsed: Duration) {
        self.all
            .grpc_client
            .method(method)
            .stream_completed(code, elapsed);
    }

    /// A health probe of a gRPC app.
    pub fn grpc_health_probe(&self, code: Code, elapsed: Duration) {
        self.all.grpc_client.probe_completed(code, elapsed);
    }

    /// A health probe of an HTTP app.
    pub fn http_health_probe(&self, status: u16, elapsed: Duration) {
        self.all.http_client.probe_completed(status, elapsed);
    }

    fn invoked(&self, app_id: &str, record: impl FnOnce(&InvokedApp)) {
        self.invoked
            .with(app_id, || self.all.invoke.invoked(app_id), record);
    }

    /// A call sent to another app.
    #[inline]
    pub fn invoke_sent(&self, app_id: &str) {
        self.invoked(app_id, InvokedApp::sent);
    }

    /// A proxied call sent to another app.
    pub fn invoke_sent_streaming(&self, app_id: &str) {
        self.invoked(app_id, InvokedApp::sent_streaming);
    }

    /// A response from another app.
    #[inline]
    pub fn invoke_received(&self, app_id: &str, status: i32, elapsed: Duration) {
        self.invoked(app_id, |app| app.received(status, elapsed));
    }

    /// A finished proxied call to another app.
    pub fn invoke_received_streaming(&self, app_id: &str, status: i32) {
        self.invoked(app_id, |app| app.received_streaming(status));
    }

    fn invoking(&self, app_id: &str, record: impl FnOnce(&InvokingApp)) {
        self.invoking
            .with(app_id, || self.all.invoke.invoking(app_id), record);
    }

    /// A call from another app.
    #[inline]
    pub fn invoke_request(&self, source: &str) {
        self.invoking(source, InvokingApp::received);
    }

    /// The response of this app to another app.
    #[inline]
    pub fn invoke_response(&self, source: &str, status: i32) {
        self.invoking(source, |app| app.responded(status));
    }

    /// An access control decision.
    #[inline]
    pub fn access(&self, caller: Option<&CallerId<'_>>, decision: &Decision) {
        let (trust_domain, namespace) = caller.map_or(("", ""), |c| (c.trust_domain, c.namespace));
        // Neither part can contain a slash: both are parts of a SPIFFE id.
        let key = [trust_domain, "/", namespace].concat();
        let make = || self.all.invoke.acl(trust_domain, namespace);
        self.access.with(&key, make, |metrics| {
            let counter = match (decision.by_app_policy, decision.allowed) {
                (true, true) => &metrics.app_allowed,
                (true, false) => &metrics.app_blocked,
                (false, true) => &metrics.global_allowed,
                (false, false) => &metrics.global_blocked,
            };
            counter.inc();
        });
    }

    /// An error response of the APIs.
    pub fn error_code(&self, code: &str, category: &str) {
        self.all.error_codes.failed(code, category);
    }

    fn policy(&self, policy: &Policy, record: impl FnOnce(&[PolicyMetrics; 3])) {
        let Some(labels) = policy.labels() else { return };
        // A target can have a policy in each direction.
        let (direction, handles) = match labels.direction {
            Direction::Inbound => (FlowDirection::Inbound, &self.inbound),
            Direction::Outbound => (FlowDirection::Outbound, &self.outbound),
        };
        let make = || {
            [PolicyKind::Timeout, PolicyKind::Retry, PolicyKind::CircuitBreaker]
                .map(|kind| self.all.resiliency.policy(kind, direction, labels.target))
        };
        handles.with(labels.target, make, record);
    }

    /// The start of a call under a policy.
    #[inline]
    pub fn policy_run(&self, run: &Execution<'_>, now: Instant) {
        let policy = run.policy();
        self.policy(policy, |[timeout, retry, breaker]| {
            if policy.timeout().is_some() {
                timeout.executed();
            }
            if policy.retry().is_some() {
                retry.executed();
            }
            if let Some(state) = run.breaker_state(now) {
                breaker.breaker_executed(label(state));
            }
        });
    }

    /// Resiliency resources were replaced: later records have the labels of the last one loaded.
    pub fn policies_replaced<'r>(&self, loaded: impl IntoIterator<Item = (&'r str, &'r str)>) {
        for (name, namespace) in loaded {
            self.all.resiliency.resource_loaded(name, namespace);
        }
        self.inbound.forget();
        self.outbound.forget();
    }

    /// A policy event.
    pub fn policy_event(&self, policy: &Policy, event: &Event) {
        self.policy(policy, |[timeout, retry, breaker]| match event {
            Event::TimeoutExpired => timeout.activated(),
            Event::RetryStarted { .. } => retry.activated(),
            Event::BreakerChanged {
                change,
                counted: true,
                ..
            } => breaker.breaker_changed(label(change.to)),
            Event::BreakerChanged { .. } | Event::Recovered { .. } => {}
        });
    }
}

fn label(state: State) -> BreakerState {
    match state {
        State::Closed => BreakerState::Closed,
        State::HalfOpen => BreakerState::HalfOpen,
        State::Open => BreakerState::Open,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_policy::resiliency::{ComponentKind, Key, Resiliency};
    use outrigger_resources::load;
    use outrigger_telemetry::metrics::{Format, MetricsConfig};

    use super::*;

    const BOTH_WAYS: &str = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                             timeouts: {t: 1s}\n  targets:\n    components:\n      both: {inbound: {timeout: t}, \
                             outbound: {timeout: t}}\n";

    #[test]
    fn counts_policies_by_direction() {
        let metrics = SidecarMetrics::new(Metrics::new(&MetricsConfig::default()).unwrap());
        let resources = load::text(BOTH_WAYS, "app").unwrap().resiliency;
        let (policies, _) = Resiliency::build(&resources, "app");
        for direction in [Direction::Outbound, Direction::Inbound, Direction::Inbound] {
            let policy = policies
                .component("both", ComponentKind::Binding, direction)
                .unwrap();
            let now = Instant::now();
            metrics.policy_run(&policy.start(Key::NONE, now), now);
        }
        let text = metrics.all().render(Format::Text);
        for (direction, count) in [("outbound", " 1"), ("inbound", " 2")] {
            let label = format!("flow_direction=\"{direction}\"");
            let line = text
                .lines()
                .find(|line| line.starts_with("dapr_resiliency_count{") && line.contains(&label));
            assert!(line.unwrap_or_default().ends_with(count), "{direction}: {text}");
        }
    }
}
