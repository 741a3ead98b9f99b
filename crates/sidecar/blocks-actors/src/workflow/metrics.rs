//! Metrics of workflows, `dapr_runtime_workflow_*`.

use std::time::{Duration, Instant};

use outrigger_telemetry::metrics::{Counter, Family, Gauge, Histogram, Millis, Ratio, Registry};
use outrigger_workflow::signing::Kind;

/// An external operation on an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Create the instance.
    Create,
    /// Add an event.
    AddEvent,
    /// Purge the instance.
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

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Succeeded.
    Success,
    /// Failed.
    Failed,
    /// Failed, to be retried.
    Recoverable,
    /// Terminated.
    Terminated,
}

impl Ended {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Recoverable => "recoverable",
            Self::Terminated => "terminated",
        }
    }
}

/// A counter with its latencies.
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

/// The metric families. Workflow and activity names come from the app; the registry bounds the number of
/// series.
pub struct WorkflowMetrics {
    operations: Measured,
    executions: Measured,
    scheduling: Family<Histogram<Millis>, 1>,
    activity_operations: Measured,
    activity_executions: Measured,
    payload: Family<Histogram<Ratio>, 1>,
    activity_payload: Family<Histogram<Ratio>, 2>,
    activity_quarantined: Family<Counter, 1>,
    attestations_generated: Family<Counter, 2>,
    attestations_verified: Measured,
    attestation_certificates: Family<Counter, 1>,
    /// Connected workers.
    pub(super) workers: Gauge,
    /// Stalled instances on this sidecar.
    pub(super) stalled: Gauge,
    /// Failing instances on this sidecar.
    pub(super) failing: Gauge,
    /// Bytes of cached histories.
    pub(super) cached: Gauge,
}

impl WorkflowMetrics {
    /// Registers the families.
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
                "Activities parked because their workers disconnected too often.",
                ["activity_name"],
            ),
            attestations_generated: registry.counter(
                "runtime_workflow_attestation_generated_count",
                "Results of activities and child workflows that this sidecar attested.",
                ["attestation_kind", "status"],
            ),
            attestations_verified: Measured {
                count: registry.counter(
                    "runtime_workflow_attestation_verified_count",
                    "Attestations of results that this sidecar verified.",
                    ["attestation_kind", "attestation_result"],
                ),
                latency: registry.latency(
                    "runtime_workflow_attestation_verify_latency",
                    "Time to verify the attestation of a result.",
                    ["attestation_kind", "attestation_result"],
                ),
            },
            attestation_certificates: registry.counter(
                "runtime_workflow_attestation_cert_cache_count",
                "Lookups of a signer's certificates during the verification of an attestation.",
                ["cert_cache_outcome"],
            ),
            workers: gauge(
                registry,
                "runtime_workflow_workers",
                "Workers with an open stream of work items.",
            ),
            stalled: gauge(
                registry,
                "runtime_workflow_stalled_instances",
                "Stalled workflow instances on this sidecar.",
            ),
            failing: gauge(
                registry,
                "runtime_workflow_failing_instances",
                "Instances on this sidecar whose last run failed and is retried.",
            ),
            cached: gauge(
                registry,
                "runtime_workflow_kept_history_bytes",
                "Bytes of workflow histories cached between turns.",
            ),
        }
    }

    /// An activity was quarantined.
    pub fn activity_quarantined(&self, activity: &str) {
        self.activity_quarantined.with([activity]).inc();
    }

    /// A result was attested, or could not be.
    pub fn attestation_generated(&self, kind: Kind, success: bool) {
        let ended = if success { Ended::Success } else { Ended::Failed };
        self.attestations_generated
            .with([kind_name(kind), ended.name()])
            .inc();
    }

    /// An attestation was verified. `was_known`: whether its signer's certificates were; `None` if it was
    /// rejected.
    pub fn attestation_verified(&self, kind: Kind, was_known: Option<bool>, elapsed: Duration) {
        let result = if was_known.is_some() { "ok" } else { "reject" };
        self.attestations_verified
            .record([kind_name(kind), result], elapsed);
        if let Some(was_known) = was_known {
            let outcome = if was_known { "hit" } else { "miss" };
            self.attestation_certificates.with([outcome]).inc();
        }
    }

    /// An external operation has finished.
    pub fn operation(&self, operation: Operation, success: bool, elapsed: Duration) {
        let ended = if success { Ended::Success } else { Ended::Failed };
        self.operations.record([operation.name(), ended.name()], elapsed);
    }

    /// As [`WorkflowMetrics::operation`], with the result and duration of `done`.
    pub(super) async fn counted<T, E>(
        &self,
        operation: Operation,
        done: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let began = Instant::now();
        let done = done.await;
        self.operation(operation, done.is_ok(), began.elapsed());
        done
    }

    /// An execution ended, `elapsed` after its creation, or is retried.
    pub fn execution(&self, workflow: &str, ended: Ended, elapsed: Option<Duration>) {
        let values = [workflow, ended.name()];
        match elapsed {
            Some(elapsed) => self.executions.record(values, elapsed),
            None => self.executions.count.with(values).inc(),
        }
    }

    /// A workflow started `late` after its scheduled time.
    pub fn scheduled(&self, workflow: &str, late: Duration) {
        self.scheduling.with([workflow]).observe(late);
    }

    /// An activity was scheduled, or could not be.
    pub fn activity_operation(&self, activity: &str, ended: Ended, elapsed: Duration) {
        self.activity_operations.record([activity, ended.name()], elapsed);
    }

    /// An execution of an activity ended or is retried.
    pub fn activity_execution(&self, activity: &str, ended: Ended, elapsed: Duration) {
        self.activity_executions.record([activity, ended.name()], elapsed);
    }

    /// Share of the maximum body size used by a workflow's state.
    pub fn payload(&self, workflow: &str, ratio: f64) {
        self.payload.with([workflow]).observe(ratio);
    }

    /// Share of the maximum body size used by a scheduled activity.
    pub fn activity_payload(&self, workflow: &str, activity: &str, ratio: f64) {
        self.activity_payload.with([workflow, activity]).observe(ratio);
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Activity => "activity",
        Kind::Child => "child",
    }
}

/// A gauge without labels.
fn gauge(registry: &Registry, name: &str, help: &'static str) -> Gauge {
    registry.gauge::<0>(name, help, []).with([])
}
