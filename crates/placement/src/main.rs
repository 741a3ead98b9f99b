//! The `placement` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{chain, stop_on_signal};
use outrigger_flags::{EXIT_USAGE, Parsed, parse, see_help, usage};
use outrigger_placement::{
    Config, Placement, PlacementError,
    config::{FLAGS, LogSettings},
};
use outrigger_telemetry::log::{self, LogConfig};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const LOG: &str = "dapr.placement";
/// A round is made on one thread; the other keeps connections and elections alive meanwhile.
const WORKERS: usize = 2;

fn main() -> ExitCode {
    let flags = match parse(FLAGS, std::env::args().skip(1)) {
        Ok(Parsed::Run(flags)) => flags,
        Ok(Parsed::Help) => {
            print!("{}", usage("placement", FLAGS));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{}", see_help("placement"));
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let config = match Config::from_flags(&flags, environment) {
        Ok(config) => config,
        Err(error) => {
            for problem in error.0 {
                log::fatal(LOG, &format!("Invalid options: {problem}"));
            }
            return ExitCode::FAILURE;
        }
    };
    let _log = match log::init(log_config(&config.log)) {
        Ok(guard) => guard,
        Err(error) => {
            log::fatal(LOG, &error.to_string());
            return ExitCode::FAILURE;
        }
    };
    outrigger_accept::raise_descriptors();
    match run(config) {
        Ok(()) => {
            tracing::info!(target: LOG, "Placement service shut down gracefully");
            ExitCode::SUCCESS
        }
        Err(error) => {
            log::fatal(LOG, &chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> Result<(), PlacementError> {
    tracing::info!(target: LOG, "Starting Placement service -- version {VERSION}");
    tracing::info!(target: LOG, "Log level set to: {}", config.log.level.as_str());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let drain = CancellationToken::new();
        let stopped = stop_on_signal(&drain, |signal| {
            tracing::info!(target: LOG, "Received {signal}, shutting down");
        })?;
        let served = async {
            let build = Placement::build(config, environment, drain.clone());
            match drain.run_until_cancelled(build).await {
                None => Ok(()),
                Some(placement) => placement?.run().await,
            }
        };
        let outcome = served.await;
        stopped.abort();
        outcome
    })
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn log_config(settings: &LogSettings) -> LogConfig {
    LogConfig {
        level: settings.level,
        json: settings.json,
        file: settings.file.clone(),
        version: VERSION.to_owned(),
        instance: hostname::get()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        ..LogConfig::default()
    }
}
