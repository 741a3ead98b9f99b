//! `outrigger-bench`: the cost of a call through two sidecars, compared with the direct call, Dapr's
//! sidecars, and chains of Envoy and nginx, measured in the same run and written as a reproducible report.

mod app;
mod fortio;
mod frame;
mod load;
mod options;
mod plan;
mod process;
mod procfs;
mod report;
mod results;
mod session;
mod soak;
mod systems;

use std::process::ExitCode;

use options::Command;

/// An error message for the user.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let command = match options::parse(std::env::args().skip(1)) {
        Ok(command) => command,
        Err(refusal) => {
            eprintln!("{}", refusal.text);
            return ExitCode::from(refusal.status);
        }
    };
    // One thread: load generator and app must use little CPU compared to the measured processes.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(execute(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("outrigger-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::App(ports) => app::serve(&ports).await,
        Command::Report { results, output } => report::from_file(&results, &output),
        Command::Run(plan) => {
            tokio::select! {
                ended = session::run(&plan) => ended,
                // Children are killed on drop.
                _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            }
        }
        Command::Soak(options) => {
            tokio::select! {
                ended = soak::run(&options) => ended,
                _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
            }
        }
    }
}
