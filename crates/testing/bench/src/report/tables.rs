//! The tables of the summary page.

use std::borrow::Borrow;
use std::fmt::Write as _;

use super::ProtocolResults;
use super::number::short;
use super::ratios::per_hop;
use crate::plan::System;
use crate::procfs::{Cpu, Role};
use crate::results::{Measurement, SystemResults};

/// A column: its header, and the cell of a row.
type Column<T> = (&'static str, fn(&T) -> String);

pub(super) fn latency(page: &mut String, found: &ProtocolResults) {
    let columns: &[Column<SystemResults>] = &[
        ("mean", |s| ms(s.total.latency.mean)),
        ("min", |s| ms(s.total.latency.min)),
        ("p50", |s| ms(s.total.latency.p50)),
        ("p90", |s| ms(s.total.latency.p90)),
        ("p99", |s| ms(s.total.latency.p99)),
        ("p99.9", |s| ms(s.total.latency.p999)),
        ("max", |s| ms(s.total.latency.max)),
        ("p50 of rounds", |s| {
            let medians = || s.rounds.iter().map(|round| round.latency.p50);
            let least = medians().fold(f64::INFINITY, f64::min);
            format!("{} to {}", ms(least), ms(medians().fold(0.0, f64::max)))
        }),
        ("left late, p50 and p99", |s| {
            format!("{}, {}", ms(s.total.lag.p50), ms(s.total.lag.p99))
        }),
        ("requests/s", |s| short(s.total.qps())),
        ("failed", |s| failures(&s.total)),
    ];
    by_system(
        page,
        "Latency at the fixed rate, milliseconds",
        columns,
        systems(found),
    );
}

fn failures(measured: &Measurement) -> String {
    if measured.errors.is_empty() {
        return "0".to_owned();
    }
    let kinds = measured
        .errors
        .iter()
        .map(|(kind, count)| format!("{count} × {kind}"));
    kinds.collect::<Vec<_>>().join(", ").replace('|', "/")
}

pub(super) fn cpu(page: &mut String, found: &ProtocolResults) {
    type Read = fn(Cpu) -> f64;
    type Cell = Box<dyn Fn(&SystemResults) -> String>;
    let store = found.protocol.state().map_or("app", |_| "store");
    let all: [(&str, Role, Read); 6] = [
        ("caller user", Role::Caller, |cpu| cpu.user),
        ("caller system", Role::Caller, |cpu| cpu.system),
        ("callee user", Role::Callee, |cpu| cpu.user),
        ("callee system", Role::Callee, |cpu| cpu.system),
        (store, Role::App, Cpu::total),
        ("load generator", Role::Load, Cpu::total),
    ];
    let mut columns: Vec<(&str, Cell)> = Vec::new();
    for (name, role, read) in all {
        if found.systems.iter().any(|s| s.total.cpu.contains_key(&role)) {
            columns.push((name, Box::new(move |s| per_call(s, role, read))));
        }
    }
    let millicores = |s: &SystemResults| {
        let seconds = s.total.cpu_per_call(Role::is_hop) * s.total.requests as f64 / 1e3;
        cell((seconds > 0.0).then(|| seconds / s.total.seconds.max(1e-9)))
    };
    columns.push(("all hops, millicores", Box::new(millicores)));
    let title = "CPU time at the fixed rate, microseconds per call (milliseconds per 1,000 calls)";
    by_system(page, title, &columns, systems(found));
}

fn per_call(system: &SystemResults, role: Role, read: fn(Cpu) -> f64) -> String {
    let cpu = system.total.cpu.get(&role);
    cell(cpu.map(|cpu| read(*cpu) * 1e6 / system.total.requests.max(1) as f64))
}

pub(super) fn memory(page: &mut String, found: &ProtocolResults) {
    let columns: &[Column<SystemResults>] = &[
        ("idle", |s| cell(per_hop(&s.memory.idle))),
        ("fixed rate", |s| cell(per_hop(&s.memory.loaded))),
        ("saturated", |s| cell(per_hop(&s.memory.saturated))),
        ("after all load", |s| cell(per_hop(&s.memory.settled))),
        ("idle connection, KB", |s| {
            cell(s.memory.per_connection.map(|bytes| bytes / 1e3))
        }),
        ("first call, ms", |s| match &*s.first_call {
            [] => dash(),
            starts => starts.iter().map(|ms| short(*ms)).collect::<Vec<_>>().join(", "),
        }),
    ];
    let rows = systems(found).filter(|(system, _)| *system != System::Direct);
    by_system(
        page,
        "Resident memory of the larger hop, megabytes",
        columns,
        rows,
    );
}

pub(super) fn saturation(page: &mut String, found: &ProtocolResults) {
    let columns: &[Column<Measurement>] = &[
        ("requested/s", |m| {
            m.requested_qps.map_or_else(|| "all it can".to_owned(), short)
        }),
        ("achieved/s", |m| short(m.qps())),
        ("mean", |m| ms(m.latency.mean)),
        ("p50", |m| ms(m.latency.p50)),
        ("p99", |m| ms(m.latency.p99)),
        ("max", |m| ms(m.latency.max)),
        ("CPU per call in the hops, µs", |m| cell(hops(m))),
        ("load generator, % of a core", |m| {
            let cpu = m.cpu.get(&Role::Load);
            cell(cpu.map(|cpu| cpu.total() / m.seconds.max(1e-9) * 100.0))
        }),
        ("failed", failures),
    ];
    let rows = systems(found).flat_map(|(system, results)| {
        let measured = results.curve.iter().chain(&results.saturation);
        measured.map(move |measured| (system, measured))
    });
    let title = "Saturation: parts of a system's own throughput, then all of it; milliseconds";
    by_system(page, title, columns, rows);
}

fn hops(measured: &Measurement) -> Option<f64> {
    Some(measured.cpu_per_call(Role::is_hop)).filter(|hops| *hops > 0.0)
}

pub(super) fn sweep(
    page: &mut String,
    found: &ProtocolResults,
    title: &str,
    points: fn(&SystemResults) -> &Vec<Measurement>,
    name: fn(&Measurement) -> String,
) {
    let longest = found.systems.iter().map(points).max_by_key(|points| points.len());
    let names = longest.into_iter().flatten().map(name);
    let columns = names.map(|wanted| {
        let read = {
            let wanted = wanted.clone();
            move |system: &SystemResults| {
                let point = points(system).iter().find(|point| name(point) == wanted);
                point.map_or_else(dash, |point| match hops(point) {
                    Some(hops) => format!("{} ({})", short(point.qps()), short(hops)),
                    None => short(point.qps()),
                })
            }
        };
        (wanted, read)
    });
    let columns: Vec<_> = columns.collect();
    if !columns.is_empty() {
        by_system(page, title, &columns, systems(found));
    }
}

fn systems(found: &ProtocolResults) -> impl Iterator<Item = (System, &SystemResults)> {
    found.systems.iter().map(|results| (results.system, results))
}

/// Writes a table with the systems in its first column.
fn by_system<'a, T: 'a>(
    page: &mut String,
    title: &str,
    columns: &[(impl AsRef<str>, impl Fn(&T) -> String)],
    rows: impl Iterator<Item = (System, &'a T)>,
) {
    let heads = std::iter::once("").chain(columns.iter().map(|(head, _)| head.as_ref()));
    let rows = rows.map(|(system, row)| {
        let cells = columns.iter().map(|(_, read)| read(row));
        std::iter::once(system.title().to_owned()).chain(cells).collect()
    });
    table(page, title, &heads.collect::<Vec<_>>(), rows);
}

pub(super) fn table(
    page: &mut String,
    title: &str,
    columns: &[impl Borrow<str>],
    rows: impl Iterator<Item = Vec<String>>,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let rule = " ---: |".repeat(columns.len() - 1);
    let _ = writeln!(page, "### {title}\n\n| {} |\n| --- |{rule}", columns.join(" | "));
    for row in rows {
        let _ = writeln!(page, "| {} |", row.join(" | "));
    }
    let _ = writeln!(page);
}

pub(super) fn cell(value: Option<f64>) -> String {
    value.map_or_else(dash, short)
}

/// Converts microseconds to milliseconds.
fn ms(micros: f64) -> String {
    short(micros / 1e3)
}

fn dash() -> String {
    "–".to_owned()
}
