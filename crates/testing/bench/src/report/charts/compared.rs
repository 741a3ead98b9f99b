//! Charts of the same few figures for every system.

use super::super::axis::Kind::{self, Linear, Log};
use super::super::ratios::{median, per_hop};
use crate::load::Latencies;
use crate::results::{Measurement, SystemResults};

/// The load of a chart.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    Rate,
    Full,
    Start,
}

use Load::{Full, Rate, Start};

type Read = fn(&SystemResults) -> Option<f64>;

/// A chart with a group of bars per category, and a bar per system.
pub(super) struct Compared {
    /// File name without extension.
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    /// The unit.
    pub(super) label: &'static str,
    pub(super) kind: Kind,
    pub(super) load: Load,
    pub(super) categories: &'static [(&'static str, Read)],
}

// One line per chart and category.
#[rustfmt::skip]
pub(super) const COMPARED: &[Compared] = &[
    Compared { file: "summary", title: "Latency", label: "milliseconds", kind: Linear, load: Rate, categories: &[
        ("mean", |s| latency(s, |latency| latency.mean)),
        ("p50", |s| latency(s, |latency| latency.p50)),
        ("p90", |s| latency(s, |latency| latency.p90)),
        ("p99", |s| latency(s, |latency| latency.p99)),
    ] },
    Compared { file: "tail_latency", title: "Tail latency",
               label: "milliseconds, logarithmic", kind: Log, load: Rate, categories: &[
        ("p90", |s| latency(s, |latency| latency.p90)),
        ("p95", |s| latency(s, |latency| latency.p95)),
        ("p99", |s| latency(s, |latency| latency.p99)),
        ("p99.9", |s| latency(s, |latency| latency.p999)),
        ("max", |s| latency(s, |latency| latency.max)),
    ] },
    Compared { file: "qps", title: "Requests per second, requested and actual",
               label: "requests per second", kind: Linear, load: Rate, categories: &[
        ("requested", |s| s.total.requested_qps),
        ("actual", |s| total(s, Measurement::qps)),
    ] },
    Compared { file: "duration_requested_vs_actual", title: "Duration of all rounds, requested and actual",
               label: "seconds", kind: Linear, load: Rate, categories: &[
        ("requested", |s| total(s, |m| m.requested_seconds)),
        ("actual", |s| total(s, |m| m.seconds)),
    ] },
    Compared { file: "payload_size", title: "Payload of a call",
               label: "bytes", kind: Linear, load: Rate, categories: &[
        ("sent", |s| per_call(s, |m| m.payload_sent)),
        ("received", |s| per_call(s, |m| m.payload_received)),
    ] },
    Compared { file: "header_size", title: "Headers and frames of a call",
               label: "bytes besides the payload", kind: Linear, load: Rate, categories: &[
        ("request", |s| per_call(own(s)?, |m| m.sent.saturating_sub(m.payload_sent))),
        ("response", |s| per_call(own(s)?, |m| m.received.saturating_sub(m.payload_received))),
    ] },
    Compared { file: "data_volume", title: "Data on the load generator's connections",
               label: "megabytes", kind: Linear, load: Rate, categories: &[
        ("sent", |s| Some(own(s)?.total.sent as f64 / 1e6)),
        ("received", |s| Some(own(s)?.total.received as f64 / 1e6)),
    ] },
    Compared { file: "connection_stats", title: "Time to open a connection",
               label: "microseconds", kind: Linear, load: Rate, categories: &[
        ("min", |s| Some(own(s)?.total.connect.min)),
        ("mean", |s| Some(own(s)?.total.connect.mean)),
        ("max", |s| Some(own(s)?.total.connect.max)),
    ] },
    Compared { file: "memory", title: "Resident memory of the larger hop",
               label: "megabytes", kind: Linear, load: Rate, categories: &[
        ("idle", |s| per_hop(&s.memory.idle)),
        ("fixed rate", |s| per_hop(&s.memory.loaded)),
        ("saturated", |s| per_hop(&s.memory.saturated)),
        ("after all load", |s| per_hop(&s.memory.settled)),
    ] },
    Compared { file: "first_call", title: "Start of a first hop to its first answered call",
               label: "milliseconds", kind: Linear, load: Start, categories: &[
        ("first call", |s| median(&s.first_call)),
    ] },
    Compared { file: "throughput", title: "Throughput at saturation",
               label: "calls per second", kind: Linear, load: Full, categories: &[
        ("in all", |s| Some(s.saturation.as_ref()?.qps())),
        ("per core that the hops use", |s| s.saturation.as_ref()?.qps_per_core()),
    ] },
];

fn total(system: &SystemResults, read: fn(&Measurement) -> f64) -> Option<f64> {
    (system.total.requests > 0).then(|| read(&system.total))
}

/// In milliseconds.
fn latency(system: &SystemResults, read: fn(&Latencies) -> f64) -> Option<f64> {
    (system.total.requests > 0).then(|| read(&system.total.latency) / 1e3)
}

fn per_call(system: &SystemResults, read: fn(&Measurement) -> u64) -> Option<f64> {
    (system.total.requests > 0).then(|| read(&system.total) as f64 / system.total.requests as f64)
}

/// Only this program's load generator reports its connections.
fn own(system: &SystemResults) -> Option<&SystemResults> {
    (system.total.driver == "own" && system.total.sent > 0).then_some(system)
}
