//! The metrics of the scheduler, with Dapr's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_schedule::engine::{LimitCounts, LimitScope, Target};
use outrigger_telemetry::metrics::push_escaped;

use crate::names::Kind;

/// Upper bounds of latency buckets in milliseconds.
const BUCKETS: [u64; 6] = [0, 100, 500, 1_000, 5_000, 10_000];

/// A counter for each kind of job.
#[derive(Debug, Default)]
struct ByKind([AtomicU64; 2]);

impl ByKind {
    fn add(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Relaxed);
    }
}

/// Why the contact with a sidecar failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SidecarError {
    /// Its stream ended before a trigger was sent.
    Sent,
    /// It violated the protocol of its stream.
    Received,
    /// It may not act for this app, namespace or actor type.
    Refused,
}

/// Counts of limits, by label and namespace.
type LimitsByLabel = BTreeMap<String, BTreeMap<Arc<str>, LimitCounts>>;

/// Reads a count of a limit.
type Count = fn(&LimitCounts) -> u64;

/// Name, kind, help and value of the metrics of limits.
const LIMITS: [(&str, &str, &str, Count); 3] = [
    (
        "inflight",
        "gauge",
        "Triggers in flight that a limit counts.",
        |limit| limit.in_flight as u64,
    ),
    ("pending", "gauge", "Due jobs that wait for a limit.", |limit| {
        limit.waiting as u64
    }),
    (
        "throttled_total",
        "counter",
        "Jobs that became due while a limit was full.",
        |limit| limit.throttled,
    ),
];

/// A latency histogram.
#[derive(Debug, Default)]
struct Latency {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// Counters and gauges of one scheduler.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    connected: AtomicI64,
    created: ByKind,
    not_created: ByKind,
    deleted: ByKind,
    bulk_deleted: AtomicU64,
    sidecar_errors: [AtomicU64; 3],
    triggered: ByKind,
    failed: ByKind,
    undelivered: ByKind,
    latency: [Latency; 2],
    jobs: AtomicU64,
    limits: Mutex<LimitsByLabel>,
}

impl Metrics {
    /// Counts an opened trigger stream.
    pub(crate) fn connected(&self) {
        self.connected.fetch_add(1, Relaxed);
    }

    /// Counts a closed trigger stream.
    pub(crate) fn disconnected(&self) {
        self.connected.fetch_sub(1, Relaxed);
    }

    /// Counts a request to store a job.
    pub(crate) fn created(&self, kind: Kind, success: bool) {
        let counter = if success { &self.created } else { &self.not_created };
        counter.add(kind);
    }

    /// Counts a request to delete a job.
    pub(crate) fn deleted(&self, kind: Kind) {
        self.deleted.add(kind);
    }

    /// Counts a request to delete all jobs of a target or with a prefix.
    pub(crate) fn bulk_deleted(&self) {
        self.bulk_deleted.fetch_add(1, Relaxed);
    }

    /// Counts a failed contact with a sidecar.
    pub(crate) fn sidecar_error(&self, error: SidecarError) {
        self.sidecar_errors[error as usize].fetch_add(1, Relaxed);
    }

    /// Sets the counts of limits; without counts, the limit is gone.
    pub(crate) fn limits(&self, changed: Vec<(LimitScope, Option<LimitCounts>)>) {
        if changed.is_empty() {
            return;
        }
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        for (scope, counts) in changed {
            let label = label(&scope);
            let namespace = scope.target.namespace();
            match counts {
                Some(counts) => {
                    let of = limits.entry(label).or_default();
                    of.insert(Arc::clone(namespace), counts);
                }
                None => {
                    if let Some(of) = limits.get_mut(&label) {
                        of.remove(namespace);
                        if of.is_empty() {
                            limits.remove(&label);
                        }
                    }
                }
            }
        }
    }

