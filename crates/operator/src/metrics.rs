//! The metrics of the operator, under the names that Dapr gives them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrigger_telemetry::metrics::push_escaped;

/// Apps that are told apart; the others are counted together, under an empty id.
const MAX_APPS: usize = 10_000;

/// What was done to the service of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServiceChange {
    Created,
    Updated,
    Deleted,
}

/// Counters of one process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    services: Mutex<BTreeMap<String, [u64; 3]>>,
}

impl Metrics {
    /// The service of an app was touched.
    pub(crate) fn service(&self, app_id: &str, done: ServiceChange) {
        let mut services = self.services();
        let id = match services.len() < MAX_APPS || services.contains_key(app_id) {
            true => app_id,
            false => "",
        };
        services.entry(id.to_owned()).or_default()[done as usize] += 1;
    }

    fn services(&self) -> MutexGuard<'_, BTreeMap<String, [u64; 3]>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text exposition format of Prometheus.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let services = self.services().clone();
        for (done, name) in [
            (ServiceChange::Created, "created"),
            (ServiceChange::Updated, "updated"),
            (ServiceChange::Deleted, "deleted"),
        ] {
            let family = format!("dapr_operator_service_{name}_total");
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "# HELP {family} Services of apps that were {name}.\n# TYPE {family} counter"
            );
            for (app_id, counts) in services.iter().filter(|(_, counts)| counts[done as usize] > 0) {
                let _ = write!(out, "{family}{{app_id=\"");
                push_escaped(&mut out, app_id);
                let _ = writeln!(out, "\"}} {}", counts[done as usize]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_has_every_family() {
        let metrics = Metrics::default();
        metrics.service("a", ServiceChange::Created);
        metrics.service("a", ServiceChange::Updated);
        metrics.service("a", ServiceChange::Updated);
        metrics.service("b\"", ServiceChange::Deleted);
        let text = metrics.render();
        for line in [
            "dapr_operator_service_created_total{app_id=\"a\"} 1",
            "dapr_operator_service_updated_total{app_id=\"a\"} 2",
            "dapr_operator_service_deleted_total{app_id=\"b\\\"\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn apps_beyond_the_limit_are_counted_together() {
        let metrics = Metrics::default();
        for number in 0..MAX_APPS + 5 {
            metrics.service(&format!("app{number}"), ServiceChange::Created);
        }
        assert!(metrics.services().len() <= MAX_APPS + 1);
        assert_eq!(metrics.services()[""], [5, 0, 0]);
    }
}
