//! The charts: those of Dapr's published report, and what that one lacks.

use super::Figure;
use super::axis::Kind;
use super::bars::{Bars, Series};
use super::lines::{Line, Lines};
use super::number;
use super::ratios::{self, FIGURES};
use super::{ProtocolResults, Results};
use crate::plan::System;
use crate::procfs::{Cpu, Role};
use crate::results::{Measurement, SystemResults};

/// Bins of a histogram, for each power of ten.
const BINS: f64 = 20.0;
const PARTS: [&str; 3] = ["#9aa5b1", "#0b7a75", "#5b5bd6"];

/// Every chart of a protocol, by the name of its file. One without data is left out.
pub(super) fn all(results: &Results, found: &ProtocolResults) -> Vec<(&'static str, Figure)> {
    let plan = &results.plan;
    let page = Page {
        found,
        rate: format!(
            "{}, {} connections, {} requests/s, {} rounds of {} requests",
            number::bytes(plan.payload),
            plan.connections,
            number::tick(plan.qps),
            plan.rounds,
            number::tick(plan.requests as f64)
        ),
        full: format!(
            "{}, {} connections, as fast as answers come",
            number::bytes(plan.payload),
            plan.connections
        ),
    };
    let mut charts = page.of_the_rate();
    charts.extend(page.of_resources());
    charts.extend(page.of_saturation(results));
    charts
}

struct Page<'a> {
    found: &'a ProtocolResults,
    /// The load of the rounds, in words.
    rate: String,
    full: String,
}

