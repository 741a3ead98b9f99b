//! Metrics of actors.

use outrigger_telemetry::metrics::{Counter, Family, Gauge, Registry};

/// The `dapr_runtime_actor_*` families.
pub(super) struct ActorMetrics {
    rebalanced: Family<Counter, 1>,
    deactivated: Family<Counter, 1>,
    deactivation_failed: Family<Counter, 1>,
    pending: Family<Gauge, 1>,
    timers: Family<Gauge, 1>,
    timers_fired: Family<Counter, 2>,
    reminders_fired: Family<Counter, 2>,
}

/// The series of one hosted type.
#[derive(Clone)]
pub(super) struct TypeMetrics {
    pub(super) rebalanced: Counter,
    pub(super) deactivated: Counter,
    pub(super) deactivation_failed: Counter,
    pending: Gauge,
    pub(super) timers: Gauge,
    timers_fired: [Counter; 2],
    reminders_fired: [Counter; 2],
}

/// Counts a call that waits for its turn, until dropped.
pub(super) struct Pending<'a>(&'a Gauge);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl ActorMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| registry.counter(name, help, ["actor_type"]);
        let gauge = |name, help| registry.gauge(name, help, ["actor_type"]);
        let fired = |name, help| registry.counter(name, help, ["actor_type", "success"]);
        Self {
            rebalanced: counter("runtime_actor_rebalanced_total", "Actors that moved away."),
            deactivated: counter("runtime_actor_deactivated_total", "Actors that were deactivated."),
            deactivation_failed: counter(
                "runtime_actor_deactivated_failed_total",
                "Actors whose deactivation the app did not confirm.",
            ),
            pending: gauge(
                "runtime_actor_pending_actor_calls",
                "Calls that wait for their turn.",
            ),
            timers: gauge("runtime_actor_timers", "Timers."),
            timers_fired: fired("runtime_actor_timers_fired_total", "Timers that were due."),
            reminders_fired: fired("runtime_actor_reminders_fired_total", "Reminders that were due."),
        }
    }

    pub(super) fn of(&self, kind: &str) -> TypeMetrics {
        let both =
            |family: &Family<Counter, 2>| ["false", "true"].map(|success| family.with([kind, success]));
        TypeMetrics {
            rebalanced: self.rebalanced.with([kind]),
            deactivated: self.deactivated.with([kind]),
            deactivation_failed: self.deactivation_failed.with([kind]),
            pending: self.pending.with([kind]),
            timers: self.timers.with([kind]),
            timers_fired: both(&self.timers_fired),
            reminders_fired: both(&self.reminders_fired),
        }
    }
}

impl TypeMetrics {
    pub(super) fn pending(&self) -> Pending<'_> {
        self.pending.add(1);
        Pending(&self.pending)
    }

    pub(super) fn timer_fired(&self, success: bool) {
        self.timers_fired[usize::from(success)].inc();
    }

    pub(super) fn reminder_fired(&self, success: bool) {
        self.reminders_fired[usize::from(success)].inc();
    }
}
