//! The command that a command line selects.

use outrigger_flags::{FlagError, Parsed, Values, parse_every};

use super::flags::FLAGS;
use super::invalid::{Exit, Invalid};
use super::settle::{Settings, port};
use super::{Config, VERSION, usage};

/// The command to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run a sidecar.
    Run(Box<Config>),
    /// Print this text and exit with 0.
    Help(String),
    /// Print this text and exit with 0.
    Version(String),
    /// Print this text and exit with 0.
    BuildInfo(String),
    /// Poll the sidecar on this HTTP port until it is ready for outbound calls, then exit with 0.
    Wait {
        /// HTTP API port of the sidecar.
        http_port: u16,
    },
}

impl Config {
    /// Parses the arguments (without the program's name) and the environment.
    ///
    /// Notices about deprecated flags go to `note`, for stderr.
    pub fn from_args(
        args: impl IntoIterator<Item = String>,
        env: impl Fn(&str) -> Option<String>,
        mut note: impl FnMut(&str),
    ) -> Result<Command, Exit> {
        let (given, wrong) = match parse_every(FLAGS, args) {
            (Parsed::Run(given), wrong) => (given, wrong),
            (Parsed::Help, _) => return Ok(Command::Help(usage())),
        };
        if !wrong.is_empty() {
            return Err(syntax(wrong, &given, env));
        }
        let other = other_actors(&given);
        given.notices().iter().chain(&other).for_each(|line| note(line));
        if given.boolean("version") {
            return Ok(Command::Version(VERSION.to_owned()));
        }
        if given.boolean("build-info") {
            return Ok(Command::BuildInfo(build_info()));
        }
        if given.boolean("wait") {
            let refuse = |invalid: Invalid| Exit::Settings {
                invalid: vec![invalid],
                config: None,
            };
            let http_port = port(&given, "dapr-http-port").map_err(refuse)?;
            return Ok(Command::Wait { http_port });
        }
        let (config, invalid) = Settings::new(&given, &env).settle();
        let config = Box::new(config);
        if invalid.is_empty() {
            return Ok(Command::Run(config));
        }
        Err(Exit::Settings {
            invalid,
            config: Some(config),
        })
    }
}

/// The requested actors service, if it is not placement, the only supported one.
fn other_actors(given: &Values) -> Option<String> {
    let service = given.text("actors-service");
    let other = !service.is_empty() && !service.starts_with("placement:");
    (other && given.text("placement-host-address").is_empty()).then(|| {
        format!(
            "Flag --actors-service: {service:?} is not placement:<address>, so actors are disabled; set \
             --placement-host-address"
        )
    })
}

/// The error for a command line with syntax errors, plus the invalid values of its other flags.
fn syntax(wrong: Vec<FlagError>, given: &Values, env: impl Fn(&str) -> Option<String>) -> Exit {
    let (config, invalid) = Settings::new(given, env).settle();
    // A flag without its value has the default. If the default is not valid, that is not a second mistake.
    let meant: Vec<String> = wrong.iter().map(FlagError::meant).collect();
    let others = invalid
        .into_iter()
        .filter(|invalid| !meant.contains(&invalid.place));
    Exit::Syntax {
        invalid: wrong.into_iter().map(Invalid::from).chain(others).collect(),
        config: Box::new(config),
    }
}

/// The commit comes from the build's environment; builds outside of a checkout have none.
fn build_info() -> String {
    let commit = option_env!("OUTRIGGER_COMMIT").unwrap_or("unknown");
    format!(
        "Version: {VERSION}\nGit Commit: {commit}\nGit Version: outrigger-v{}",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests;