impl Page<'_> {
    fn of_the_rate(&self) -> Vec<(&'static str, Figure)> {
        let total = |read: fn(&Measurement) -> f64| move |system: &SystemResults| Some(read(&system.total));
        let mut charts = vec![
            (
                "summary",
                self.bars(
                    "Latency",
                    &self.rate,
                    "milliseconds",
                    Kind::Linear,
                    &[
                        ("mean", &total(|m| m.latency.mean / 1e3)),
                        ("p50", &total(|m| m.latency.p50 / 1e3)),
                        ("p90", &total(|m| m.latency.p90 / 1e3)),
                        ("p99", &total(|m| m.latency.p99 / 1e3)),
                    ],
                ),
            ),
            (
                "tail_latency",
                self.bars(
                    "Tail latency",
                    &self.rate,
                    "milliseconds, logarithmic",
                    Kind::Log,
                    &[
                        ("p90", &total(|m| m.latency.p90 / 1e3)),
                        ("p95", &total(|m| m.latency.p95 / 1e3)),
                        ("p99", &total(|m| m.latency.p99 / 1e3)),
                        ("p99.9", &total(|m| m.latency.p999 / 1e3)),
                        ("max", &total(|m| m.latency.max / 1e3)),
                    ],
                ),
            ),
            (
                "qps",
                self.bars(
                    "Requests per second, requested and actual",
                    &self.rate,
                    "requests per second",
                    Kind::Linear,
                    &[
                        ("requested", &|system| system.total.requested_qps),
                        ("actual", &total(Measurement::qps)),
                    ],
                ),
            ),
            (
                "duration_requested_vs_actual",
                self.bars(
                    "Duration of all rounds, requested and actual",
                    &self.rate,
                    "seconds",
                    Kind::Linear,
                    &[
                        ("requested", &total(|m| m.requested_seconds)),
                        ("actual", &total(|m| m.seconds)),
                    ],
                ),
            ),
            (
                "payload_size",
                self.bars(
                    "Payload of a call",
                    &self.rate,
                    "bytes",
                    Kind::Linear,
                    &[
                        ("sent", &|system| {
                            per_call(&system.total, system.total.payload_sent)
                        }),
                        ("received", &|system| {
                            per_call(&system.total, system.total.payload_received)
                        }),
                    ],
                ),
            ),
            ("histogram_count", self.histogram()),
            ("histogram_percent", self.cumulative()),
        ];
        if self
            .found
            .systems
            .iter()
            .any(|system| system.total.driver == "own")
        {
            charts.extend(self.of_the_wire());
        }
        charts
    }

    /// What only the load generator of this program can tell.
    fn of_the_wire(&self) -> Vec<(&'static str, Figure)> {
        let connect = |read: fn(&Measurement) -> f64| move |system: &SystemResults| Some(read(&system.total));
        vec![
            (
                "connection_stats",
                self.bars(
                    "Time to open a connection",
                    &self.rate,
                    "microseconds",
                    Kind::Linear,
                    &[
                        ("min", &connect(|m| m.connect.min)),
                        ("mean", &connect(|m| m.connect.mean)),
                        ("max", &connect(|m| m.connect.max)),
                    ],
                ),
            ),
            (
                "data_volume",
                self.bars(
                    "Data on the load generator's connections",
                    &self.rate,
                    "megabytes",
                    Kind::Linear,
                    &[
                        ("sent", &connect(|m| m.sent as f64 / 1e6)),
                        ("received", &connect(|m| m.received as f64 / 1e6)),
                    ],
                ),
            ),
            (
                "header_size",
                self.bars(
                    "Headers and frames of a call",
                    &self.rate,
                    "bytes beside the payload",
                    Kind::Linear,
                    &[
                        ("request", &|system| {
                            per_call(
                                &system.total,
                                system.total.sent.saturating_sub(system.total.payload_sent),
                            )
                        }),
                        ("response", &|system| {
                            per_call(
                                &system.total,
                                system
                                    .total
                                    .received
                                    .saturating_sub(system.total.payload_received),
                            )
                        }),
                    ],
                ),
            ),
            ("duration_breakdown", self.breakdown()),
        ]
    }

    fn of_resources(&self) -> Vec<(&'static str, Figure)> {
        let stages = [
            (
                "idle",
                (|s| ratios::per_hop(&s.memory.idle)) as fn(&SystemResults) -> Option<f64>,
            ),
            ("fixed rate", |s| ratios::per_hop(&s.memory.loaded)),
            ("saturated", |s| ratios::per_hop(&s.memory.saturated)),
            ("after all load", |s| ratios::per_hop(&s.memory.settled)),
        ];
        let stages: Vec<(&str, &dyn Fn(&SystemResults) -> Option<f64>)> =
            stages.iter().map(|(name, read)| (*name, read as _)).collect();
        vec![
            ("cpu", self.cpu()),
            (
                "memory",
                self.bars(
                    "Resident memory of the larger hop",
                    &self.rate,
                    "megabytes",
                    Kind::Linear,
                    &stages,
                ),
            ),
            (
                "first_call",
                self.bars(
                    "Start of a first hop to its first answered call",
                    "mTLS on, CA and callee running; median",
                    "milliseconds",
                    Kind::Linear,
                    &[("first call", &|system| ratios::median(&system.first_call))],
                ),
            ),
            ("side_by_side", self.side_by_side()),
        ]
    }

    fn of_saturation(&self, results: &Results) -> Vec<(&'static str, Figure)> {
        let mut charts = Vec::new();
        if self
            .found
            .systems
            .iter()
            .any(|system| system.saturation.is_some())
        {
            charts.push((
                "throughput",
                self.bars(
                    "Throughput at saturation",
                    &self.full,
                    "calls per second",
                    Kind::Linear,
                    &[
                        ("in all", &|system| Some(system.saturation.as_ref()?.qps())),
                        ("per core that the hops use", &|system| {
                            system.saturation.as_ref()?.qps_per_core()
                        }),
                    ],
                ),
            ));
            charts.push(("saturation_curve", self.saturation_curve()));
        }
        if self
            .found
            .systems
            .iter()
            .any(|system| !system.payloads.is_empty())
        {
            charts.push(("payload_sweep", self.payload_sweep(results)));
            charts.push(("connection_sweep", self.connection_sweep(results)));
        }
        charts
    }

    fn title(&self, title: &str) -> String {
        format!("{title}: {}", self.found.protocol.title())
    }

    fn bars(
        &self,
        title: &str,
        subtitle: &str,
        label: &str,
        kind: Kind,
        categories: &[(&str, &dyn Fn(&SystemResults) -> Option<f64>)],
    ) -> Figure {
        let series = self.found.systems.iter().map(|system| Series {
            name: system.system.title().to_owned(),
            colour: colour(system.system),
            values: categories.iter().map(|(_, read)| read(system)).collect(),
        });
        Bars {
            title: self.title(title),
            subtitle: subtitle.to_owned(),
            label: label.to_owned(),
            categories: categories.iter().map(|(name, _)| (*name).to_owned()).collect(),
            // One without any value, as the direct call's memory, would only widen the groups.
            series: series
                .filter(|series| series.values.iter().any(Option::is_some))
                .collect(),
            kind,
            from: None,
        }
        .grouped()
    }

    fn stacked(&self, title: &str, label: &str, parts: &[(&str, &dyn Fn(&SystemResults) -> f64)]) -> Figure {
        let systems = &self.found.systems;
        let series = parts.iter().zip(PARTS).map(|((name, read), colour)| Series {
            name: (*name).to_owned(),
            colour,
            values: systems.iter().map(|system| Some(read(system))).collect(),
        });
        Bars {
            title: self.title(title),
            subtitle: self.rate.clone(),
            label: label.to_owned(),
            categories: systems
                .iter()
                .map(|system| system.system.title().to_owned())
                .collect(),
            series: series.collect(),
            kind: Kind::Linear,
            from: None,
        }
        .stacked()
    }

    fn breakdown(&self) -> Figure {
        self.stacked(
            "Where the mean latency goes",
            "milliseconds",
            &[
                ("until the call left", &|system| {
                    system.total.breakdown.waited / 1e3
                }),
                ("until the answer began", &|system| {
                    system.total.breakdown.head / 1e3
                }),
                ("until the answer ended", &|system| {
                    system.total.breakdown.body / 1e3
                }),
            ],
        )
    }

    fn cpu(&self) -> Figure {
        let per_call = |system: &SystemResults, roles: fn(Role) -> bool, read: fn(&Cpu) -> f64| {
            let total = &system.total;
            let seconds: f64 = total
                .cpu
                .iter()
                .filter(|(role, _)| roles(**role))
                .map(|(_, cpu)| read(cpu))
                .sum();
            seconds * 1e6 / (total.requests.max(1) as f64)
        };
        let hops = Role::is_hop as fn(Role) -> bool;
        self.stacked(
            "CPU time per call",
            "microseconds",
            &[
                ("app and load generator", &|system| {
                    per_call(system, |role| !role.is_hop(), |cpu| cpu.total())
                }),
                ("both hops, user", &|system| {
                    per_call(system, hops, |cpu| cpu.user)
                }),
                ("both hops, system", &|system| {
                    per_call(system, hops, |cpu| cpu.system)
                }),
            ],
        )
    }

    fn lines(&self, read: impl Fn(&SystemResults) -> Vec<(f64, f64)>) -> Vec<Line> {
        let lines = self.found.systems.iter().map(|system| Line {
            name: system.system.title().to_owned(),
            colour: colour(system.system),
            points: read(system),
        });
        lines.filter(|line| !line.points.is_empty()).collect()
    }

    fn histogram(&self) -> Figure {
        Lines {
            title: self.title("Latency histogram, calls"),
            subtitle: format!("{}; {BINS} bins for each power of ten", self.rate),
            x: ("milliseconds, logarithmic".to_owned(), Kind::Log),
            y: ("calls in a bin".to_owned(), Kind::Linear),
            lines: self.lines(|system| binned(&system.histogram)),
            marks: Vec::new(),
            dots: false,
        }
        .draw()
    }

    fn cumulative(&self) -> Figure {
        Lines {
            title: self.title("Latency histogram, percent"),
            subtitle: self.rate.clone(),
            x: ("milliseconds, logarithmic".to_owned(), Kind::Log),
            y: ("percent of calls answered by then".to_owned(), Kind::Linear),
            lines: self.lines(|system| {
                let all: u64 = system.histogram.iter().map(|(_, count)| count).sum();
                let mut sum = 0;
                let answered = |(value, count): &(f64, u64)| {
                    sum += count;
                    (value / 1e3, sum as f64 * 100.0 / all as f64)
                };
                system.histogram.iter().map(answered).collect()
            }),
            marks: Vec::new(),
            dots: false,
        }
        .draw()
    }

    fn saturation_curve(&self) -> Figure {
        Lines {
            title: self.title("Saturation curve"),
            subtitle: format!(
                "{}; the last point of a line is as fast as answers come",
                self.rate_less()
            ),
            x: ("calls per second, logarithmic".to_owned(), Kind::Log),
            y: ("p99 latency, milliseconds, logarithmic".to_owned(), Kind::Log),
            lines: self.lines(|system| {
                let points = system.curve.iter().chain(&system.saturation);
                points.map(|m| (m.qps(), m.latency.p99 / 1e3)).collect()
            }),
            marks: Vec::new(),
            dots: true,
        }
        .draw()
    }

    fn rate_less(&self) -> &str {
        self.full.trim_end_matches(", as fast as answers come")
    }

    fn payload_sweep(&self, results: &Results) -> Figure {
        let plan = &results.plan;
        // Zero has no place on a logarithmic axis; it is drawn where 64 bytes would be.
        let place = |payload: usize| payload.max(64) as f64;
        Lines {
            title: self.title("Payload sweep"),
            subtitle: format!("{} connections, as fast as answers come", plan.connections),
            x: ("payload each way".to_owned(), Kind::Log),
            y: ("calls per second, logarithmic".to_owned(), Kind::Log),
            lines: self.lines(|system| {
                system
                    .payloads
                    .iter()
                    .map(|m| (place(m.payload), m.qps()))
                    .collect()
            }),
            marks: plan
                .payloads
                .iter()
                .map(|size| (place(*size), number::bytes(*size)))
                .collect(),
            dots: true,
        }
        .draw()
    }

    fn connection_sweep(&self, results: &Results) -> Figure {
        let plan = &results.plan;
        Lines {
            title: self.title("Connection sweep"),
            subtitle: format!("{}, as fast as answers come", number::bytes(plan.payload)),
            x: ("connections, one call at a time on each".to_owned(), Kind::Log),
            y: ("calls per second".to_owned(), Kind::Linear),
            lines: self.lines(|system| {
                system
                    .connections
                    .iter()
                    .map(|m| (m.connections as f64, m.qps()))
                    .collect()
            }),
            marks: plan
                .connection_counts
                .iter()
                .map(|count| (*count as f64, count.to_string()))
                .collect(),
            dots: true,
        }
        .draw()
    }

    fn side_by_side(&self) -> Figure {
        let shown: Vec<_> = [
            (0, "CPU per call"),
            (1, "CPU, saturated"),
            (3, "added p50"),
            (4, "added p99"),
            (5, "calls/s"),
            (7, "memory, idle"),
            (8, "memory, rate"),
            (12, "first call"),
        ]
        .into_iter()
        .filter_map(|(at, name)| FIGURES.get(at).map(|figure| (figure, name)))
        .collect();
        let peers = [System::Reference, System::Nginx];
        let series = peers
            .into_iter()
            .filter(|peer| self.found.of(*peer).is_some())
            .map(|peer| Series {
                name: format!("Outrigger against {}", peer.title()),
                colour: colour(peer),
                values: shown
                    .iter()
                    .map(|(figure, _)| figure.ratio(self.found, peer).filter(|ratio| *ratio > 0.0))
                    .collect(),
            });
        Bars {
            title: self.title("Side by side"),
            subtitle: format!(
                "{}; below 1 is less than the peer's; only for calls/s is more better",
                self.rate
            ),
            label: "ratio, logarithmic".to_owned(),
            categories: shown.iter().map(|(_, name)| (*name).to_owned()).collect(),
            series: series.collect(),
            kind: Kind::Log,
            from: Some(1.0),
        }
        .grouped()
    }
}

