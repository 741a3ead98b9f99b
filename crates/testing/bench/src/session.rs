//! A run: for each protocol, all systems are started and visited in turn at every step, so that other load
//! on the machine affects them alike.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use crate::Failure;
use crate::load::Record;
use crate::plan::{Driver, Plan, Protocol, System};
use crate::procfs::Machine;
use crate::report;
use crate::results::{ProtocolResults, Results, SCHEMA, SystemResults};
use crate::systems::{Backend, Stack, envoy_version, nginx_version, sidecar_version};

mod steps;

/// A running system and its results so far.
struct Subject {
    stack: Stack,
    results: SystemResults,
    record: Record,
}

/// Executes the plan and writes the report.
///
/// # Errors
///
/// If Outrigger's processes or the app cannot be started, or the report cannot be written. Missing or
/// failing peers are skipped with a message.
pub(crate) async fn run(plan: &Plan) -> Result<(), Failure> {
    raise_descriptor_limit();
    let mut results = Results {
        schema: SCHEMA,
        started: now(),
        finished: now(),
        machine: Machine::of_this(),
        plan: plan.clone(),
        versions: BTreeMap::new(),
        protocols: Vec::new(),
        skipped: Vec::new(),
    };
    let systems = available(plan, &mut results);
    for line in &results.skipped {
        println!("skipped: {line}");
    }
    std::fs::create_dir_all(&plan.output)?;
    let dir = tempfile::Builder::new().prefix("outrigger-bench-").tempdir()?;
    let measured = measure(plan, &systems, dir.path(), &mut results).await;
    if let Err(failure) = measured {
        // The message refers to a log in it.
        return Err(format!(
            "{failure}\nthe logs of all processes are in {}",
            keep(dir).display()
        )
        .into());
    }
    println!("the report is {}", plan.output.join("summary.md").display());
    Ok(())
}

async fn measure(plan: &Plan, systems: &[System], dir: &Path, results: &mut Results) -> Result<(), Failure> {
    for &protocol in &plan.protocols {
        println!("== {}", protocol.title());
        if matches!(plan.driver, Driver::Fortio(_)) && protocol == Protocol::Grpc {
            let reason = "Fortio cannot call InvokeService (--driver own can)";
            skip(&mut results.skipped, format!("{}: {reason}", protocol.title()));
            continue;
        }
        if let Some(reason) = Backend::missing(protocol) {
            // Once, not per call of the store.
            if !results.skipped.contains(&reason) {
                skip(&mut results.skipped, reason);
            }
            continue;
        }
        let backend = Backend::start(protocol, dir).await?;
        let found = visit(plan, protocol, systems, &backend, dir, &mut results.skipped).await?;
        backend.stop().await?;
        results.protocols.push(found);
        results.finished = now();
        // After each protocol, so that an interrupted run keeps its results.
        report::add(results, &plan.output)?;
    }
    Ok(())
}

async fn visit(
    plan: &Plan,
    protocol: Protocol,
    systems: &[System],
    backend: &Backend,
    dir: &Path,
    skipped: &mut Vec<String>,
) -> Result<ProtocolResults, Failure> {
    let mut subjects = Vec::new();
    for &system in systems.iter().filter(|system| protocol.is_made_by(**system)) {
        match Stack::start(system, protocol, backend, plan, dir).await {
            Ok(stack) => subjects.push(Subject {
                results: SystemResults::new(system),
                record: Record::new(),
                stack,
            }),
            // Without Outrigger there is nothing to report; a peer that does not start is skipped.
            Err(failure) if system == System::Outrigger => return Err(failure),
            Err(failure) => skip(
                skipped,
                format!("{} for {}: {failure}", system.title(), protocol.title()),
            ),
        }
    }
    sleep(Duration::from_secs(1)).await;
    for subject in &mut subjects {
        subject.results.memory.idle = subject.stack.watched().resident();
    }
    let mut session = steps::Session {
        plan,
        subjects,
        skipped,
    };
    session.starts().await;
    session.idle_connections().await;
    session.rounds().await;
    session.saturation().await;
    session.sweeps().await;
    session.settle().await;
    let subjects = session.subjects;
    let mut found = Vec::new();
    for subject in subjects {
        let system = subject.results.system;
        if let Err(failure) = subject.stack.stop().await {
            skip(
                skipped,
                format!("{} did not survive the load: {failure}", system.title()),
            );
        }
        found.push(subject.results);
    }
    Ok(ProtocolResults {
        protocol,
        systems: found,
    })
}

/// The systems of the plan that are available on this machine.
fn available(plan: &Plan, results: &mut Results) -> Vec<System> {
    let mut systems = Vec::new();
    for &system in &plan.systems {
        let version = match system {
            System::Direct => Ok(String::new()),
            System::Outrigger => Ok(sidecar_version(&plan.bin_dir).unwrap_or_default()),
            System::Reference => match &plan.reference {
                Some(folder) => sidecar_version(folder)
                    .ok_or_else(|| format!("Dapr: no daprd that runs in {}", folder.display())),
                None => Err("Dapr: no folder with its binaries was given (--reference DIR)".to_owned()),
            },
            System::Envoy => envoy_version(&plan.envoy).ok_or_else(|| {
                format!(
                    "Envoy: {} does not run (conformance/build envoy fetches it; --envoy FILE names it)",
                    plan.envoy.display()
                )
            }),
            System::Nginx => nginx_version().ok_or_else(|| {
                "nginx: it is not installed (apt-get update && apt-get install nginx-light)".to_owned()
            }),
        };
        match version {
            Ok(version) => {
                results.versions.insert(system, version);
                systems.push(system);
            }
            Err(reason) => results.skipped.push(reason),
        }
    }
    systems
}

fn skip(skipped: &mut Vec<String>, line: String) {
    println!("skipped: {line}");
    skipped.push(line);
}

fn keep(dir: TempDir) -> std::path::PathBuf {
    dir.keep()
}

/// Raises the descriptor limit, which sweeps would exceed.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // On failure, the step that needs it reports an error.
    let _raised = setrlimit(Resource::Nofile, limit);
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}
