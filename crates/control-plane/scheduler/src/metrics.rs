//! The metrics of the scheduler, with Dapr's names.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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
    triggered: ByKind,
    failed: ByKind,
    undelivered: ByKind,
    latency: [Latency; 2],
    jobs: AtomicU64,
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

    /// Counts a stored job.
    pub(crate) fn created(&self, kind: Kind) {
        self.created.add(kind);
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
        self.render_latency(&mut out);
        out
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
        metrics.created(Kind::Job);
        metrics.answered(Kind::Job, true, Duration::from_millis(300));
        metrics.answered(Kind::Actor, false, Duration::from_secs(60));
        metrics.undelivered(Kind::Actor);
        metrics.jobs(3);
        let text = metrics.render();
        for line in [
            "dapr_scheduler_sidecars_connected 1",
            "dapr_scheduler_jobs 3",
            "dapr_scheduler_jobs_created_total{type=\"job\"} 1",
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
}
