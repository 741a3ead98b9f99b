//! The metrics of the operator. Those of services have Dapr's names; the others are Outrigger's.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outrigger_kube::WatchState;
use outrigger_telemetry::metrics::push_escaped;

/// Maximum number of apps with separate counts; further ones share an empty id.
const MAX_APPS: usize = 10_000;

/// A change of an app's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServiceChange {
    Created,
    Updated,
    /// Deleted, or no longer owned, whatever the cause.
    Deleted,
}

/// The metrics of one process.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    services: Mutex<BTreeMap<String, [u64; 3]>>,
    leading: AtomicBool,
    deleted_pods: AtomicU64,
    unread_secrets: AtomicU64,
    /// Open streams of changes, by the plural name of the kind.
    streams: Mutex<BTreeMap<&'static str, u64>>,
    /// The collections being watched.
    watches: Mutex<Vec<Weak<WatchState>>>,
}

/// An open stream of changes.
#[derive(Debug)]
pub(crate) struct OpenStream {
    metrics: Arc<Metrics>,
    resource: &'static str,
}

impl OpenStream {
    /// Counts a stream until dropped.
    pub(crate) fn of(metrics: &Arc<Metrics>, resource: &'static str) -> Self {
        *locked(&metrics.streams).entry(resource).or_default() += 1;
        Self {
            metrics: Arc::clone(metrics),
            resource,
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(open) = locked(&self.metrics.streams).get_mut(self.resource) {
            *open -= 1;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the head of a metric family.
fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

impl Metrics {
    /// Counts a change of an app's service.
    pub(crate) fn service(&self, app_id: &str, done: ServiceChange) {
        let mut services = locked(&self.services);
        let id = match services.len() < MAX_APPS || services.contains_key(app_id) {
            true => app_id,
            false => "",
        };
        services.entry(id.to_owned()).or_default()[done as usize] += 1;
    }

    /// Sets whether this replica is the leader.
    pub(crate) fn lead(&self, leads: bool) {
        self.leading.store(leads, Relaxed);
    }

    /// Counts a deleted pod that lacked its sidecar.
    pub(crate) fn pod_deleted(&self) {
        self.deleted_pods.fetch_add(1, Relaxed);
    }

    /// Counts a referenced secret that could not be read.
    pub(crate) fn secret_unread(&self) {
        self.unread_secrets.fetch_add(1, Relaxed);
    }

    /// Adds a watched collection.
    pub(crate) fn watches(&self, state: &Arc<WatchState>) {
        let mut watches = locked(&self.watches);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(state));
    }

    /// Renders the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        self.render_services(&mut out);
        for (name, kind, help, value) in [
            (
                "leading",
                "gauge",
                "Whether this replica is the leader, which creates services and finds pods without a sidecar.",
                u64::from(self.leading.load(Relaxed)),
            ),
            (
                "watchdog_deleted_pods_total",
                "counter",
                "Pods deleted because they had no sidecar.",
                self.deleted_pods.load(Relaxed),
            ),
            (
                "secret_read_failures_total",
                "counter",
                "Referenced secrets that could not be read.",
                self.unread_secrets.load(Relaxed),
            ),
        ] {
            let name = format!("dapr_operator_{name}");
            family(&mut out, &name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
        let name = "dapr_operator_update_streams";
        let help = "Open streams of changes to sidecars, one per sidecar and kind.";
        family(&mut out, name, "gauge", help);
        for (resource, open) in locked(&self.streams).iter() {
            let _ = writeln!(out, "{name}{{resource=\"{resource}\"}} {open}");
        }
        self.render_watches(&mut out);
        out
    }

    fn render_watches(&self, out: &mut String) {
        let watches: Vec<_> = locked(&self.watches).iter().filter_map(Weak::upgrade).collect();
        let name = "dapr_operator_watch_in_sync";
        let help = "Whether a collection of the API server is listed and watched.";
        family(out, name, "gauge", help);
        for watch in &watches {
            let (resource, in_sync) = (watch.resource(), u8::from(watch.in_sync()));
            let _ = writeln!(out, "{name}{{resource=\"{resource}\"}} {in_sync}");
        }
        let name = "dapr_operator_watch_failures_total";
        family(
            out,
            name,
            "counter",
            "Failed lists and watches of the API server.",
        );
        for watch in &watches {
            let (resource, failures) = (watch.resource(), watch.failures());
            let _ = writeln!(out, "{name}{{resource=\"{resource}\"}} {failures}");
        }
    }

    fn render_services(&self, out: &mut String) {
        let services = locked(&self.services).clone();
        for (done, name) in [
            (ServiceChange::Created, "created"),
            (ServiceChange::Updated, "updated"),
            (ServiceChange::Deleted, "deleted"),
        ] {
            let family = format!("dapr_operator_service_{name}_total");
            self::family(
                out,
                &family,
                "counter",
                &format!("Services of apps that were {name}."),
            );
            for (app_id, counts) in services.iter().filter(|(_, counts)| counts[done as usize] > 0) {
                let _ = write!(out, "{family}{{app_id=\"");
                push_escaped(out, app_id);
                let _ = writeln!(out, "\"}} {}", counts[done as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_metric() {
        let metrics = Metrics::default();
        metrics.service("a", ServiceChange::Created);
        metrics.service("a", ServiceChange::Updated);
        metrics.service("a", ServiceChange::Updated);
        metrics.service("b\"", ServiceChange::Deleted);
        metrics.lead(true);
        metrics.pod_deleted();
        metrics.secret_unread();
        let metrics = Arc::new(metrics);
        let open = ["components", "components", "subscriptions"];
        let mut open = Vec::from(open.map(|resource| OpenStream::of(&metrics, resource)));
        open.pop();
        let text = metrics.render();
        for line in [
            "dapr_operator_leading 1",
            "dapr_operator_watchdog_deleted_pods_total 1",
            "dapr_operator_secret_read_failures_total 1",
            "dapr_operator_update_streams{resource=\"components\"} 2",
            "dapr_operator_update_streams{resource=\"subscriptions\"} 0",
            "dapr_operator_service_created_total{app_id=\"a\"} 1",
            "dapr_operator_service_updated_total{app_id=\"a\"} 2",
            "dapr_operator_service_deleted_total{app_id=\"b\\\"\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn limits_number_of_app_labels() {
        let metrics = Metrics::default();
        for number in 0..MAX_APPS + 5 {
            metrics.service(&format!("app{number}"), ServiceChange::Created);
        }
        assert!(locked(&metrics.services).len() <= MAX_APPS + 1);
        assert_eq!(locked(&metrics.services)[""], [5, 0, 0]);
    }
}
