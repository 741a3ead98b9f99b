//! The `scheduler` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{Binary, environment, unless_stopped};
use outrigger_scheduler::config::FLAGS;
use outrigger_scheduler::{Config, Scheduler, SchedulerError, become_etcd};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.scheduler";

const BINARY: Binary = Binary {
    name: "scheduler",
    title: "Scheduler service",
    version: env!("CARGO_PKG_VERSION"),
    flags: FLAGS,
    // The engine of triggers is one task; a second thread serves meanwhile.
    workers: 2,
    scope: LOG,
    info: |text| tracing::info!(target: LOG, "{text}"),
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(error) = become_etcd(&arguments) {
        eprintln!("cannot run etcd: {error}");
        return ExitCode::FAILURE;
    }
    BINARY.run(
        with_target(arguments).into_iter().skip(1),
        |flags| Config::from_flags(flags, environment),
        |config| &config.log,
        async |config, stop| -> Result<(), SchedulerError> {
            if Scheduler::perform(&config).await? {
                return Ok(());
            }
            let build = Scheduler::build(config, environment, stop.clone());
            match unless_stopped(&stop, Box::pin(build)).await? {
                None => Ok(()),
                Some(scheduler) => scheduler.run().await,
            }
        },
    )
}

/// `--migrate FROM TO` has two values, and flags have one.
fn with_target(mut arguments: Vec<String>) -> Vec<String> {
    let at = arguments
        .iter()
        .position(|argument| matches!(argument.as_str(), "--migrate" | "-migrate"));
    if let Some(target) = at.and_then(|at| arguments.get_mut(at + 2))
        && !target.starts_with('-')
    {
        target.insert_str(0, "--migrate-to=");
    }
    arguments
}
