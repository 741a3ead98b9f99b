//! What is wrong with a command line.

use outrigger_flags::{FlagError, see_help};

use super::Config;

/// One wrong setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({place}: {remedy})")]
pub struct Invalid {
    /// The flag or variable, as `--app-id`.
    pub place: String,
    /// What is wrong, in the contract's words where it has some.
    pub what: String,
    /// The remedy, for the message.
    pub remedy: String,
}

impl Invalid {
    pub(super) fn new(
        place: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Invalid {
        Invalid {
            place: place.into(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    pub(super) fn flag(name: &str, what: impl Into<String>, remedy: impl Into<String>) -> Invalid {
        Invalid::new(format!("--{name}"), what, remedy)
    }
}

impl From<FlagError> for Invalid {
    fn from(error: FlagError) -> Self {
        Invalid::new(error.place(), error.to_string(), error.remedy())
    }
}

/// Why the sidecar does not start.
#[derive(Debug, Clone, PartialEq)]
pub enum Exit {
    /// Unknown flags or values of the wrong type.
    Syntax {
        /// What is wrong with each, and with the values of the others.
        invalid: Vec<Invalid>,
        /// The rest, as below.
        config: Box<Config>,
    },
    /// Well-formed settings that cannot be used.
    Settings {
        /// The settings that are not valid.
        invalid: Vec<Invalid>,
        /// The rest, with defaults in the place of these, from which the Configuration and the resources can be checked as
        /// well; `None` where it was not read.
        config: Option<Box<Config>>,
    },
}

impl Exit {
    /// The process exit code.
    pub fn code(&self) -> u8 {
        match self {
            Exit::Syntax { .. } => 2,
            Exit::Settings { .. } => 1,
        }
    }

    /// What the Configuration and the resources can be checked with.
    pub fn config(&self) -> Option<&Config> {
        match self {
            Exit::Syntax { config, .. } => Some(config),
            Exit::Settings { config, .. } => config.as_deref(),
        }
    }

    /// Everything that is wrong, with places and remedies.
    pub fn invalid(&self) -> &[Invalid] {
        match self {
            Exit::Syntax { invalid, .. } | Exit::Settings { invalid, .. } => invalid,
        }
    }
}

/// For [`Exit::Syntax`] one line each and where the flags are listed, for stderr. For [`Exit::Settings`] the message of
/// the last log line.
impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<_> = self.invalid().iter().map(ToString::to_string).collect();
        match self {
            Exit::Syntax { .. } => write!(f, "{}\n{}", lines.join("\n"), see_help("daprd")),
            Exit::Settings { invalid: all, .. } => {
                // Quantities are read with the flags, before there is a runtime to speak of.
                let quantity =
                    |i: &Invalid| matches!(i.place.as_str(), "--max-body-size" | "--read-buffer-size");
                let early = all.iter().all(quantity);
                let opening = if early {
                    "Failed to parse flags"
                } else {
                    "Fatal error from runtime"
                };
                write!(f, "{opening}: {}", lines.join("\n"))
            }
        }
    }
}

impl std::error::Error for Exit {}
