//! Charts of other shapes: stacks, histograms, curves, ratios.

use super::super::axis::Kind;
use super::super::figure::Figure;
use super::super::number::bytes;
use super::super::plot::{Series, colour};
use super::super::ratios;
use super::Page;
use super::compared::Load;
use crate::plan::{Store, System};
use crate::procfs::{Cpu, Role};
use crate::results::SystemResults;

/// Bins of a histogram per power of ten.
const BINS: f64 = 20.0;
const PARTS: [&str; 3] = ["#9aa5b1", "#0b7a75", "#5b5bd6"];

/// A part of a stack: its name and size.
type Part = (&'static str, fn(&SystemResults) -> f64);

impl Page<'_> {
    pub(super) fn drawn(&self) -> [(&'static str, Option<Figure>); 8] {
        [
            ("cpu", Some(self.cpu())),
            ("histogram_count", self.histogram()),
            ("histogram_percent", self.cumulative()),
            ("duration_breakdown", self.breakdown()),
            ("saturation_curve", self.saturation_curve()),
            ("payload_sweep", self.payload_sweep()),
            ("connection_sweep", self.connection_sweep()),
            ("side_by_side", self.side_by_side()),
        ]
    }

    fn any(&self, has: fn(&SystemResults) -> bool) -> bool {
        self.found.systems.iter().any(has)
    }

    fn stacked(&self, title: &str, label: &'static str, parts: [Part; 3]) -> Figure {
        let systems = &self.found.systems;
        let series = parts.into_iter().zip(PARTS).map(|((name, read), colour)| Series {
            name: name.to_owned(),
            colour,
            values: systems.iter().map(read).collect(),
        });
        let categories: Vec<_> = systems.iter().map(|s| s.system.title().to_owned()).collect();
        self.plot(title, self.load(Load::Rate), label, Kind::Linear, series)
            .stacked(&categories)
    }

    fn breakdown(&self) -> Option<Figure> {
        let parts: [Part; 3] = [
            ("until the call left", |s| s.total.breakdown.waited / 1e3),
            ("until the answer began", |s| s.total.breakdown.head / 1e3),
            ("until the answer ended", |s| s.total.breakdown.body / 1e3),
        ];
        self.any(|system| system.total.driver == "own")
            .then(|| self.stacked("Where the mean latency goes", "milliseconds", parts))
    }

    fn cpu(&self) -> Figure {
        let others = match self.found.protocol.state().map(|call| call.store) {
            None => "app and load generator",
            Some(Store::Memory) => "load generator",
            Some(Store::Redis | Store::Postgres) => "store and load generator",
        };
        let parts: [Part; 3] = [
            (others, |s| cpu_per_call(s, |role| !role.is_hop(), Cpu::total)),
            ("hops, user", |s| cpu_per_call(s, Role::is_hop, |cpu| cpu.user)),
            ("hops, system", |s| {
                cpu_per_call(s, Role::is_hop, |cpu| cpu.system)
            }),
        ];
        self.stacked("CPU time per call", "microseconds", parts)
    }

    fn points(
        &self,
        read: impl Fn(&SystemResults) -> Vec<(f64, f64)>,
    ) -> impl Iterator<Item = Series<(f64, f64)>> {
        let systems = self.found.systems.iter();
        systems.map(move |system| Series::of(system.system, read(system)))
    }

    fn histogram(&self) -> Option<Figure> {
        let load = format!("{}; {BINS} bins for each power of ten", self.load(Load::Rate));
        let lines = self.points(|system| binned(&system.histogram));
        self.plot(
            "Latency histogram, calls",
            load,
            "calls in a bin",
            Kind::Linear,
            lines,
        )
        .lines("milliseconds, logarithmic", &[], false)
    }

    fn cumulative(&self) -> Option<Figure> {
        let lines = self.points(|system| {
            let all: u64 = system.histogram.iter().map(|(_, count)| count).sum();
            let mut sum = 0;
            let answered = |(value, count): &(f64, u64)| {
                sum += count;
                (value / 1e3, sum as f64 * 100.0 / all as f64)
            };
            system.histogram.iter().map(answered).collect()
        });
        let (load, label) = (self.load(Load::Rate), "percent of calls answered by then");
        self.plot("Latency histogram, percent", load, label, Kind::Linear, lines)
            .lines("milliseconds, logarithmic", &[], false)
    }

    fn saturation_curve(&self) -> Option<Figure> {
        if !self.any(|system| !system.curve.is_empty()) {
            return None;
        }
        let plan = &self.results.plan;
        let load = format!(
            "{}, {} connections; the last point of a line is full load",
            bytes(plan.payload),
            plan.connections
        );
        let lines = self.points(|system| {
            let points = system.curve.iter().chain(&system.saturation);
            points.map(|m| (m.qps(), m.latency.p99 / 1e3)).collect()
        });
        let label = "p99 latency, milliseconds, logarithmic";
        self.plot("Saturation curve", load, label, Kind::Log, lines)
            .lines("calls per second, logarithmic", &[], true)
    }

    fn payload_sweep(&self) -> Option<Figure> {
        let plan = &self.results.plan;
        // A logarithmic axis has no zero, so it is drawn at 64 bytes.
        let place = |payload: usize| payload.max(64) as f64;
        let lines = self.points(|system| {
            let points = system.payloads.iter();
            points.map(|m| (place(m.payload), m.qps())).collect()
        });
        let marks: Vec<_> = plan
            .payloads
            .iter()
            .map(|size| (place(*size), bytes(*size)))
            .collect();
        let load = format!("{} connections, at full load", plan.connections);
        self.plot(
            "Payload sweep",
            load,
            "calls per second, logarithmic",
            Kind::Log,
            lines,
        )
        .lines("payload each way", &marks, true)
    }

    fn connection_sweep(&self) -> Option<Figure> {
        let plan = &self.results.plan;
        let lines = self.points(|system| {
            let points = system.connections.iter();
            points.map(|m| (m.connections as f64, m.qps())).collect()
        });
        let counts = plan.connection_counts.iter();
        let marks: Vec<_> = counts.map(|count| (*count as f64, count.to_string())).collect();
        let load = format!("{}, at full load", bytes(plan.payload));
        self.plot("Connection sweep", load, "calls per second", Kind::Linear, lines)
            .lines("connections, one call at a time on each", &marks, true)
    }

    fn side_by_side(&self) -> Option<Figure> {
        let found = self.found;
        let direct = found.of(System::Direct).is_some();
        let added = direct && found.protocol.state().is_some();
        let starts = self.any(|system| !system.first_call.is_empty());
        // Absolute latency is shown only if the added latency is unknown.
        let figures = [
            (true, "CPU per call", &ratios::CPU),
            (true, "CPU, saturated", &ratios::CPU_SATURATED),
            (added, "CPU added", &ratios::CPU_ADDED),
            (direct, "added p50", &ratios::ADDED_P50),
            (direct, "added p99", &ratios::ADDED_P99),
            (!direct, "p50", &ratios::P50),
            (!direct, "p99", &ratios::P99),
            (true, "calls/s", &ratios::THROUGHPUT),
            (true, "memory, idle", &ratios::MEMORY_IDLE),
            (true, "memory, rate", &ratios::MEMORY_LOADED),
            (starts, "first call", &ratios::FIRST_CALL),
        ];
        let shown = || figures.iter().filter(|(shown, ..)| *shown);
        let peers = System::PEERS.into_iter().filter(|peer| found.of(*peer).is_some());
        let series = peers.map(|peer| Series {
            name: format!("Outrigger against {}", peer.title()),
            colour: colour(peer),
            values: shown()
                .map(|(_, _, figure)| figure.ratio(found, peer).filter(|ratio| *ratio > 0.0))
                .collect(),
        });
        let categories: Vec<_> = shown().map(|(_, name, _)| (*name).to_owned()).collect();
        let load = format!(
            "{}; below 1 is less than the peer's; only for calls/s is more better",
            self.load(Load::Rate)
        );
        self.plot("Side by side", load, "ratio, logarithmic", Kind::Log, series)
            .grouped(&categories, Some(1.0))
    }
}

fn cpu_per_call(system: &SystemResults, roles: fn(Role) -> bool, read: fn(Cpu) -> f64) -> f64 {
    let cpu = system.total.cpu.iter().filter(|(role, _)| roles(**role));
    let seconds: f64 = cpu.map(|(_, cpu)| read(*cpu)).sum();
    seconds * 1e6 / system.total.requests.max(1) as f64
}

/// Calls in bins of equal width on a logarithmic axis, including empty bins; milliseconds.
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
    let middle = |at: i64| 10_f64.powf((at as f64 + 0.5) / BINS) / 1e3;
    let bins = (first..).zip(counts);
    bins.map(|(at, count)| (middle(at), count as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::binned;

    #[test]
    fn bins_contain_every_call() {
        let bins = binned(&[(100.0, 5), (101.0, 5), (5_000.0, 1)]);
        assert_eq!(bins.iter().map(|(_, count)| count).sum::<f64>(), 11.0);
        assert_eq!(bins[0].1, 10.0);
        assert!(bins.len() > 30 && binned(&[]).is_empty());
    }
}