    /// Counts an answered trigger and its latency.
    pub(crate) fn answered(&self, kind: Kind, success: bool, after: Duration) {
        let latency = &self.latency[kind as usize];
        let millis = after.as_secs_f64() * 1000.0;
        for (bound, bucket) in BUCKETS.iter().zip(&latency.buckets) {
            if millis <= *bound as f64 {
                bucket.fetch_add(1, Relaxed);
            }
        }
        latency
            .micros
            .fetch_add(u64::try_from(after.as_micros()).unwrap_or(u64::MAX), Relaxed);
        latency.count.fetch_add(1, Relaxed);
        let counter = if success { &self.triggered } else { &self.failed };
        counter.add(kind);
    }

    /// Counts a due trigger without a connected host.
    pub(crate) fn undelivered(&self, kind: Kind) {
        self.undelivered.add(kind);
    }

    /// Sets the number of jobs that this scheduler triggers.
    pub(crate) fn jobs(&self, count: usize) {
        self.jobs.store(count as u64, Relaxed);
    }

    /// Renders the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        head(
            &mut out,
            "sidecars_connected",
            "gauge",
            "Trigger streams that sidecars have open.",
        );
        let _ = writeln!(
            out,
            "dapr_scheduler_sidecars_connected {}",
            self.connected.load(Relaxed)
        );
        head(&mut out, "jobs", "gauge", "Jobs that this scheduler triggers.");
        let _ = writeln!(out, "dapr_scheduler_jobs {}", self.jobs.load(Relaxed));
        for (name, help, counter) in [
            ("jobs_created_total", "Jobs scheduled.", &self.created),
            (
                "jobs_created_failed_total",
                "Jobs that could not be scheduled.",
                &self.not_created,
            ),
            ("jobs_deleted_total", "Deletions of a job.", &self.deleted),
            (
                "jobs_triggered_total",
                "Triggers answered with success.",
                &self.triggered,
            ),
            (
                "jobs_failed_total",
                "Triggers answered with failure.",
                &self.failed,
            ),
            (
                "jobs_undelivered_total",
                "Triggers due while no sidecar for them was connected.",
                &self.undelivered,
            ),
        ] {
            head(&mut out, name, "counter", help);
            for (kind, count) in ["job", "actor"].iter().zip(&counter.0) {
                let _ = writeln!(
                    out,
                    "dapr_scheduler_{name}{{type=\"{kind}\"}} {}",
                    count.load(Relaxed)
                );
            }
        }
        self.render_sidecar(&mut out);
        self.render_limits(&mut out);
        self.render_latency(&mut out);
        out
    }

    fn render_sidecar(&self, out: &mut String) {
        let name = "jobs_bulk_deleted_total";
        head(
            out,
            name,
            "counter",
            "Deletions of all jobs of a target or with a prefix.",
        );
        let count = self.bulk_deleted.load(Relaxed);
        let _ = writeln!(out, "dapr_scheduler_{name} {count}");
        let name = "sidecar_errors_total";
        head(out, name, "counter", "Failed contacts with sidecars.");
        let reasons = ["send_failed", "recv_failed", "auth_failed"];
        for (reason, count) in reasons.iter().zip(&self.sidecar_errors) {
            let count = count.load(Relaxed);
            let _ = writeln!(out, "dapr_scheduler_{name}{{reason=\"{reason}\"}} {count}");
        }
    }

    fn render_limits(&self, out: &mut String) {
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, kind, help, count) in LIMITS {
            head(out, &format!("concurrency_{name}"), kind, help);
            for (key, of) in &*limits {
                let sum: u64 = of.values().map(count).sum();
                let _ = write!(out, "dapr_scheduler_concurrency_{name}{{concurrency_key=\"");
                push_escaped(out, key);
                let _ = writeln!(out, "\"}} {sum}");
            }
        }
    }

    fn render_latency(&self, out: &mut String) {
        let name = "trigger_latency";
        head(
            out,
            name,
            "histogram",
            "Milliseconds from sending a trigger to its answer.",
        );
        for (kind, latency) in ["job", "actor"].iter().zip(&self.latency) {
            let count = latency.count.load(Relaxed);
            for (bound, bucket) in BUCKETS.iter().zip(&latency.buckets) {
                let at_most = bucket.load(Relaxed);
                let _ = writeln!(
                    out,
                    "dapr_scheduler_{name}_bucket{{type=\"{kind}\",le=\"{bound}\"}} {at_most}"
                );
            }
            let sum = latency.micros.load(Relaxed) as f64 / 1000.0;
            let _ = writeln!(
                out,
                "dapr_scheduler_{name}_bucket{{type=\"{kind}\",le=\"+Inf\"}} {count}"
            );
            let _ = writeln!(out, "dapr_scheduler_{name}_sum{{type=\"{kind}\"}} {sum}");
            let _ = writeln!(out, "dapr_scheduler_{name}_count{{type=\"{kind}\"}} {count}");
        }
    }
}

