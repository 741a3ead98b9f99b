//! The metrics of the injector, with Dapr's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrigger_controlplane::webhook::cut;
use outrigger_telemetry::metrics::push_escaped;

/// Maximum number of apps with separate counts; further ones share an empty id.
const MAX_APPS: usize = 10_000;
/// Maximum number of characters of an app id in a label; longer ids are not valid.
const MAX_APP_ID: usize = 63;
const PREFIX: &str = "dapr_injector_sidecar_injection";

/// Why a pod got no sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// This caller's pods get none, or it is no pod.
    PodPatch,
    /// The patch could not be created.
    Patch,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::PodPatch => "pod_patch",
            Self::Patch => "patch",
        }
    }
}

/// Counts by app id and reason; an empty reason means success.
type Counts = BTreeMap<(String, &'static str), u64>;

/// The counters of one process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: AtomicU64,
    outcomes: Mutex<Counts>,
}

impl Metrics {
    /// Counts a review.
    pub(crate) fn requested(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Counts an injected sidecar.
    pub(crate) fn succeeded(&self, app_id: &str) {
        self.count(app_id, "");
    }

    /// Counts a pod without injected sidecar.
    pub(crate) fn failed(&self, app_id: &str, reason: Reason) {
        self.count(app_id, reason.name());
    }

    fn count(&self, app_id: &str, reason: &'static str) {
        let mut outcomes = self.outcomes();
        let full = outcomes.len() >= MAX_APPS;
        let mut key = (cut(app_id, MAX_APP_ID).to_owned(), reason);
        if full && !outcomes.contains_key(&key) {
            key.0.clear();
        }
        *outcomes.entry(key).or_default() += 1;
    }

    fn outcomes(&self) -> MutexGuard<'_, Counts> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let outcomes = self.outcomes().clone();
        let _ = writeln!(
            out,
            "# HELP {PREFIX}_requests_total Pods that were reviewed.\n# TYPE {PREFIX}_requests_total counter\n\
             {PREFIX}_requests_total {}",
            self.requests.load(Relaxed)
        );
        for (family, help) in [
            ("succeeded", "Pods that got a sidecar."),
            ("failed", "Pods that got no sidecar."),
        ] {
            let _ = writeln!(
                out,
                "# HELP {PREFIX}_{family}_total {help}\n# TYPE {PREFIX}_{family}_total counter"
            );
            for ((app_id, reason), count) in &outcomes {
                if reason.is_empty() != (family == "succeeded") {
                    continue;
                }
                let _ = write!(out, "{PREFIX}_{family}_total{{app_id=\"");
                push_escaped(&mut out, app_id);
                let _ = match reason.is_empty() {
                    true => writeln!(out, "\"}} {count}"),
                    false => writeln!(out, "\",reason=\"{reason}\"}} {count}"),
                };
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_metric() {
        let metrics = Metrics::default();
        metrics.requested();
        metrics.requested();
        metrics.succeeded("a");
        metrics.failed("b\"", Reason::Patch);
        metrics.failed("", Reason::PodPatch);
        let text = metrics.render();
        for line in [
            "dapr_injector_sidecar_injection_requests_total 2",
            "dapr_injector_sidecar_injection_succeeded_total{app_id=\"a\"} 1",
            "dapr_injector_sidecar_injection_failed_total{app_id=\"b\\\"\",reason=\"patch\"} 1",
            "dapr_injector_sidecar_injection_failed_total{app_id=\"\",reason=\"pod_patch\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn limits_number_of_app_labels() {
        let metrics = Metrics::default();
        for number in 0..MAX_APPS + 5 {
            metrics.succeeded(&format!("app{number}"));
        }
        assert!(metrics.outcomes().len() <= MAX_APPS + 1);
    }

    #[test]
    fn truncates_long_app_ids() {
        let metrics = Metrics::default();
        metrics.failed(&"a".repeat(1 << 20), Reason::Patch);
        let ids = metrics.outcomes().keys().map(|(id, _)| id.len()).max();
        assert_eq!(ids, Some(MAX_APP_ID));
    }
}
