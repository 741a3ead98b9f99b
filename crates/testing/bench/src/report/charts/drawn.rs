//! Charts of a shape of their own: stacks, histograms, curves, ratios.

use super::super::axis::Kind;
use super::super::bars::{Bars, Series};
use super::super::figure::Figure;
use super::super::lines::{Line, Lines};
use super::super::number;
use super::super::ratios::{self, FIGURES};
use super::compared::Load;
use super::{Page, colour};
use crate::plan::{Store, System};
use crate::procfs::{Cpu, Role};
use crate::results::SystemResults;

/// Bins of a histogram, for each power of ten.
const BINS: f64 = 20.0;
const PARTS: [&str; 3] = ["#9aa5b1", "#0b7a75", "#5b5bd6"];

/// A part of a stack: its name and its size.
type Part = (&'static str, fn(&SystemResults) -> f64);

impl Page<'_> {
    pub(super) fn drawn(&self) -> Vec<(&'static str, Figure)> {
        let any = |has: fn(&SystemResults) -> bool| self.found.systems.iter().any(has);
        let mut charts = vec![("cpu", self.cpu())];
        if any(|system| !system.histogram.is_empty()) {
            charts.push(("histogram_count", self.histogram()));
            charts.push(("histogram_percent", self.cumulative()));
        }
        if any(|system| system.total.driver == "own") {
            charts.push(("duration_breakdown", self.breakdown()));
        }
        if any(|system| !system.curve.is_empty()) {
            charts.push(("saturation_curve", self.saturation_curve()));
        }
        if any(|system| !system.payloads.is_empty()) {
            charts.push(("payload_sweep", self.payload_sweep()));
            charts.push(("connection_sweep", self.connection_sweep()));
        }
        if any(|system| System::PEERS.contains(&system.system)) {
            charts.push(("side_by_side", self.side_by_side()));
        }
        charts
    }

    fn stacked(&self, title: &str, label: &str, parts: &[Part]) -> Figure {
        let systems = &self.found.systems;
        let series = parts.iter().zip(PARTS).map(|((name, read), colour)| Series {
            name: (*name).to_owned(),
            colour,
            values: systems.iter().map(|system| Some(read(system))).collect(),
        });
        Bars {
            title: self.title(title),
            subtitle: self.load(Load::Rate),
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
                ("until the call left", |system| {
                    system.total.breakdown.waited / 1e3
                }),
                ("until the answer began", |system| {
                    system.total.breakdown.head / 1e3
                }),
                ("until the answer ended", |system| {
                    system.total.breakdown.body / 1e3
                }),
            ],
        )
    }

    fn cpu(&self) -> Figure {
        let others = match self.found.protocol.state().map(|call| call.store) {
            None => "app and load generator",
            Some(Store::Memory) => "load generator",
            Some(Store::Redis | Store::Postgres) => "store and load generator",
        };
        self.stacked(
            "CPU time per call",
            "microseconds",
            &[
                (others, |s| cpu_per_call(s, |role| !role.is_hop(), Cpu::total)),
                ("hops, user", |s| cpu_per_call(s, Role::is_hop, |cpu| cpu.user)),
                ("hops, system", |s| {
                    cpu_per_call(s, Role::is_hop, |cpu| cpu.system)
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
            subtitle: format!("{}; {BINS} bins for each power of ten", self.load(Load::Rate)),
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
            subtitle: self.load(Load::Rate),
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
                self.load(Load::Full)
                    .trim_end_matches(", as fast as answers come")
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

    fn payload_sweep(&self) -> Figure {
        let plan = &self.results.plan;
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

    fn connection_sweep(&self) -> Figure {
        let plan = &self.results.plan;
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

    /// Whether a ratio of a figure says something: latency as such only where nothing tells what is added.
    fn is_told(&self, at: usize) -> bool {
        let of_state = self.found.protocol.state().is_some();
        let direct = self.found.of(System::Direct).is_some();
        match at {
            ratios::CPU_ADDED => of_state && direct,
            ratios::ADDED_P50 | ratios::ADDED_P99 => direct,
            ratios::P50 | ratios::P99 => !direct,
            ratios::FIRST_CALL => self
                .found
                .systems
                .iter()
                .any(|system| !system.first_call.is_empty()),
            _ => true,
        }
    }

    fn side_by_side(&self) -> Figure {
        let shown: Vec<_> = [
            (ratios::CPU, "CPU per call"),
            (ratios::CPU_SATURATED, "CPU, saturated"),
            (ratios::CPU_ADDED, "CPU added"),
            (ratios::ADDED_P50, "added p50"),
            (ratios::ADDED_P99, "added p99"),
            (ratios::P50, "p50"),
            (ratios::P99, "p99"),
            (ratios::THROUGHPUT, "calls/s"),
            (ratios::MEMORY_IDLE, "memory, idle"),
            (ratios::MEMORY_LOADED, "memory, rate"),
            (ratios::FIRST_CALL, "first call"),
        ]
        .into_iter()
        .filter(|(at, _)| self.is_told(*at))
        .filter_map(|(at, name)| FIGURES.get(at).map(|figure| (figure, name)))
        .collect();
        let series = System::PEERS
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
                self.load(Load::Rate)
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

fn cpu_per_call(system: &SystemResults, roles: fn(Role) -> bool, read: fn(Cpu) -> f64) -> f64 {
    let cpu = system.total.cpu.iter().filter(|(role, _)| roles(**role));
    let seconds: f64 = cpu.map(|(_, cpu)| read(*cpu)).sum();
    seconds * 1e6 / system.total.requests.max(1) as f64
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