/// `TYPE` or `TYPE:KEY`.
fn label(scope: &LimitScope) -> String {
    let (Target::App { id: name, .. } | Target::ActorType { name, .. }) = &*scope.target;
    match &scope.key {
        None => name.to_string(),
        Some(key) => format!("{name}:{key}"),
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP dapr_scheduler_{name} {help}\n# TYPE dapr_scheduler_{name} {kind}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_metric() {
        let metrics = Metrics::default();
        metrics.connected();
        metrics.created(Kind::Job, true);
        metrics.created(Kind::Actor, false);
        metrics.deleted(Kind::Actor);
        metrics.bulk_deleted();
        metrics.sidecar_error(SidecarError::Refused);
        metrics.answered(Kind::Job, true, Duration::from_millis(300));
        metrics.answered(Kind::Actor, false, Duration::from_secs(60));
        metrics.undelivered(Kind::Actor);
        metrics.jobs(3);
        let text = metrics.render();
        for line in [
            "dapr_scheduler_sidecars_connected 1",
            "dapr_scheduler_jobs 3",
            "dapr_scheduler_jobs_created_total{type=\"job\"} 1",
            "dapr_scheduler_jobs_created_failed_total{type=\"actor\"} 1",
            "dapr_scheduler_jobs_deleted_total{type=\"actor\"} 1",
            "dapr_scheduler_jobs_bulk_deleted_total 1",
            "dapr_scheduler_sidecar_errors_total{reason=\"send_failed\"} 0",
            "dapr_scheduler_sidecar_errors_total{reason=\"auth_failed\"} 1",
            "dapr_scheduler_jobs_triggered_total{type=\"job\"} 1",
            "dapr_scheduler_jobs_failed_total{type=\"actor\"} 1",
            "dapr_scheduler_jobs_undelivered_total{type=\"actor\"} 1",
            "dapr_scheduler_trigger_latency_bucket{type=\"job\",le=\"100\"} 0",
            "dapr_scheduler_trigger_latency_bucket{type=\"job\",le=\"500\"} 1",
            "dapr_scheduler_trigger_latency_bucket{type=\"actor\",le=\"10000\"} 0",
            "dapr_scheduler_trigger_latency_bucket{type=\"actor\",le=\"+Inf\"} 1",
            "dapr_scheduler_trigger_latency_sum{type=\"job\"} 300",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn sums_limits_over_namespaces() {
        let scope = |namespace: &str, key: Option<&str>| LimitScope {
            target: Arc::new(Target::ActorType {
                namespace: namespace.into(),
                name: "t".into(),
            }),
            key: key.map(|key| Arc::new(key.to_owned())),
        };
        let counts = |in_flight| {
            Some(LimitCounts {
                in_flight,
                waiting: 10,
                throttled: 100,
            })
        };
        let metrics = Metrics::default();
        metrics.limits(vec![
            (scope("a", None), counts(1)),
            (scope("b", None), counts(2)),
            (scope("a", Some("x\"")), counts(4)),
        ]);
        let has = |line: &str| metrics.render().lines().any(|found| found == line);
        assert!(has(
            "dapr_scheduler_concurrency_inflight{concurrency_key=\"t\"} 3"
        ));
        assert!(has(
            "dapr_scheduler_concurrency_pending{concurrency_key=\"t\"} 20"
        ));
        assert!(has(
            "dapr_scheduler_concurrency_throttled_total{concurrency_key=\"t:x\\\"\"} 100"
        ));
        metrics.limits(vec![(scope("a", None), None), (scope("b", None), None)]);
        assert!(!metrics.render().contains("{concurrency_key=\"t\"}"));
    }
}
