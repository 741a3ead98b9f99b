//! Figures compared across systems: each is divided by another system's in the same run.

use crate::load::Latencies;
use crate::plan::System;
use crate::procfs::{Resident, Role};
use crate::results::{Measurement, ProtocolResults, SystemResults};

/// A figure of a system; `None` if it was not measured.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) more_is_better: bool,
    /// Measured at full load instead of the fixed rate.
    pub(super) saturated: bool,
    /// Reads the figure of a system, given the direct call.
    read: fn(&SystemResults, Option<&SystemResults>) -> Option<f64>,
}

const fn figure(
    name: &'static str,
    unit: &'static str,
    read: fn(&SystemResults, Option<&SystemResults>) -> Option<f64>,
) -> Figure {
    Figure {
        name,
        unit,
        more_is_better: false,
        saturated: false,
        read,
    }
}

pub(super) const CPU: Figure = figure("CPU time per call in the hops", "µs", |of, _| {
    positive(of.total.cpu_per_call(Role::is_hop))
});
pub(super) const CPU_SATURATED: Figure = Figure {
    saturated: true,
    ..figure("CPU time per call, saturated", "µs", |of, _| {
        positive(of.saturation.as_ref()?.cpu_per_call(Role::is_hop))
    })
};
pub(super) const CPU_ADDED: Figure = figure(
    "CPU time per call added to the direct call, all processes",
    "µs",
    |of, direct| {
        let direct = added_to(of, direct)?;
        Some(whole(&of.total)? - whole(&direct.total)?)
    },
);
pub(super) const ADDED_MEAN: Figure = figure("added latency, mean", "ms", |of, direct| {
    added(of, direct, |latency| latency.mean)
});
pub(super) const ADDED_P50: Figure = figure("added latency, p50", "ms", |of, direct| {
    added(of, direct, |latency| latency.p50)
});
pub(super) const ADDED_P99: Figure = figure("added latency, p99", "ms", |of, direct| {
    added(of, direct, |latency| latency.p99)
});
pub(super) const P50: Figure = figure("latency, p50", "ms", |of, _| positive(of.total.latency.p50 / 1e3));
pub(super) const P99: Figure = figure("latency, p99", "ms", |of, _| positive(of.total.latency.p99 / 1e3));
pub(super) const THROUGHPUT: Figure = Figure {
    more_is_better: true,
    saturated: true,
    ..figure("calls per second, saturated", "/s", |of, _| {
        positive(of.saturation.as_ref()?.qps())
    })
};
pub(super) const MEMORY_IDLE: Figure = figure("resident memory per hop, idle", "MB", |of, _| {
    per_hop(&of.memory.idle)
});
pub(super) const MEMORY_LOADED: Figure =
    figure("resident memory per hop, at the fixed rate", "MB", |of, _| {
        per_hop(&of.memory.loaded)
    });
pub(super) const FIRST_CALL: Figure = figure("start to first answered call", "ms", |of, _| {
    median(&of.first_call)
});

/// In the order of tables.
pub(super) const FIGURES: &[Figure] = &[
    CPU,
    CPU_SATURATED,
    ADDED_MEAN,
    ADDED_P50,
    ADDED_P99,
    THROUGHPUT,
    Figure {
        more_is_better: true,
        saturated: true,
        ..figure("calls per second and core of the hops", "/s", |of, _| {
            of.saturation.as_ref()?.qps_per_core()
        })
    },
    MEMORY_IDLE,
    MEMORY_LOADED,
    figure("resident memory per hop, saturated", "MB", |of, _| {
        per_hop(&of.memory.saturated)
    }),
    figure("resident memory per hop, after all load", "MB", |of, _| {
        per_hop(&of.memory.settled)
    }),
    figure("memory per idle connection", "KB", |of, _| {
        of.memory.per_connection.map(|bytes| bytes / 1e3)
    }),
    FIRST_CALL,
    CPU_ADDED,
    figure("latency, mean", "ms", |of, _| {
        positive(of.total.latency.mean / 1e3)
    }),
    P50,
    P99,
];

impl Figure {
    pub(super) fn of(&self, found: &ProtocolResults, system: System) -> Option<f64> {
        (self.read)(found.of(system)?, found.of(System::Direct))
    }

    /// Our figure divided by a peer's.
    pub(super) fn ratio(&self, found: &ProtocolResults, peer: System) -> Option<f64> {
        let (ours, theirs) = (self.of(found, System::Outrigger)?, self.of(found, peer)?);
        // A ratio to a peer that adds nothing, or less, is meaningless.
        (theirs > 0.0).then(|| ours / theirs)
    }
}

/// The larger of the two hops, in megabytes.
pub(super) fn per_hop(resident: &Resident) -> Option<f64> {
    let hops = resident.iter().filter(|(role, _)| role.is_hop());
    hops.map(|(_, bytes)| *bytes as f64 / 1e6).reduce(f64::max)
}

/// The direct call, if both were measured.
fn added_to<'a>(of: &SystemResults, direct: Option<&'a SystemResults>) -> Option<&'a SystemResults> {
    direct.filter(|direct| of.system != System::Direct && of.total.requests > 0 && direct.total.requests > 0)
}

fn added(of: &SystemResults, direct: Option<&SystemResults>, read: fn(&Latencies) -> f64) -> Option<f64> {
    let direct = added_to(of, direct)?;
    Some((read(&of.total.latency) - read(&direct.total.latency)) / 1e3)
}

/// CPU time of all processes per call. Includes the load generator, because the driver of a direct call
/// works in it.
fn whole(measured: &Measurement) -> Option<f64> {
    positive(measured.cpu_per_call(|_| true))
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn positive(value: f64) -> Option<f64> {
    (value > 0.0).then_some(value)
}
