//! `daprd`: parses flags, then builds, runs and drains a sidecar.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_runtime::life::Shutdown;
use outrigger_sidecar::config::{Command, Config, Exit, VERSION};
use outrigger_sidecar::sidecar::{self, Env, Sidecar, SidecarError};
use outrigger_telemetry::log;
use tokio::runtime::{Builder, Handle, Runtime};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.runtime";
/// Maximum number of data plane threads; a sidecar serves one app.
const MAX_WORKERS: usize = 2;

fn main() -> ExitCode {
    let env: Env = Arc::new(|name| std::env::var(name).ok());
    let command = Config::from_args(
        std::env::args().skip(1),
        |name| env(name),
        |note| eprintln!("{note}"),
    );
    match command {
        Ok(Command::Run(config)) => run(*config, env),
        Ok(Command::Help(text) | Command::Version(text) | Command::BuildInfo(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Wait { http_port }) => wait(http_port),
        Err(exit) => checked(exit.config(), &env, || {
            if matches!(exit, Exit::Settings { .. }) {
                return fatal(&exit.to_string());
            }
            log::flush();
            eprintln!("{exit}");
            ExitCode::from(exit.code())
        }),
    }
}

/// Ends a start that has already failed: logs further errors found with `config`, then runs `end`.
fn checked(config: Option<&Config>, env: &Env, end: impl FnOnce() -> ExitCode) -> ExitCode {
    let _guard = match log::init(log::LogConfig::default()) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(config) = config {
        if let Some(Err(error)) = config.log.file.as_deref().map(log::check_file) {
            tracing::error!(target: LOG, "{error}");
        }
        sidecar::check(config, env);
    }
    end()
}

fn fatal(text: &str) -> ExitCode {
    log::fatal(LOG, text);
    ExitCode::FAILURE
}

fn run(mut config: Config, env: Env) -> ExitCode {
    let guard = log::init(log::LogConfig {
        level: config.log.level,
        json: config.log.json,
        file: config.log.file.clone(),
        app_id: config.app_id.clone(),
        version: VERSION.to_owned(),
        instance: hostname::get()
            .map(|h| h.to_string_lossy().into_owned())
            .unwrap_or_default(),
    });
    let _guard = match guard {
        Ok(guard) => guard,
        Err(error) => {
            config.log.file = None;
            return checked(Some(&config), &env, || fatal(&error.to_string()));
        }
    };
    outrigger_accept::raise_descriptors();
    if let Some(bytes) = config.api.memory_budget {
        outrigger_accept::budget::set_memory_budget(bytes);
    }
    // For libraries that use the process-wide provider; our own TLS configurations name theirs.
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    tracing::info!(
        target: LOG,
        "Starting Dapr Runtime -- version {VERSION} -- commit {}",
        option_env!("OUTRIGGER_COMMIT").unwrap_or("unknown")
    );
    tracing::info!(target: LOG, "Log level set to: {}", config.log.level.as_str());
    match outrigger_identity::fips() {
        Ok(true) => tracing::info!(target: LOG, "FIPS mode: TLS uses only the FIPS module of aws-lc"),
        Ok(false) => {}
        Err(error) => return fatal(&error.to_string()),
    }
    let result = serve(&config, &env);
    match result {
        Ok(()) => {
            tracing::info!(target: LOG, "Daprd shutdown gracefully");
            ExitCode::SUCCESS
        }
        Err(error) => fatal(&format!("Fatal error from runtime: {error}")),
    }
}

/// Runs sidecars, one after another, until the process is to end.
fn serve(config: &Config, env: &Env) -> Result<(), SidecarError> {
    let threads = |source| SidecarError::System {
        what: "cannot start threads",
        source,
    };
    let control = control_plane().map_err(threads)?;
    let mut shutdown = Shutdown::default();
    let signals = {
        let _control = control.enter();
        shutdown.on_signals()
    };
    let _until_the_end = signals.map_err(|source| SidecarError::System {
        what: "cannot handle signals",
        source,
    })?;
    let result = loop {
        // A new one for each sidecar: tasks that outlive the drain have had their time.
        let data = data_plane().map_err(threads)?;
        let (config, env) = (config.clone(), Arc::clone(env));
        let sidecar = run_sidecar(config, env, control.handle().clone(), shutdown.clone());
        let result = data.block_on(sidecar);
        data.shutdown_background();
        match (result, shutdown.again()) {
            (Ok(()), Some(again)) => shutdown = again,
            (Err(SidecarError::GraceExceeded), Some(again)) => {
                tracing::warn!(target: LOG, "{}; starting again", SidecarError::GraceExceeded);
                shutdown = again;
            }
            (result, _) => break result,
        }
    };
    control.shutdown_background();
    result
}

/// Runs a sidecar until it ends or must start again.
async fn run_sidecar(
    config: Config,
    env: Env,
    control: Handle,
    shutdown: Shutdown,
) -> Result<(), SidecarError> {
    let sidecar = tokio::select! {
        sidecar = Sidecar::build(config, env, control, shutdown.clone()) => sidecar?,
        () = shutdown.requested() => return Ok(()),
    };
    sidecar.run().await
}

/// The data plane shares the machine with its app, so it gets half of the cores, at most two. One worker runs
/// on the main thread, which saves wake-ups between threads per call.
fn data_plane() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (cores / 2).clamp(1, MAX_WORKERS);
    let mut builder = if workers == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder
        .worker_threads(workers)
        .thread_name("data")
        .max_blocking_threads(16)
        .enable_all()
        .build()
}

fn control_plane() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .max_blocking_threads(16)
        .enable_all()
        .build()
}

/// `--wait`: waits until the sidecar is ready for outbound calls. As in the contract, the exit status is
/// always 0.
fn wait(http_port: u16) -> ExitCode {
    const LIMIT: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_millis(100);
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if outrigger_sidecar::wait::is_outbound_ready(http_port) {
            println!("Dapr is outbound ready!");
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(PAUSE);
    }
    println!("timeout waiting for Dapr to become outbound ready on port {http_port}");
    ExitCode::SUCCESS
}
