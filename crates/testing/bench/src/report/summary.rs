//! The summary page: highlights, notes, tables, charts.

use std::fmt::Write as _;

use super::charts;
use super::number::{bytes, short, tick};
use super::overview;
use super::ratios::{self, FIGURES, Figure};
use super::tables::{cell, cpu, latency, memory, saturation, sweep, table};
use super::targets;
use super::{ProtocolResults, Results};
use crate::plan::{Driver, Store, System};

const READING: &str = "
* **Latency** counts from the time a call was due by the schedule, not from sending: a stall affects every call that it
  delayed; with Fortio it counts from sending. Percentiles are those of all rounds in one histogram.
* **Left late** is the time calls waited before sending, for CPU time of the load generator or for an idle connection.
  It is part of the latency. If it is most of it, the machine was too busy for a valid measurement.
* **Added** is a system's figure minus that of the direct call in the same run.
* A **hop** is one sidecar or proxy. CPU time is user and system time of the process and its children over the whole
  measurement.
* **Saturated** means at full load: each connection sends the next call after a response. All processes share the cores
  of one machine, so CPU time saved by a hop is used by the others. Calls per second therefore depend on all processes;
  calls per second and core of the hops only on the hops.
* Rounds, rates, sizes and connection counts visit the systems in turn, so other load on the machine affects all alike.
* One machine with few cores shows what calls *cost*, and how systems compare. It does not show latency across a network,
  or how a system scales with cores. Tail latencies depend on the scheduler as much as on the systems.";
const READING_INVOCATION: &str = "
* Envoy is two hops as in a service mesh: mTLS and HTTP/2 between them, statistics, and an RBAC rule at the callee that
  admits only the caller's certificate. No tracing or discovery.
* nginx is the lower bound: two hops with mTLS, without tracing, metrics, policy or discovery.
";
const READING_STATE: &str = "
* The **direct** call uses the sidecar's driver of the store, with the commands of a plain get and of a save without
  conditions, on as many connections as the load has. The driver runs in the load generator. CPU time *added* therefore
  includes all processes, with load generator and store, minus the same for the direct call. At full load, one thread
  of the load generator limits the direct call.
* Connections use different keys. Stores run on this machine and do not write to disk, or do not wait for it.
";

pub(super) fn markdown(results: &Results) -> String {
    let mut page = String::new();
    head(&mut page, results);
    highlights(&mut page, results);
    let more = if results.plan.is_of_state() {
        stores(&mut page, results);
        READING_STATE
    } else {
        READING_INVOCATION
    };
    let _ = writeln!(page, "## How to read it\n{READING}{more}");
    for found in &results.protocols {
        protocol(&mut page, results, found);
    }
    if !results.skipped.is_empty() {
        let _ = writeln!(page, "## Left out\n");
        for line in &results.skipped {
            let _ = writeln!(page, "* {}", line.lines().next().unwrap_or_default());
        }
    }
    page
}

fn head(page: &mut String, results: &Results) {
    let (machine, plan) = (&results.machine, &results.plan);
    let driver = match plan.driver {
        Driver::Own => "outrigger-bench",
        Driver::Fortio(_) if plan.saturation == 0.0 => "Fortio",
        Driver::Fortio(_) => "Fortio (rounds), outrigger-bench (the rest)",
    };
    let size = bytes(plan.payload);
    let (subject, payload, sidecars) = if plan.is_of_state() {
        let sidecars = "one; metrics, tracing of one call in ten";
        ("State", format!("values of {size}"), sidecars)
    } else {
        let sidecars = "mTLS, metrics, tracing of one call in ten, access control on the callee";
        ("Service invocation", format!("{size} each way"), sidecars)
    };
    let versions = results.versions.iter().filter(|(_, version)| !version.is_empty());
    let versions: Vec<_> = versions
        .map(|(system, version)| format!("{} {version}", system.title()))
        .collect();
    let _ = writeln!(
        page,
        "# {subject}, {profile} profile\n
| | |
| --- | --- |
| run | {started} to {finished} |
| machine | {cpu}, {cores} cores, {memory:.0} GB, Linux {kernel}; load average before the run {load:.2} |
| load | {payload}, {connections} connections, {qps} requests/s, {rounds} rounds of {requests} requests |
| load generator | {driver} |
| versions | {versions} |
| sidecars | {sidecars} |{proxies}
",
        profile = plan.profile,
        started = results.started,
        finished = results.finished,
        cpu = machine.cpu,
        cores = machine.cores,
        memory = machine.memory_bytes as f64 / 1e9,
        kernel = machine.kernel,
        load = machine.load_before,
        connections = plan.connections,
        qps = tick(plan.qps),
        rounds = plan.rounds,
        requests = tick(plan.requests as f64),
        versions = versions.join(", "),
        proxies = proxies(results),
    );
    if plan.profile != "full" {
        let _ = writeln!(
            page,
            "This profile shows that everything works; its figures are not to be quoted.\n"
        );
    }
}

/// A table row for the measured proxies; empty without any.
fn proxies(results: &Results) -> String {
    let plan = &results.plan;
    let workers = [
        (System::Envoy, "worker threads", plan.envoy_workers),
        (System::Nginx, "worker processes", plan.nginx_workers),
    ];
    let parts: Vec<String> = workers
        .into_iter()
        .filter(|(system, ..)| results.protocols.iter().any(|found| found.of(*system).is_some()))
        .map(|(system, kind, count)| format!("{}, {kind} of a hop: {count}", system.title()))
        .collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("\n| proxies | {} |", parts.join("; "))
}

