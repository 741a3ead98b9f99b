//! Errors of a command line, with remedies.

use std::fmt;

use outrigger_nearest::nearest;

use crate::{Flag, Kind};

/// One error. The text names the flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Unknown flag.
    #[error("unknown flag: --{name}")]
    Unknown {
        /// The name without dashes.
        name: String,
        /// The most similar flag, if any.
        near: Option<&'static str>,
    },
    /// A one-letter flag other than `-h`.
    #[error("unknown shorthand flag: {0}")]
    Shorthand(String),
    /// The last argument is a flag without its value.
    #[error("flag needs an argument: --{0}")]
    NoValue(&'static str),
    /// `--`, `=` or a dash instead of a name.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// The value has the wrong type.
    #[error("invalid argument \"{value}\" for \"--{flag}\" flag: {cause}")]
    Value {
        /// Name of the flag, without dashes.
        flag: &'static str,
        /// The given text.
        value: String,
        /// Why it was rejected.
        cause: String,
        /// The expected form.
        expected: &'static str,
    },
}

impl FlagError {
    pub(crate) fn unknown(flags: &[Flag], name: &str) -> Self {
        let shown = flags
            .iter()
            .filter(|flag| flag.deprecated.is_none() && !flag.hidden);
        Self::Unknown {
            name: name.to_owned(),
            near: nearest(name, shown.map(|flag| flag.name)),
        }
    }

    pub(crate) fn value(flag: &Flag, value: &str, cause: String) -> Self {
        Self::Value {
            flag: flag.name,
            value: value.to_owned(),
            cause,
            expected: match flag.kind {
                Kind::Bool => "true or false",
                Kind::Int => "a whole number",
                Kind::Uint => "a whole number of 0 or more",
                Kind::Text | Kind::List => "a text",
                Kind::Checked { expected, .. } => expected,
            },
        }
    }

    /// The wrong argument, with its dashes.
    pub fn place(&self) -> String {
        match self {
            Self::Unknown { name, .. } => format!("--{name}"),
            Self::Shorthand(argument) | Self::Syntax(argument) => argument.clone(),
            Self::NoValue(flag) | Self::Value { flag, .. } => format!("--{flag}"),
        }
    }

    /// The flag probably meant, with its dashes.
    pub fn meant(&self) -> String {
        match self {
            Self::Unknown { near: Some(near), .. } => format!("--{near}"),
            error => error.place(),
        }
    }

    /// The remedy.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unknown { near: Some(near), .. } => format!("did you mean --{near}?"),
            Self::Unknown { .. } | Self::Shorthand(_) | Self::Syntax(_) => {
                "run with --help for all flags".to_owned()
            }
            Self::NoValue(_) => "add its value".to_owned(),
            Self::Value { expected, .. } => format!("give {expected}"),
        }
    }
}

/// All errors of a command line in order, one per line. Callers print it, then
/// [`see_help`](crate::see_help), and exit with [`EXIT_USAGE`](crate::EXIT_USAGE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagErrors(pub Vec<FlagError>);

impl fmt::Display for FlagErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let line = if i == 0 { "" } else { "\n" };
            write!(f, "{line}{error} ({})", error.remedy())?;
        }
        Ok(())
    }
}

impl std::error::Error for FlagErrors {}
