//! A performance gate without noise: the number of instructions and allocations per call.
//!
//! Client, two sidecars and app run in one process on one thread, one call at a time, so the counts of a
//! build are reproducible. State calls need one sidecar with an in-memory store. The sidecars are complete:
//! parsing, policy, tracing, metrics and the protocol between them, on loopback without TLS. The counts
//! include the client and the app, which do little work.

mod app;
mod budget;
mod call_path;
mod client;
mod valgrind;

use std::alloc::System;
use std::path::Path;
use std::process::ExitCode;

use outrigger_flags::{EXIT_USAGE, Flag, Parsed, Values, parse, see_help, usage};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use budget::{Budget, Cost};
use call_path::{CallPath, Kind};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const FLAGS: &[Flag] = &[
    Flag::text(
        "budget",
        "crates/testing/cost/budget.toml",
        "allowed cost of each kind of call",
    ),
    Flag::boolean("update", "false", "write what was measured as the new budget"),
    Flag::text(
        "measure",
        "",
        "one kind of call only: prints its allocations (what runs under valgrind)",
    ),
    Flag::int("calls", "2000", "calls to count"),
];
/// Calls before counting, which open connections and fill pools and caches.
const WARM_UP: usize = 100;

/// An error, or an exceeded budget.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let values = match parse(FLAGS, std::env::args().skip(1)) {
        Ok(Parsed::Run(values)) => values,
        Ok(Parsed::Help) => {
            println!("{}", usage("outrigger-cost", FLAGS));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{}", see_help("outrigger-cost"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    // As in a sidecar, whose log drops libraries' trace events: without a subscriber they would be
    // formatted.
    let silent = tracing::subscriber::NoSubscriber::new();
    // No subscriber was installed before.
    let _first = tracing::subscriber::set_global_default(silent);
    match execute(&values) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outrigger-cost: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn execute(values: &Values) -> Result<(), Failure> {
    let calls = usize::try_from(values.int("calls"))
        .ok()
        .filter(|calls| *calls > 0)
        .ok_or("--calls must be at least 1")?;
    match values.text("measure") {
        "" => check(Path::new(values.text("budget")), values.boolean("update"), calls),
        name => {
            let kind = Kind::ALL
                .into_iter()
                .find(|kind| kind.name() == name)
                .ok_or_else(|| format!("--measure does not know {name:?}"))?;
            println!("{}", allocations(kind, calls)?);
            Ok(())
        }
    }
}

/// Measures every kind of call and compares it with the budget, or writes the budget.
fn check(file: &Path, update: bool, calls: usize) -> Result<(), Failure> {
    let mut measured = Vec::new();
    for kind in Kind::ALL {
        let (instructions, allocations) = valgrind::count(kind, calls)?;
        measured.push((
            kind,
            Cost {
                instructions,
                allocations,
            },
        ));
    }
    if update {
        std::fs::write(file, Budget::of(&measured).to_string())?;
        println!("wrote {}", file.display());
        return Ok(());
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let budget = Budget::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut over = false;
    for (kind, cost) in measured {
        let allowed = budget
            .of_kind(kind)
            .ok_or_else(|| format!("{} has no [{}]", file.display(), kind.name()))?;
        over |= compare(kind, "instructions", cost.instructions, allowed.instructions);
        over |= compare(kind, "allocations", cost.allocations, allowed.allocations);
    }
    if over {
        let message = format!(
            "a call costs more than its budget; make it cheaper, or, if the cost is worth it, change {} in the same \
             commit (make cost COST=--update) and say why",
            file.display()
        );
        return Err(message.into());
    }
    Ok(())
}

/// Prints the comparison; returns whether the budget is exceeded.
fn compare(kind: Kind, what: &str, measured: f64, allowed: f64) -> bool {
    let change = (measured / allowed - 1.0) * 100.0;
    let over = measured > allowed * budget::TOLERANCE;
    let word = if over {
        "over budget"
    } else if measured * budget::TOLERANCE < allowed {
        "below: the budget can shrink"
    } else {
        "within"
    };
    println!(
        "{:15} {what:13} {measured:>10.1} per call, budget {allowed:>10.1} ({change:+.1} %)  {word}",
        kind.name()
    );
    over
}

/// Allocations per call.
fn allocations(kind: Kind, calls: usize) -> Result<f64, Failure> {
    let mut path = CallPath::start(kind)?;
    path.warm_up(WARM_UP)?;
    let region = Region::new(ALLOCATOR);
    measured(&mut path, calls)?;
    let change = region.change();
    Ok((change.allocations + change.reallocations) as f64 / calls as f64)
}

/// Callgrind counts this function by its name. All tasks of the runtime run inside it.
#[inline(never)]
fn measured(path: &mut CallPath, calls: usize) -> Result<(), Failure> {
    path.call(calls)
}
