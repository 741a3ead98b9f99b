//! Charts that show the same few figures of every system.

use super::super::axis::Kind;
use super::super::ratios::{median, per_hop};
use crate::results::{Measurement, SystemResults};

/// What a chart was measured under.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    Rate,
    Full,
    Start,
}

type Read = fn(&SystemResults) -> Option<f64>;

/// A chart with a group of bars for each category, a bar for each system.
pub(super) struct Compared {
    /// Its file, without the ending.
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    /// The unit.
    pub(super) label: &'static str,
    pub(super) kind: Kind,
    pub(super) load: Load,
    pub(super) categories: &'static [(&'static str, Read)],
}

impl Compared {
    const fn rate(
        file: &'static str,
        title: &'static str,
        label: &'static str,
        categories: &'static [(&'static str, Read)],
    ) -> Self {
        Self {
            file,
            title,
            label,
            kind: Kind::Linear,
            load: Load::Rate,
            categories,
        }
    }
}

pub(super) const COMPARED: &[Compared] = &[
    Compared::rate(
        "summary",
        "Latency",
        "milliseconds",
        &[
            ("mean", |s| total(s, |m| m.latency.mean / 1e3)),
            ("p50", |s| total(s, |m| m.latency.p50 / 1e3)),
            ("p90", |s| total(s, |m| m.latency.p90 / 1e3)),
            ("p99", |s| total(s, |m| m.latency.p99 / 1e3)),
        ],
    ),
    Compared {
        file: "tail_latency",
        title: "Tail latency",
        label: "milliseconds, logarithmic",
        kind: Kind::Log,
        load: Load::Rate,
        categories: &[
            ("p90", |s| total(s, |m| m.latency.p90 / 1e3)),
            ("p95", |s| total(s, |m| m.latency.p95 / 1e3)),
            ("p99", |s| total(s, |m| m.latency.p99 / 1e3)),
            ("p99.9", |s| total(s, |m| m.latency.p999 / 1e3)),
            ("max", |s| total(s, |m| m.latency.max / 1e3)),
        ],
    },
    Compared::rate(
        "qps",
        "Requests per second, requested and actual",
        "requests per second",
        &[
            ("requested", |s| s.total.requested_qps),
            ("actual", |s| total(s, Measurement::qps)),
        ],
    ),
    Compared::rate(
        "duration_requested_vs_actual",
        "Duration of all rounds, requested and actual",
        "seconds",
        &[
            ("requested", |s| total(s, |m| m.requested_seconds)),
            ("actual", |s| total(s, |m| m.seconds)),
        ],
    ),
    Compared::rate(
        "payload_size",
        "Payload of a call",
        "bytes",
        &[
            ("sent", |s| per_call(s, |m| m.payload_sent)),
            ("received", |s| per_call(s, |m| m.payload_received)),
        ],
    ),
    Compared::rate(
        "header_size",
        "Headers and frames of a call",
        "bytes beside the payload",
        &[
            ("request", |s| {
                own(s).and_then(|s| per_call(s, |m| m.sent.saturating_sub(m.payload_sent)))
            }),
            ("response", |s| {
                own(s).and_then(|s| per_call(s, |m| m.received.saturating_sub(m.payload_received)))
            }),
        ],
    ),
    Compared::rate(
        "data_volume",
        "Data on the load generator's connections",
        "megabytes",
        &[
            ("sent", |s| own(s).map(|s| s.total.sent as f64 / 1e6)),
            ("received", |s| own(s).map(|s| s.total.received as f64 / 1e6)),
        ],
    ),
    Compared::rate(
        "connection_stats",
        "Time to open a connection",
        "microseconds",
        &[
            ("min", |s| own(s).map(|s| s.total.connect.min)),
            ("mean", |s| own(s).map(|s| s.total.connect.mean)),
            ("max", |s| own(s).map(|s| s.total.connect.max)),
        ],
    ),
    Compared::rate(
        "memory",
        "Resident memory of the larger hop",
        "megabytes",
        &[
            ("idle", |s| per_hop(&s.memory.idle)),
            ("fixed rate", |s| per_hop(&s.memory.loaded)),
            ("saturated", |s| per_hop(&s.memory.saturated)),
            ("after all load", |s| per_hop(&s.memory.settled)),
        ],
    ),
    Compared {
        file: "first_call",
        title: "Start of a first hop to its first answered call",
        label: "milliseconds",
        kind: Kind::Linear,
        load: Load::Start,
        categories: &[("first call", |s| median(&s.first_call))],
    },
    Compared {
        file: "throughput",
        title: "Throughput at saturation",
        label: "calls per second",
        kind: Kind::Linear,
        load: Load::Full,
        categories: &[
            ("in all", |s| Some(s.saturation.as_ref()?.qps())),
            ("per core that the hops use", |s| {
                s.saturation.as_ref()?.qps_per_core()
            }),
        ],
    },
];

fn total(system: &SystemResults, read: fn(&Measurement) -> f64) -> Option<f64> {
    (system.total.requests > 0).then(|| read(&system.total))
}

fn per_call(system: &SystemResults, read: fn(&Measurement) -> u64) -> Option<f64> {
    total(system, |_| 0.0).map(|_| read(&system.total) as f64 / system.total.requests as f64)
}

/// What only the load generator of this program can tell, of connections of its own.
fn own(system: &SystemResults) -> Option<&SystemResults> {
    (system.total.driver == "own" && system.total.sent > 0).then_some(system)
}
