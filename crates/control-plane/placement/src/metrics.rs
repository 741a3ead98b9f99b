//! Metrics of the placement service, with Dapr's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_telemetry::metrics::push_escaped;

/// Maximum namespaces without streams that are reported.
const MAX_EMPTY: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    leader: AtomicBool,
    disseminations: AtomicU64,
    dissemination_micros: AtomicU64,
    expired: AtomicU64,
    namespaces: Mutex<BTreeMap<String, Streams>>,
}

/// Open streams of a namespace.
#[derive(Debug, Default, Clone, Copy)]
struct Streams {
    all: u64,
    with_actors: u64,
}

impl Metrics {
    /// Whether this process leads.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.store(leads, Relaxed);
    }

    /// A dissemination ended after this time.
    pub(crate) fn disseminated(&self, took: Duration) {
        self.disseminations.fetch_add(1, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.dissemination_micros.fetch_add(micros, Relaxed);
    }

    /// A stream did not answer in time.
    pub(crate) fn expired(&self) {
        self.expired.fetch_add(1, Relaxed);
    }

    /// Sets the number of streams of a namespace.
    pub(crate) fn streams(&self, namespace: &str, all: usize, with_actors: usize) {
        let now = Streams {
            all: all as u64,
            with_actors: with_actors as u64,
        };
        let mut namespaces = self.namespaces();
        match namespaces.get_mut(namespace) {
            Some(streams) => *streams = now,
            None => {
                namespaces.insert(namespace.to_owned(), now);
            }
        }
        if all == 0 {
            forget_some(&mut namespaces);
        }
    }

    fn namespaces(&self) -> MutexGuard<'_, BTreeMap<String, Streams>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renders the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let leader = u8::from(self.leader.load(Relaxed));
        for name in ["leader_status", "raft_leader_status"] {
            head(&mut out, name, "gauge", "1 if this replica is the leader.");
            let _ = writeln!(out, "dapr_placement_{name} {leader}");
        }
        let namespaces = self.namespaces().clone();
        for (name, help, hosts_only) in [
            ("runtimes_total", "Open streams of sidecars.", false),
            (
                "actor_runtimes_total",
                "Open streams of sidecars that host actors.",
                true,
            ),
        ] {
            head(&mut out, name, "gauge", help);
            for (namespace, streams) in &namespaces {
                let _ = write!(out, "dapr_placement_{name}{{host_namespace=\"");
                push_escaped(&mut out, namespace);
                let _ = writeln!(
                    out,
                    "\"}} {}",
                    if hosts_only {
                        streams.with_actors
                    } else {
                        streams.all
                    }
                );
            }
        }
        head(
            &mut out,
            "rounds_total",
            "counter",
            "Disseminations of a new table.",
        );
        let _ = writeln!(
            out,
            "dapr_placement_rounds_total {}",
            self.disseminations.load(Relaxed)
        );
        head(
            &mut out,
            "round_seconds_total",
            "counter",
            "Total duration of disseminations, in seconds.",
        );
        let seconds = self.dissemination_micros.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "dapr_placement_round_seconds_total {seconds}");
        head(
            &mut out,
            "expired_total",
            "counter",
            "Streams that did not answer in time.",
        );
        let _ = writeln!(out, "dapr_placement_expired_total {}", self.expired.load(Relaxed));
        out
    }
}

/// Drops all empty namespaces once there are more than [`MAX_EMPTY`].
fn forget_some(namespaces: &mut BTreeMap<String, Streams>) {
    if namespaces.values().filter(|streams| streams.all == 0).count() > MAX_EMPTY {
        namespaces.retain(|_, streams| streams.all > 0);
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP dapr_placement_{name} {help}\n# TYPE dapr_placement_{name} {kind}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_has_all_families() {
        let metrics = Metrics::default();
        metrics.leads(true);
        metrics.streams("ns", 3, 2);
        metrics.streams("a\"b", 1, 0);
        metrics.streams("ns", 0, 0);
        metrics.disseminated(Duration::from_millis(1500));
        metrics.expired();
        let text = metrics.render();
        for line in [
            "dapr_placement_leader_status 1",
            "dapr_placement_raft_leader_status 1",
            "dapr_placement_runtimes_total{host_namespace=\"ns\"} 0",
            "dapr_placement_actor_runtimes_total{host_namespace=\"ns\"} 0",
            "dapr_placement_runtimes_total{host_namespace=\"a\\\"b\"} 1",
            "dapr_placement_rounds_total 1",
            "dapr_placement_round_seconds_total 1.5",
            "dapr_placement_expired_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn drops_metrics_of_empty_namespaces() {
        let metrics = Metrics::default();
        metrics.streams("stays", 1, 1);
        for number in 0..5000 {
            metrics.streams(&format!("ns{number}"), 1, 0);
            metrics.streams(&format!("ns{number}"), 0, 0);
        }
        assert!(metrics.namespaces().len() <= MAX_EMPTY + 1);
        assert!(metrics.namespaces().contains_key("stays"));
    }
}
