//! The lifetime of a process, from its command line to its exit code.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use outrigger_accept::budget;
use outrigger_flags::{
    EXIT_USAGE, Flag, FlagError, FlagErrors, Parsed, Values, parse_every, see_help, usage,
};
use outrigger_resources::value::quantity;
use outrigger_telemetry::log::{self, LogConfig};
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, LogSettings};
use crate::tasks::{chain, stop_on_signal};

/// Version of the build, from the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Number of worker threads: one answers health checks and keeps streams alive while the other is busy.
const WORKERS: usize = 2;

/// Defines the allocator and the `main` of a control plane binary: [`Binary::run`] with `Service::build` and
/// `Service::run`. `arguments` may change the process's arguments before flags are parsed; its error ends the
/// process. `perform` runs a one-off task instead of serving, and returns whether there was one.
#[macro_export]
macro_rules! main {
    (
        name: $name:literal,
        title: $title:literal,
        scope: $scope:literal,
        flags: $flags:expr,
        config: $config:ty,
        service: $service:ty,
        $(arguments: $arguments:expr,)?
        $(perform: $perform:expr,)?
    ) => {
        #[cfg(feature = "jemalloc")]
        #[global_allocator]
        static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

        fn main() -> std::process::ExitCode {
            let arguments = std::env::args();
            $(
                let arguments = match $arguments(arguments.collect()) {
                    Ok(arguments) => Vec::into_iter(arguments),
                    Err(error) => {
                        eprintln!("{error}");
                        return std::process::ExitCode::FAILURE;
                    }
                };
            )?
            let binary = $crate::Binary {
                name: $name,
                title: $title,
                flags: $flags,
                scope: $scope,
                info: |text| tracing::info!(target: $scope, "{text}"),
            };
            binary.run(
                arguments.skip(1),
                |flags| <$config>::from_flags(flags, $crate::environment),
                |config| &config.log,
                async |config, stop| {
                    $(
                        if $perform(&config).await? {
                            return Ok(());
                        }
                    )?
                    let build = Box::pin(<$service>::build(config, $crate::environment, stop.clone()));
                    $crate::serve_unless_stopped(&stop, build, <$service>::run).await
                },
            )
        }
    };
}

/// The properties of a control plane binary.
pub struct Binary {
    /// Name of the executable.
    pub name: &'static str,
    /// Name of the service in the log.
    pub title: &'static str,
    /// All of its flags.
    pub flags: &'static [Flag],
    /// Scope of its log lines.
    pub scope: &'static str,
    /// Logs a line of that scope at level info.
    pub info: fn(&str),
}

impl Binary {
    /// Parses the command line with `configure`, serves until the first SIGINT or SIGTERM, and logs how the
    /// process ends. Command line errors are reported together. `arguments` exclude the program's name.
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
        let (flags, wrong) = match parse_every(self.flags, arguments) {
            (Parsed::Run(flags), wrong) => (flags, FlagErrors(wrong)),
            (Parsed::Help, _) => {
                print!("{}", usage(self.name, self.flags));
                return ExitCode::SUCCESS;
            }
        };
        if !wrong.0.is_empty() {
            eprintln!("{wrong}");
            for problem in besides(&wrong, configure(&flags).err()) {
                eprintln!("{problem}");
            }
            eprintln!("{}", see_help(self.name));
            return ExitCode::from(EXIT_USAGE);
        }
        for notice in flags.notices() {
            eprintln!("{notice}");
        }
        let (config, mut problems) = match configure(&flags) {
            Ok(config) => (Some(config), Vec::new()),
            Err(ConfigError(problems)) => (None, problems),
        };
        match budget::read(environment, quantity) {
            Ok(bytes) => bytes.into_iter().for_each(budget::set_memory_budget),
            Err(what) => problems.push(format!("{} {what}", budget::VARIABLE)),
        }
        for problem in &problems {
            log::fatal(self.scope, &format!("Invalid options: {problem}"));
        }
        let Some(config) = config.filter(|_| problems.is_empty()) else {
            return ExitCode::FAILURE;
        };
        let settings = log(&config);
        let level = settings.level;
        let _log = match log::init(log_config(settings)) {
            Ok(guard) => guard,
            Err(error) => {
                log::fatal(self.scope, &error.to_string());
                return ExitCode::FAILURE;
            }
        };
        outrigger_accept::raise_descriptors();
        (self.info)(&format!("Starting {} -- version {}", self.title, VERSION));
        (self.info)(&format!("Log level set to: {}", level.as_str()));
        match outrigger_identity::fips() {
            Ok(true) => (self.info)("FIPS mode: TLS uses only the FIPS module of aws-lc"),
            Ok(false) => {}
            Err(error) => {
                log::fatal(self.scope, &error.to_string());
                return ExitCode::FAILURE;
            }
        }
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
            .worker_threads(WORKERS)
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
}

fn log_config(settings: &LogSettings) -> LogConfig {
    LogConfig {
        level: settings.level,
        json: settings.json,
        file: settings.file.clone(),
        version: VERSION.to_owned(),
        instance: host_name(),
        ..LogConfig::default()
    }
}

/// Problems with the values of flags that are not in `wrong`. A flag in `wrong` has its default value; if
/// that is not valid, it is not a second problem.
fn besides(wrong: &FlagErrors, refused: Option<ConfigError>) -> Vec<String> {
    let meant: Vec<String> = wrong.0.iter().map(FlagError::meant).collect();
    let problems = refused.map_or_else(Vec::new, |ConfigError(problems)| problems);
    problems
        .into_iter()
        .filter(|problem| {
            let words = problem.split([' ', ':', '=', ',']);
            !words
                .into_iter()
                .any(|word| meant.iter().any(|flag| flag == word))
        })
        .collect()
}

/// The host name of the machine; empty if it has none.
pub fn host_name() -> String {
    hostname::get()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// An environment variable, if it is set and valid Unicode.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LOG_LEVEL, Reader};

    const FLAGS: &[Flag] = &[
        Flag::text("mode", "standalone", "Where it runs"),
        Flag::int("port", "50001", "Where it listens"),
        LOG_LEVEL,
    ];

    #[test]
    fn reports_flag_and_value_errors_together() {
        let arguments = ["--prot=1", "--port=one", "--mode=kubernets", "--log-level=inof"];
        let (parsed, wrong) = parse_every(FLAGS, arguments.map(str::to_owned));
        let Parsed::Run(flags) = parsed else {
            panic!("help was not asked for")
        };
        let mut reader = Reader::new(&flags);
        reader.mode();
        reader.log();
        reader.problem("--port 0 is not for this");
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert_eq!(
            besides(&FlagErrors(wrong), Some(ConfigError(reader.problems))),
            [
                "--mode \"kubernets\" is unknown, did you mean kubernetes? want standalone or kubernetes",
                "--log-level \"inof\" is unknown, did you mean info? want debug, info, warn, error or fatal",
            ]
        );
    }
}