fn highlights(page: &mut String, results: &Results) {
    let _ = writeln!(page, "## Highlights\n");
    for found in &results.protocols {
        let Some(ours) = found.of(System::Outrigger) else {
            continue;
        };
        let hops = match found.protocol.state() {
            Some(_) => "the sidecar",
            None => "both sidecars together",
        };
        let figures: [(&Figure, String); 4] = [
            (&ratios::CPU, format!("µs of CPU per call in {hops}")),
            (&ratios::ADDED_P50, "ms added at the median".to_owned()),
            (&ratios::THROUGHPUT, "calls per second at saturation".to_owned()),
            (&ratios::MEMORY_LOADED, "MB resident per sidecar".to_owned()),
        ];
        let measured = figures.iter().filter_map(|(figure, words)| {
            let value = figure.of(found, System::Outrigger)?;
            Some(format!("{} {words}", short(value)))
        });
        let mut parts: Vec<_> = measured.collect();
        parts.push(format!(
            "{} of {} calls failed",
            ours.total.failed(),
            tick(ours.total.planned as f64)
        ));
        let _ = writeln!(page, "* **{}**: {}.", found.protocol.title(), parts.join(", "));
        for peer in System::PEERS {
            if let Some(line) = against(found, peer) {
                let _ = writeln!(page, "  * {line}");
            }
        }
    }
    let _ = writeln!(page);
}

fn against(found: &ProtocolResults, peer: System) -> Option<String> {
    let ratio = |figure: Figure| figure.ratio(found, peer);
    let mut line = format!(
        "against {}: {} times its CPU time per call, {} times its calls per second at saturation",
        peer.title(),
        short(ratio(ratios::CPU)?),
        short(ratio(ratios::THROUGHPUT)?),
    );
    let added = (ratio(ratios::CPU_ADDED), ratio(ratios::ADDED_P50));
    if let (Some(_), (Some(cpu), Some(latency))) = (found.protocol.state(), added) {
        let _ = write!(
            line,
            "; {} times the CPU time and {} times the median latency that it adds to the driver's own call",
            short(cpu),
            short(latency)
        );
    }
    Some(line)
}

fn protocol(page: &mut String, results: &Results, found: &ProtocolResults) {
    let _ = writeln!(page, "## {}\n", capitalised(&found.protocol.title()));
    side_by_side(page, found);
    table(
        page,
        "Targets",
        &["", "target", "measured", ""],
        target_rows(found),
    );
    latency(page, found);
    cpu(page, found);
    memory(page, found);
    saturation(page, found);
    let unit = "calls per second (CPU time per call in the hops, µs)";
    let title = format!("Payload sweep: {unit}");
    sweep(page, found, &title, |s| &s.payloads, |m| bytes(m.payload));
    let title = format!("Connection sweep: {unit}");
    sweep(
        page,
        found,
        &title,
        |s| &s.connections,
        |m| m.connections.to_string(),
    );
    for (name, _) in charts::all(results, found) {
        image(page, &name.replace('_', " "), &found.protocol.name(), name);
    }
    let _ = writeln!(page);
}

fn side_by_side(page: &mut String, found: &ProtocolResults) {
    let peers: Vec<System> = System::PEERS
        .into_iter()
        .filter(|peer| found.of(*peer).is_some())
        .collect();
    let mut columns = vec!["".to_owned(), "unit".to_owned(), "Outrigger".to_owned()];
    columns.extend(peers.iter().map(|peer| peer.title().to_owned()));
    columns.extend(peers.iter().map(|peer| format!("ratio to {}", peer.title())));
    let measured = FIGURES.iter().filter(|figure| {
        found
            .systems
            .iter()
            .any(|system| figure.of(found, system.system).is_some())
    });
    let rows = measured.map(|figure| {
        let better = ["", ", more is better"][usize::from(figure.more_is_better)];
        let mut row = vec![format!("{}{better}", figure.name), figure.unit.to_owned()];
        row.push(cell(figure.of(found, System::Outrigger)));
        row.extend(peers.iter().map(|peer| cell(figure.of(found, *peer))));
        row.extend(peers.iter().map(|peer| cell(figure.ratio(found, *peer))));
        row
    });
    table(page, "Side by side", &columns, rows);
}

fn target_rows(found: &ProtocolResults) -> impl Iterator<Item = Vec<String>> {
    targets::of(found.protocol)
        .iter()
        .filter_map(|target| target.row(found))
}

/// The targets of all calls, and the charts that compare them.
fn stores(page: &mut String, results: &Results) {
    let columns = ["call", "", "target", "measured", ""];
    let rows = results.protocols.iter().flat_map(|found| {
        target_rows(found).map(|mut row| {
            row.insert(0, found.protocol.title());
            row
        })
    });
    table(page, "Targets of all calls", &columns, rows);
    for store in Store::ALL {
        for (name, _) in overview::charts(results, store) {
            let title = format!("{} {}", store.title(), name.replace('_', " "));
            image(page, &title, &overview::folder(store), name);
        }
    }
    let _ = writeln!(page);
}

fn image(page: &mut String, title: &str, folder: &str, name: &str) {
    let _ = writeln!(page, "![{title}](charts/{folder}/{name}.png)");
}

fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}
