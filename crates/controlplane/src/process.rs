//! A process from its command line to its exit code.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use outrigger_flags::{EXIT_USAGE, Flag, Parsed, Values, parse, see_help, usage};
use outrigger_telemetry::log::{self, LogConfig};
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, LogSettings};
use crate::tasks::{chain, stop_on_signal};

/// What tells one binary of the control plane from another.
pub struct Binary {
    /// Name of the executable.
    pub name: &'static str,
    /// What it calls itself in its log.
    pub title: &'static str,
    /// Version of the build.
    pub version: &'static str,
    /// All of its flags.
    pub flags: &'static [Flag],
    /// Threads that serve.
    pub workers: usize,
    /// The scope of its log lines.
    pub scope: &'static str,
    /// Logs a line of that scope at level info.
    pub info: fn(&str),
}

impl Binary {
    /// Reads the command line with `configure`, serves until the first SIGINT or SIGTERM, and says how the process
    /// ends. Mistakes on the command line are told all at once. `arguments` do not have the program's name.
    pub fn run<C, E>(
        &self,
        arguments: impl IntoIterator<Item = String>,
        configure: impl FnOnce(&Values) -> Result<C, ConfigError>,
        log: impl FnOnce(&C) -> &LogSettings,
        serve: impl AsyncFnOnce(C, CancellationToken) -> Result<(), E>,
    ) -> ExitCode
    where
        E: Error + From<io::Error> + 'static,
    {
        let flags = match parse(self.flags, arguments) {
            Ok(Parsed::Run(flags)) => flags,
            Ok(Parsed::Help) => {
                print!("{}", usage(self.name, self.flags));
                return ExitCode::SUCCESS;
            }
            Err(error) => {
                eprintln!("{error}\n{}", see_help(self.name));
                return ExitCode::from(EXIT_USAGE);
            }
        };
        for notice in flags.notices() {
            eprintln!("{notice}");
        }
        let config = match configure(&flags) {
            Ok(config) => config,
            Err(ConfigError(problems)) => {
                for problem in problems {
                    log::fatal(self.scope, &format!("Invalid options: {problem}"));
                }
                return ExitCode::FAILURE;
            }
        };
        let settings = log(&config);
        let level = settings.level;
        let _log = match log::init(self.log_config(settings)) {
            Ok(guard) => guard,
            Err(error) => {
                log::fatal(self.scope, &error.to_string());
                return ExitCode::FAILURE;
            }
        };
        outrigger_accept::raise_descriptors();
        (self.info)(&format!("Starting {} -- version {}", self.title, self.version));
        (self.info)(&format!("Log level set to: {}", level.as_str()));
        match self.serve(config, serve) {
            Ok(()) => {
                (self.info)(&format!("{} shut down gracefully", self.title));
                ExitCode::SUCCESS
            }
            Err(error) => {
                log::fatal(self.scope, &chain(&error));
                ExitCode::FAILURE
            }
        }
    }

    fn serve<C, E>(
        &self,
        config: C,
        serve: impl AsyncFnOnce(C, CancellationToken) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<io::Error>,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.workers)
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let signals = stop_on_signal(&stop, self.info)?;
            let outcome = serve(config, stop).await;
            signals.abort();
            outcome
        })
    }

    fn log_config(&self, settings: &LogSettings) -> LogConfig {
        LogConfig {
            level: settings.level,
            json: settings.json,
            file: settings.file.clone(),
            version: self.version.to_owned(),
            instance: host_name(),
            ..LogConfig::default()
        }
    }
}

/// The name of the machine; empty where it has none.
pub fn host_name() -> String {
    hostname::get()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A variable of the environment, where it is set and is Unicode.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
