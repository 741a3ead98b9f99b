//! Timeouts, retries and circuit breakers.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{Counter, Family, Gauge, Registry};

/// `dapr_resiliency_*`.
#[derive(Clone, Debug)]
pub struct ResiliencyMetrics {
    loaded: Family<Counter, 2>,
    count: Family<Counter, 6>,
    activations: Family<Counter, 6>,
    breaker_state: Family<Gauge, 6>,
    /// Name and namespace of the last loaded Resiliency resource: labels of all families but `loaded`.
    resource: Arc<ArcSwap<(String, String)>>,
}

/// Kind of policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// A time limit.
    Timeout,
    /// Retries.
    Retry,
    /// A circuit breaker.
    CircuitBreaker,
}

impl PolicyKind {
    fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry",
            Self::CircuitBreaker => "circuitbreaker",
        }
    }
}

/// Direction of the protected call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDirection {
    /// To the app.
    Inbound,
    /// From the app.
    Outbound,
}

impl FlowDirection {
    fn label(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// State of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// A trial call passes.
    HalfOpen,
    /// Calls are rejected.
    Open,
    /// Unknown.
    Unknown,
}

impl BreakerState {
    const ALL: [Self; 4] = [Self::Closed, Self::HalfOpen, Self::Open, Self::Unknown];

    fn label(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
            Self::Unknown => "unknown",
        }
    }
}

/// Handles for one policy and target. Cached with the built policy, so a changed Resiliency resource
/// creates new ones.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetrics {
    /// By breaker state, in the order of [`BreakerState::ALL`]; without a breaker only the first is used.
    executed: [Counter; 4],
    activated: [Counter; 4],
    state: [Gauge; 4],
}

impl ResiliencyMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let labels = [
            "name",
            "policy",
            "namespace",
            "flow_direction",
            "target",
            "status",
        ];
        Self {
            loaded: registry.counter(
                "resiliency_loaded",
                "Resiliency resources loaded.",
                ["name", "namespace"],
            ),
            count: registry.counter("resiliency_count", "Calls run under a resiliency policy.", labels),
            activations: registry.counter(
                "resiliency_activations_total",
                "Resiliency policies that acted.",
                labels,
            ),
            breaker_state: registry.gauge(
                "resiliency_cb_state",
                "State of circuit breakers: 1 for the current.",
                labels,
            ),
            resource: Arc::default(),
        }
    }

    /// Counts a loaded Resiliency resource; its name labels all later observations.
    pub fn resource_loaded(&self, name: &str, namespace: &str) {
        self.resource
            .store(Arc::new((name.to_owned(), namespace.to_owned())));
        self.loaded.with([name, namespace]).inc();
    }

    /// Handles for a timeout or retry on a target (`app_ID`, `actor_TYPE`, `Statestore_NAME`).
    pub fn policy(&self, kind: PolicyKind, direction: FlowDirection, target: &str) -> PolicyMetrics {
        if !self.count.is_enabled() {
            return PolicyMetrics::default();
        }
        let resource = self.resource.load();
        let (name, namespace) = &**resource;
        let labels = |status| [name, kind.label(), namespace, direction.label(), target, status];
        if kind == PolicyKind::CircuitBreaker {
            return PolicyMetrics {
                executed: BreakerState::ALL.map(|s| self.count.with(labels(s.label()))),
                activated: BreakerState::ALL.map(|s| self.activations.with(labels(s.label()))),
                state: BreakerState::ALL.map(|s| self.breaker_state.with(labels(s.label()))),
            };
        }
        let mut metrics = PolicyMetrics::default();
        metrics.executed[0] = self.count.with(labels(""));
        metrics.activated[0] = self.activations.with(labels(""));
        metrics
    }
}

impl PolicyMetrics {
    /// Counts a call under the timeout or retry.
    pub fn executed(&self) {
        self.executed[0].inc();
    }

    /// Counts an expired timeout, or the first retry of a run.
    pub fn activated(&self) {
        self.activated[0].inc();
    }

    /// Counts a call under the circuit breaker in this state.
    pub fn breaker_executed(&self, state: BreakerState) {
        self.executed[state as usize].inc();
        self.set_state(state);
    }

    /// Records a state change of the circuit breaker. As in Dapr, the gauge follows with the next call.
    pub fn breaker_changed(&self, state: BreakerState) {
        self.activated[state as usize].inc();
    }

    fn set_state(&self, current: BreakerState) {
        for state in BreakerState::ALL {
            self.state[state as usize].set(i64::from(state == current));
        }
    }
}
