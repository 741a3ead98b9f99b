//! Errors of a command line.

use outrigger_flags::{FlagError, see_help};

use super::Config;

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} ({place}: {remedy})")]
pub struct Invalid {
    /// The flag or variable, such as `--app-id`.
    pub place: String,
    /// The problem, in the contract's words if it has any.
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
        /// All invalid flags and values.
        invalid: Vec<Invalid>,
        /// The remaining settings, see [`Exit::Settings`].
        config: Box<Config>,
    },
    /// Well-formed settings with invalid values.
    Settings {
        /// The invalid settings.
        invalid: Vec<Invalid>,
        /// The remaining settings, with defaults for invalid ones, so that the Configuration and the
        /// resources can be checked too; `None` if they were not read.
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

    /// The settings for checking the Configuration and the resources.
    pub fn config(&self) -> Option<&Config> {
        match self {
            Exit::Syntax { config, .. } => Some(config),
            Exit::Settings { config, .. } => config.as_deref(),
        }
    }

    /// All invalid settings, with places and remedies.
    pub fn invalid(&self) -> &[Invalid] {
        match self {
            Exit::Syntax { invalid, .. } | Exit::Settings { invalid, .. } => invalid,
        }
    }
}

/// For [`Exit::Settings`], the message of the last log line. For [`Exit::Syntax`], one line per error and a
/// pointer to the list of flags, for stderr.
impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<_> = self.invalid().iter().map(ToString::to_string).collect();
        match self {
            Exit::Syntax { .. } => write!(f, "{}\n{}", lines.join("\n"), see_help("daprd")),
            Exit::Settings { invalid: all, .. } => {
                // Quantities are parsed with the flags, before a runtime exists.
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