pub(super) fn colour(system: System) -> &'static str {
    match system {
        System::Direct => "#9aa5b1",
        System::Outrigger => "#0b7a75",
        System::Reference => "#d9822b",
        System::Nginx => "#5b5bd6",
    }
}

fn per_call(measured: &Measurement, bytes: u64) -> Option<f64> {
    (measured.requests > 0).then(|| bytes as f64 / measured.requests as f64)
}

/// Calls in bins of equal width on a logarithmic axis, empty ones included; milliseconds.
fn binned(histogram: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let bin = |value: f64| (value.max(1e-3).log10() * BINS).floor() as i64;
    let (Some(first), Some(last)) = (histogram.first(), histogram.last()) else {
        return Vec::new();
    };
    let (first, last) = (bin(first.0), bin(last.0));
    let mut counts = vec![0_u64; (last - first + 1).max(0) as usize];
    for (value, count) in histogram {
        if let Some(sum) = counts.get_mut((bin(*value) - first) as usize) {
            *sum += count;
        }
    }
    let middle = |at: usize| 10_f64.powf(((first + at as i64) as f64 + 0.5) / BINS) / 1e3;
    counts
        .iter()
        .enumerate()
        .map(|(at, count)| (middle(at), *count as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::binned;

    #[test]
    fn bins_keep_every_call() {
        let bins = binned(&[(100.0, 5), (101.0, 5), (5_000.0, 1)]);
        assert_eq!(bins.iter().map(|(_, count)| count).sum::<f64>(), 11.0);
        assert_eq!(bins[0].1, 10.0);
        assert!(bins.len() > 30 && binned(&[]).is_empty());
    }
}
