//! A report of made-up results: every file is there, whatever was measured.

use std::collections::BTreeMap;

use crate::load::Latencies;
use crate::plan::{Plan, Protocol, System};
use crate::procfs::{Cpu, Machine, Role};
use crate::results::{Measurement, ProtocolResults, Results, SCHEMA, SystemResults};

fn measured(scale: f64) -> Measurement {
    Measurement {
        driver: "own".to_owned(),
        requested_qps: Some(1_000.0),
        connections: 16,
        payload: 1024,
        planned: 1_000,
        requests: 1_000,
        seconds: 1.0,
        latency: Latencies {
            mean: 500.0 * scale,
            p50: 400.0 * scale,
            p99: 2_000.0 * scale,
            max: 9_000.0 * scale,
            ..Latencies::default()
        },
        cpu: BTreeMap::from([
            (
                Role::Caller,
                Cpu {
                    user: 0.05 * scale,
                    system: 0.02,
                },
            ),
            (
                Role::Callee,
                Cpu {
                    user: 0.04 * scale,
                    system: 0.02,
                },
            ),
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
    results.memory.loaded = measured(scale).resident;
    results
}

fn results(systems: Vec<SystemResults>) -> Results {
    Results {
        schema: SCHEMA,
        started: String::new(),
        finished: String::new(),
        machine: Machine::default(),
        plan: Plan::quick(),
        versions: BTreeMap::new(),
        protocols: vec![ProtocolResults {
            protocol: Protocol::Http,
            systems,
        }],
        skipped: vec!["nginx: it is not installed".to_owned()],
    }
}

#[test]
fn a_report_can_be_written_again_from_its_results() {
    let folder = tempfile::tempdir().unwrap();
    let all = vec![
        system(System::Direct, 0.2),
        system(System::Outrigger, 1.0),
        system(System::Reference, 5.0),
    ];
    super::write(&results(all), folder.path()).unwrap();
    let first = std::fs::read_to_string(folder.path().join("summary.md")).unwrap();
    let again = tempfile::tempdir().unwrap();
    super::from_file(&folder.path().join("results.json"), again.path()).unwrap();
    assert_eq!(
        std::fs::read_to_string(again.path().join("summary.md")).unwrap(),
        first
    );
    // Every chart that the page shows is there, in both forms.
    let mut shown = 0;
    for chart in first
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
    {
        assert!(again.path().join(chart).is_file(), "{chart}");
        assert!(
            again.path().join(chart.replace(".png", ".svg")).is_file(),
            "{chart}"
        );
        shown += 1;
    }
    assert!(shown >= 15, "{shown} charts");
    assert!(first.contains("nginx: it is not installed"));
}

#[test]
fn ratios_divide_what_is_added_not_what_is_measured() {
    let all = vec![
        system(System::Direct, 1.0),
        system(System::Outrigger, 2.0),
        system(System::Reference, 6.0),
    ];
    let results = results(all);
    let figure = super::ratios::FIGURES
        .iter()
        .find(|figure| figure.name == "added latency, p50")
        .unwrap();
    let ratio = figure.ratio(&results.protocols[0], System::Reference).unwrap();
    assert!((ratio - 0.2).abs() < 1e-9, "{ratio}");
    assert_eq!(figure.of(&results.protocols[0], System::Direct), None);
}

#[test]
fn a_run_of_one_system_is_a_report_too() {
    let folder = tempfile::tempdir().unwrap();
    super::write(&results(vec![SystemResults::new(System::Direct)]), folder.path()).unwrap();
    assert!(folder.path().join("summary.md").is_file());
}
