//! A report of synthetic results: every file exists, whatever was measured.

use std::collections::BTreeMap;
use std::path::Path;

use crate::load::Latencies;
use crate::plan::{Api, Plan, Protocol, StateCall, Store, System, Verb};
use crate::procfs::{Cpu, Machine, Role};
use crate::results::{Measurement, ProtocolResults, Results, SCHEMA, SystemResults};

fn cpu(user: f64) -> Cpu {
    Cpu { user, system: 0.02 }
}

fn measured(scale: f64) -> Measurement {
    Measurement {
        driver: "own".to_owned(),
        requested_qps: Some(1_000.0),
        connections: 16,
        payload: 1024,
        planned: 1_000,
        requests: 1_000,
        sent: 1_200_000,
        received: 1_100_000,
        payload_sent: 1_024_000,
        payload_received: 1_024_000,
        seconds: 1.0,
        latency: Latencies {
            mean: 500.0 * scale,
            p50: 400.0 * scale,
            p99: 2_000.0 * scale,
            max: 9_000.0 * scale,
            ..Latencies::default()
        },
        cpu: BTreeMap::from([
            (Role::Caller, cpu(0.05 * scale)),
            (Role::Callee, cpu(0.04 * scale)),
        ]),
        resident: BTreeMap::from([(Role::Caller, 8_000_000)]),
        ..Measurement::default()
    }
}

fn system(system: System, scale: f64) -> SystemResults {
    let mut results = SystemResults::new(system);
    results.total = measured(scale);
    results.rounds = vec![measured(scale)];
    results.histogram = vec![(400.0 * scale, 900), (2_000.0 * scale, 100)];
    results.saturation = Some(measured(scale));
    results.curve = vec![measured(scale / 2.0)];
    results.memory.loaded = measured(scale).resident;
    results
}

const ALL: &[(System, f64)] = &[
    (System::Direct, 0.2),
    (System::Outrigger, 1.0),
    (System::Reference, 5.0),
    (System::Envoy, 4.0),
    (System::Nginx, 0.5),
];
/// Outrigger adds a fifth of the reference's overhead over the direct call.
const SIDECARS: &[(System, f64)] = &[
    (System::Direct, 1.0),
    (System::Outrigger, 2.0),
    (System::Reference, 6.0),
];

fn results(systems: &[(System, f64)]) -> Results {
    results_of(Plan::quick(), Protocol::Http, systems)
}

fn results_of(plan: Plan, protocol: Protocol, systems: &[(System, f64)]) -> Results {
    let systems = systems
        .iter()
        .map(|(which, scale)| system(*which, *scale))
        .collect();
    Results {
        schema: SCHEMA,
        started: String::new(),
        finished: String::new(),
        machine: Machine::default(),
        plan,
        versions: BTreeMap::new(),
        protocols: vec![ProtocolResults { protocol, systems }],
        skipped: vec!["nginx: it is not installed".to_owned()],
    }
}

#[test]
fn rewrites_report_from_results() {
    let folder = tempfile::tempdir().unwrap();
    let results = results(ALL);
    super::write(&results, &results.protocols, folder.path()).unwrap();
    let first = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
    let again = tempfile::tempdir().unwrap();
    super::from_file(&folder.path().join("results.json"), again.path()).unwrap();
    assert_eq!(
        std::fs::read_to_string(again.path().join("summary.md")).unwrap(),
        first
    );
    let shown = charts_shown(&first, again.path());
    assert!(shown >= 15, "{shown} charts");
    assert!(first.contains("nginx: it is not installed"));
}

#[test]
fn peers_have_column_and_ratio() {
    let page = super::summary::markdown(&results(ALL));
    for line in [
        "|  | unit | Outrigger | Dapr | Envoy | nginx | ratio to Dapr | ratio to Envoy | ratio to nginx |",
        "| proxies | Envoy, worker threads of a hop: 1; nginx, worker processes of a hop: 1 |",
        "  * against Envoy: 0.33 times its CPU time per call, 1 times its calls per second at saturation",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    let page = super::summary::markdown(&results(&[(System::Outrigger, 1.0)]));
    assert!(!page.contains("| proxies |"), "{page}");
}

/// Checks that every chart of a page exists in both formats; returns their number.
fn charts_shown(page: &str, folder: &Path) -> usize {
    let charts = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let mut shown = 0;
    for chart in charts {
        assert!(folder.join(chart).is_file(), "{chart}");
        assert!(folder.join(chart.replace(".png", ".svg")).is_file(), "{chart}");
        shown += 1;
    }
    shown
}

#[test]
fn server_state_targets_use_overhead() {
    let folder = tempfile::tempdir().unwrap();
    let call = StateCall {
        store: Store::Redis,
        verb: Verb::Save,
        api: Api::Grpc,
    };
    let results = results_of(Plan::state(), Protocol::State(call), SIDECARS);
    super::add(&results, folder.path()).unwrap();
    let page = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
    let shown = charts_shown(&page, folder.path());
    assert!(shown >= 12, "{shown} charts");
    assert!(page.starts_with("# State, full profile"));
    for figure in [
        "CPU time per call added to the direct call, all processes",
        "added latency, p50",
    ] {
        let row = format!(
            "| state in Redis, save over gRPC | {figure} | at most 0.40 times that of Dapr | 0.20 | met |"
        );
        assert!(page.contains(&row), "{row}\n{page}");
    }
}

#[test]
fn rows_match_table_width() {
    let page = super::summary::markdown(&results(&ALL[..2]));
    for table in page.split("\n\n").filter(|part| part.starts_with('|')) {
        let mut widths = table.lines().map(|line| line.matches('|').count());
        let first = widths.next();
        assert!(widths.all(|width| Some(width) == first), "{table}");
    }
}

#[test]
fn ratios_compare_overhead() {
    let results = results(SIDECARS);
    let figure = super::ratios::ADDED_P50;
    let ratio = figure.ratio(&results.protocols[0], System::Reference).unwrap();
    assert!((ratio - 0.2).abs() < 1e-9, "{ratio}");
    assert_eq!(figure.of(&results.protocols[0], System::Direct), None);
}

#[test]
fn reports_single_system() {
    let folder = tempfile::tempdir().unwrap();
    let mut results = results(&[]);
    results.protocols[0].systems = vec![SystemResults::new(System::Direct)];
    super::write(&results, &results.protocols, folder.path()).unwrap();
    assert!(folder.path().join("summary.md").is_file());
}
