//! What the process was asked to do.

use super::given::Given;
use super::invalid::{Exit, Invalid};
use super::settle::{Settings, port};
use super::{Config, VERSION, usage};

/// What the process was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run a sidecar.
    Run(Box<Config>),
    /// Print this and exit with 0.
    Help(String),
    /// Print this and exit with 0.
    Version(String),
    /// Print this and exit with 0.
    BuildInfo(String),
    /// Poll the sidecar on this HTTP port until it is ready for outbound calls; exit with 0 either way.
    Wait {
        /// The sidecar's HTTP API port.
        http_port: u16,
    },
}

impl Config {
    /// Reads arguments (without the program's name) and environment.
    ///
    /// Lines about deprecated flags go to `note`, for stderr.
    pub fn from_args(
        args: impl IntoIterator<Item = String>,
        env: impl Fn(&str) -> Option<String>,
        note: impl FnMut(&str),
    ) -> Result<Command, Exit> {
        let given = Given::parse(args).map_err(Exit::Syntax)?;
        given.deprecations.iter().map(String::as_str).for_each(note);
        if given.help {
            return Ok(Command::Help(usage()));
        }
        if given.bool("version") {
            return Ok(Command::Version(VERSION.to_owned()));
        }
        if given.bool("build-info") {
            return Ok(Command::BuildInfo(build_info()));
        }
        if given.bool("wait") {
            let refuse = |invalid: Invalid| Exit::Settings(vec![invalid]);
            let http_port = port(&given, "dapr-http-port").map_err(refuse)?;
            return Ok(Command::Wait { http_port });
        }
        Settings::new(&given, &env)
            .settle()
            .map(|config| Command::Run(Box::new(config)))
            .map_err(Exit::Settings)
    }
}

/// The commit comes from the environment of the build; builds outside a checkout have none.
fn build_info() -> String {
    let commit = option_env!("OUTRIGGER_COMMIT").unwrap_or("unknown");
    format!(
        "Version: {VERSION}\nGit Commit: {commit}\nGit Version: outrigger-v{}",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests;
