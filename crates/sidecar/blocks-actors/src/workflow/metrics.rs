//! What is counted about workflows, `dapr_runtime_workflow_*`.

use std::time::Duration;

use outrigger_telemetry::metrics::{Counter, Family, Gauge, Histogram, Millis, Ratio, Registry};

/// What is done to an instance from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is sent an event.
    AddEvent,
    /// It is purged.
    Purge,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create_workflow",
            Self::AddEvent => "add_event",
            Self::Purge => "purge_workflow",
        }
    }
}

/// How a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It ended as it should.
    Success,
    /// It failed for good.
    Failed,
    /// It is tried again.
    Recoverable,
}

impl Ended {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Recoverable => "recoverable",
        }
    }
}

/// A count and the latencies of it.
struct Measured {
    count: Family<Counter, 2>,
    latency: Family<Histogram<Millis>, 2>,
}

impl Measured {
    fn new(registry: &Registry, name: &str, help: &'static str, labels: [&'static str; 2]) -> Self {
        Self {
            count: registry.counter(&format!("{name}_count"), help, labels),
            latency: registry.latency(&format!("{name}_latency"), help, labels),
        }
    }

    fn record(&self, values: [&str; 2], elapsed: Duration) {
        self.count.with(values).inc();
        self.latency.with(values).observe(elapsed);
    }
}

/// The families. The names of workflows and activities are the app's; the registry bounds how many series there are.
pub struct WorkflowMetrics {
    operations: Measured,
    executions: Measured,
    scheduling: Family<Histogram<Millis>, 1>,
    activity_operations: Measured,
    activity_executions: Measured,
    payload: Family<Histogram<Ratio>, 1>,
    activity_payload: Family<Histogram<Ratio>, 2>,
    activity_quarantined: Family<Counter, 1>,
    /// Workers that are connected.
    pub(super) workers: Gauge,
    /// Instances here that are stalled.
    pub(super) stalled: Gauge,
    /// Instances here whose last run failed.
    pub(super) failing: Gauge,
    /// Bytes of the histories that are kept between turns.
    pub(super) cached: Gauge,
}

impl WorkflowMetrics {
    /// In a registry.
    pub fn new(registry: &Registry) -> Self {
        let registry = &registry.namespaced();
        let workflow = ["workflow_name", "status"];
        let activity = ["activity_name", "status"];
        Self {
            operations: Measured::new(
                registry,
                "runtime_workflow_operation",
                "Workflows created, sent events, or purged.",
                ["operation", "status"],
            ),
            executions: Measured::new(
                registry,
                "runtime_workflow_execution",
                "Executions of workflows.",
                workflow,
            ),
            scheduling: registry.latency(
                "runtime_workflow_scheduling_latency",
                "Time from a workflow's scheduled start to its start.",
                ["workflow_name"],
            ),
            activity_operations: Measured::new(
                registry,
                "runtime_workflow_activity_operation",
                "Activities scheduled.",
                activity,
            ),
            activity_executions: Measured::new(
                registry,
                "runtime_workflow_activity_execution",
                "Executions of activities.",
                activity,
            ),
            payload: registry.ratio(
                "runtime_workflow_payload_size_ratio",
                "Size of a workflow's state as a fraction of --max-body-size.",
                ["workflow_name"],
            ),
            activity_payload: registry.ratio(
                "runtime_workflow_activity_payload_size_ratio",
                "Size of a scheduled activity as a fraction of --max-body-size.",
                ["workflow_name", "activity_name"],
            ),
            activity_quarantined: registry.counter(
                "runtime_workflow_activity_parked_count",
                "Activities that are parked, because their workers disconnected too often.",
                ["activity_name"],
            ),
            workers: one(
                registry,
                "runtime_workflow_workers",
                "Workers with an open stream of work items.",
            ),
            stalled: one(
                registry,
                "runtime_workflow_stalled_instances",
                "Stalled workflow instances on this sidecar.",
            ),
            failing: one(
                registry,
                "runtime_workflow_failing_instances",
                "Instances on this sidecar whose last turn failed, and is tried again.",
            ),
            cached: one(
                registry,
                "runtime_workflow_kept_history_bytes",
                "Bytes of workflow histories kept in memory between turns.",
            ),
        }
    }

    /// An activity is not run again.
    pub fn activity_quarantined(&self, activity: &str) {
        self.activity_quarantined.with([activity]).inc();
    }

    /// Something was done to an instance from outside.
    pub fn operation(&self, operation: Operation, success: bool, elapsed: Duration) {
        let ended = if success { Ended::Success } else { Ended::Failed };
        self.operations.record([operation.name(), ended.name()], elapsed);
    }

    /// An execution of a workflow ended, so long after its creation, or is tried again.
    pub fn execution(&self, workflow: &str, ended: Ended, elapsed: Option<Duration>) {
        let values = [workflow, ended.name()];
        match elapsed {
            Some(elapsed) => self.executions.record(values, elapsed),
            None => self.executions.count.with(values).inc(),
        }
    }

    /// A workflow began so long after it was to.
    pub fn scheduled(&self, workflow: &str, late: Duration) {
        self.scheduling.with([workflow]).observe(late);
    }

    /// An activity was scheduled, or could not be.
    pub fn activity_operation(&self, activity: &str, ended: Ended, elapsed: Duration) {
        self.activity_operations.record([activity, ended.name()], elapsed);
    }

    /// An execution of an activity ended, or is tried again.
    pub fn activity_execution(&self, activity: &str, ended: Ended, elapsed: Duration) {
        self.activity_executions.record([activity, ended.name()], elapsed);
    }

    /// How much of the largest body a workflow's state takes.
    pub fn payload(&self, workflow: &str, ratio: f64) {
        self.payload.with([workflow]).observe(ratio);
    }

    /// How much of the largest body a scheduled activity takes.
    pub fn activity_payload(&self, workflow: &str, activity: &str, ratio: f64) {
        self.activity_payload.with([workflow, activity]).observe(ratio);
    }
}

/// A gauge of the whole sidecar.
fn one(registry: &Registry, name: &str, help: &'static str) -> Gauge {
    registry.gauge::<0>(name, help, []).with([])
}
