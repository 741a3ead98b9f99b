//! What is compared across systems, and how: each figure divided by that of another system in the same run.

use crate::plan::System;
use crate::procfs::{Resident, Role};
use crate::results::{Measurement, ProtocolResults, SystemResults};

/// A figure of a system; `None` where it was not measured.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Whether more is better.
    pub(super) more_is_better: bool,
    /// Whether it is of the load as fast as answers come.
    pub(super) saturated: bool,
    read: fn(&SystemResults, Option<&SystemResults>) -> Option<f64>,
}

/// In the order of tables.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "CPU time per call in the hops",
        unit: "µs",
        more_is_better: false,
        saturated: false,
        read: |of, _| positive(of.total.cpu_per_call(Role::is_hop)),
    },
    Figure {
        name: "CPU time per call, saturated",
        unit: "µs",
        more_is_better: false,
        saturated: true,
        read: |of, _| positive(of.saturation.as_ref()?.cpu_per_call(Role::is_hop)),
    },
    Figure {
        name: "added latency, mean",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, direct| added(of, direct?, |system| system.total.latency.mean),
    },
    Figure {
        name: "added latency, p50",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, direct| added(of, direct?, |system| system.total.latency.p50),
    },
    Figure {
        name: "added latency, p99",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, direct| added(of, direct?, |system| system.total.latency.p99),
    },
    Figure {
        name: "calls per second, saturated",
        unit: "/s",
        more_is_better: true,
        saturated: true,
        read: |of, _| positive(of.saturation.as_ref()?.qps()),
    },
    Figure {
        name: "calls per second and core of the hops",
        unit: "/s",
        more_is_better: true,
        saturated: true,
        read: |of, _| of.saturation.as_ref()?.qps_per_core(),
    },
    Figure {
        name: "resident memory per hop, idle",
        unit: "MB",
        more_is_better: false,
        saturated: false,
        read: |of, _| per_hop(&of.memory.idle),
    },
    Figure {
        name: "resident memory per hop, at the fixed rate",
        unit: "MB",
        more_is_better: false,
        saturated: false,
        read: |of, _| per_hop(&of.memory.loaded),
    },
    Figure {
        name: "resident memory per hop, saturated",
        unit: "MB",
        more_is_better: false,
        saturated: false,
        read: |of, _| per_hop(&of.memory.saturated),
    },
    Figure {
        name: "resident memory per hop, after all load",
        unit: "MB",
        more_is_better: false,
        saturated: false,
        read: |of, _| per_hop(&of.memory.settled),
    },
    Figure {
        name: "memory per idle connection",
        unit: "KB",
        more_is_better: false,
        saturated: false,
        read: |of, _| of.memory.per_connection.map(|bytes| bytes / 1e3),
    },
    Figure {
        name: "start to first answered call",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, _| median(&of.first_call),
    },
    Figure {
        name: "CPU time per call added to the direct call, all processes",
        unit: "µs",
        more_is_better: false,
        saturated: false,
        read: |of, direct| {
            let direct = added_to(of, direct?)?;
            Some(whole(&of.total)? - whole(&direct.total)?)
        },
    },
    Figure {
        name: "latency, mean",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, _| positive(of.total.latency.mean / 1e3),
    },
    Figure {
        name: "latency, p50",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, _| positive(of.total.latency.p50 / 1e3),
    },
    Figure {
        name: "latency, p99",
        unit: "ms",
        more_is_better: false,
        saturated: false,
        read: |of, _| positive(of.total.latency.p99 / 1e3),
    },
];

// Places in the table.
pub(super) const CPU: usize = 0;
pub(super) const CPU_SATURATED: usize = 1;
pub(super) const ADDED_MEAN: usize = 2;
pub(super) const ADDED_P50: usize = 3;
pub(super) const ADDED_P99: usize = 4;
pub(super) const THROUGHPUT: usize = 5;
pub(super) const MEMORY_IDLE: usize = 7;
pub(super) const MEMORY_LOADED: usize = 8;
pub(super) const FIRST_CALL: usize = 12;
pub(super) const CPU_ADDED: usize = 13;
pub(super) const P50: usize = 15;
pub(super) const P99: usize = 16;

impl Figure {
    pub(super) fn of(&self, found: &ProtocolResults, system: System) -> Option<f64> {
        (self.read)(found.of(system)?, found.of(System::Direct))
    }

    /// Our figure divided by that of a peer.
    pub(super) fn ratio(&self, found: &ProtocolResults, peer: System) -> Option<f64> {
        let (ours, theirs) = (self.of(found, System::Outrigger)?, self.of(found, peer)?);
        // A peer that adds nothing, or less, gives no ratio that means anything.
        (theirs > 0.0).then(|| ours / theirs)
    }
}

/// The larger of the two hops, in megabytes.
pub(super) fn per_hop(resident: &Resident) -> Option<f64> {
    resident
        .iter()
        .filter(|(role, _)| role.is_hop())
        .map(|(_, bytes)| *bytes as f64 / 1e6)
        .reduce(f64::max)
}

/// The direct call, where both were measured.
fn added_to<'a>(of: &SystemResults, direct: &'a SystemResults) -> Option<&'a SystemResults> {
    let measured = of.system != System::Direct && of.total.requests > 0 && direct.total.requests > 0;
    measured.then_some(direct)
}

fn added(of: &SystemResults, direct: &SystemResults, read: fn(&SystemResults) -> f64) -> Option<f64> {
    added_to(of, direct).map(|direct| (read(of) - read(direct)) / 1e3)
}

/// What a call costs the machine: the load generator has a part in it, as the driver of a direct call works there.
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
