//! The tables of the summary page.

use std::fmt::Write as _;

use super::ProtocolResults;
use super::number::short;
use super::ratios::per_hop;
use crate::plan::System;
use crate::procfs::{Cpu, Role};
use crate::results::{Measurement, SystemResults};

pub(super) fn latency(page: &mut String, found: &ProtocolResults) {
    let columns = [
        "",
        "mean",
        "min",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "p50 of rounds",
        "left late, p50 and p99",
        "requests/s",
        "failed",
    ];
    let rows = found.systems.iter().map(|system| {
        let (total, latency) = (&system.total, &system.total.latency);
        let mut row = vec![system.system.title().to_owned()];
        let values = [
            latency.mean,
            latency.min,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.max,
        ];
        row.extend(values.iter().map(|micros| short(micros / 1e3)));
        let medians = || system.rounds.iter().map(|round| round.latency.p50 / 1e3);
        let (least, most) = (
            medians().fold(f64::INFINITY, f64::min),
            medians().fold(0.0, f64::max),
        );
        row.push(format!("{} to {}", short(least), short(most)));
        let lag = |micros: f64| short(micros / 1e3);
        row.push(format!("{}, {}", lag(total.lag.p50), lag(total.lag.p99)));
        row.push(short(total.qps()));
        row.push(failures(total));
        row
    });
    table(
        page,
        "Latency at the fixed rate, milliseconds",
        &columns.map(String::from),
        rows,
    );
}

fn failures(measured: &Measurement) -> String {
    if measured.errors.is_empty() {
        return "0".to_owned();
    }
    let kinds: Vec<String> = measured
        .errors
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"))
        .collect();
    kinds.join(", ").replace('|', "/")
}

pub(super) fn cpu(page: &mut String, found: &ProtocolResults) {
    type Read = fn(Cpu) -> f64;
    let store = if found.protocol.state().is_some() {
        "store"
    } else {
        "app"
    };
    let all: [(&str, Role, Read); 6] = [
        ("caller user", Role::Caller, |cpu| cpu.user),
        ("caller system", Role::Caller, |cpu| cpu.system),
        ("callee user", Role::Callee, |cpu| cpu.user),
        ("callee system", Role::Callee, |cpu| cpu.system),
        (store, Role::App, Cpu::total),
        ("load generator", Role::Load, Cpu::total),
    ];
    let present = |role| {
        found
            .systems
            .iter()
            .any(|system| system.total.cpu.contains_key(&role))
    };
    let shown: Vec<_> = all.into_iter().filter(|(_, role, _)| present(*role)).collect();
    let mut columns = vec![""];
    columns.extend(shown.iter().map(|(name, _, _)| *name));
    columns.push("all hops, millicores");
    let rows = found.systems.iter().map(|system| {
        let total = &system.total;
        let per_call = |seconds: f64| short(seconds * 1e6 / total.requests.max(1) as f64);
        let mut row = vec![system.system.title().to_owned()];
        for (_, role, read) in &shown {
            let cpu = total.cpu.get(role);
            row.push(cpu.map_or_else(dash, |cpu| per_call(read(*cpu))));
        }
        let hops = total.cpu_per_call(Role::is_hop) * total.requests as f64 / 1e3;
        row.push(cell((hops > 0.0).then(|| hops / total.seconds.max(1e-9))));
        row
    });
    let columns: Vec<String> = columns.into_iter().map(String::from).collect();
    let title = "CPU time at the fixed rate, microseconds per call (milliseconds per 1,000 calls)";
    table(page, title, &columns, rows);
}

pub(super) fn memory(page: &mut String, found: &ProtocolResults) {
    let columns = [
        "",
        "idle",
        "fixed rate",
        "saturated",
        "after all load",
        "idle connection, KB",
        "first call, ms",
    ];
    let rows = found
        .systems
        .iter()
        .filter(|system| system.system != System::Direct)
        .map(|system| {
            let memory = &system.memory;
            let mut row = vec![system.system.title().to_owned()];
            for stage in [&memory.idle, &memory.loaded, &memory.saturated, &memory.settled] {
                row.push(cell(per_hop(stage)));
            }
            row.push(cell(memory.per_connection.map(|bytes| bytes / 1e3)));
            let starts: Vec<String> = system.first_call.iter().map(|ms| short(*ms)).collect();
            row.push(if starts.is_empty() {
                dash()
            } else {
                starts.join(", ")
            });
            row
        });
    table(
        page,
        "Resident memory of the larger hop, megabytes",
        &columns.map(String::from),
        rows,
    );
}

pub(super) fn saturation(page: &mut String, found: &ProtocolResults) {
    let columns = [
        "",
        "requested/s",
        "achieved/s",
        "mean",
        "p50",
        "p99",
        "max",
        "CPU per call in the hops, µs",
        "load generator, % of a core",
        "failed",
    ];
    let rows = found.systems.iter().flat_map(|system| {
        system.curve.iter().chain(&system.saturation).map(|measured| {
            let latency = &measured.latency;
            let mut row = vec![system.system.title().to_owned()];
            row.push(
                measured
                    .requested_qps
                    .map_or_else(|| "all it can".to_owned(), short),
            );
            row.push(short(measured.qps()));
            row.extend(
                [latency.mean, latency.p50, latency.p99, latency.max].map(|micros| short(micros / 1e3)),
            );
            let hops = measured.cpu_per_call(Role::is_hop);
            row.push(if hops > 0.0 { short(hops) } else { dash() });
            let generator = measured
                .cpu
                .get(&Role::Load)
                .map(|cpu| cpu.total() / measured.seconds.max(1e-9) * 100.0);
            row.push(cell(generator));
            row.push(failures(measured));
            row
        })
    });
    table(
        page,
        "Saturation: parts of a system's own throughput, then all of it; milliseconds",
        &columns.map(String::from),
        rows,
    );
}

pub(super) fn sweep(
    page: &mut String,
    found: &ProtocolResults,
    title: &str,
    points: fn(&SystemResults) -> &Vec<Measurement>,
    name: fn(&Measurement) -> String,
) {
    let Some(longest) = found.systems.iter().map(points).max_by_key(|points| points.len()) else {
        return;
    };
    let names: Vec<String> = longest.iter().map(name).collect();
    let mut columns = vec![String::new()];
    columns.extend(names.iter().cloned());
    let rows = found.systems.iter().map(|system| {
        let mut row = vec![system.system.title().to_owned()];
        row.extend(names.iter().map(|wanted| {
            let point = points(system).iter().find(|point| name(point) == *wanted);
            point.map_or_else(dash, |point| match point.cpu_per_call(Role::is_hop) {
                hops if hops > 0.0 => format!("{} ({})", short(point.qps()), short(hops)),
                _ => short(point.qps()),
            })
        }));
        row
    });
    if !names.is_empty() {
        table(page, title, &columns, rows);
    }
}

pub(super) fn table(
    page: &mut String,
    title: &str,
    columns: &[String],
    rows: impl Iterator<Item = Vec<String>>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = writeln!(page, "### {title}\n");
    let _ = writeln!(page, "| {} |", columns.join(" | "));
    let rule: Vec<&str> = columns
        .iter()
        .enumerate()
        .map(|(at, _)| if at == 0 { "---" } else { "---:" })
        .collect();
    let _ = writeln!(page, "| {} |", rule.join(" | "));
    for row in rows {
        let _ = writeln!(page, "| {} |", row.join(" | "));
    }
    let _ = writeln!(page);
}

pub(super) fn cell(value: Option<f64>) -> String {
    value.map_or_else(dash, short)
}

fn dash() -> String {
    "–".to_owned()
}
