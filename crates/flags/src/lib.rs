//! Command line flags in the style of Go programs: one table describes a binary's flags, one
//! parser reads `--name value`, `--name=value`, `-name value` and bare booleans.
//!
//! ```
//! use outrigger_flags::{Flag, Parsed, parse};
//!
//! const FLAGS: &[Flag] = &[
//!     Flag::int("port", "50001", "port of the gRPC server"),
//!     Flag::boolean("log-as-json", "false", "print JSON log lines"),
//! ];
//! let args = ["-port=7", "--log-as-json"].map(String::from);
//! let Ok(Parsed::Run(values)) = parse(FLAGS, args) else { panic!() };
//! assert_eq!(values.int("port"), 7);
//! assert!(values.boolean("log-as-json"));
//! ```

mod number;
mod parser;
mod table;
mod values;

pub use number::Int;
pub use parser::{Parsed, parse};
pub use table::{Flag, Kind, usage};
pub use values::Values;

/// Exit status of a process that could not understand its command line.
pub const EXIT_USAGE: u8 = 2;

/// What was wrong with a command line. The text names the flag; callers print it together with
/// [`usage`] and exit with [`EXIT_USAGE`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag has this name.
    #[error("unknown flag: --{0}")]
    Unknown(String),
    /// One-letter flags do not exist, except `-h`.
    #[error("unknown shorthand flag: {0}")]
    Shorthand(String),
    /// The last argument names a flag that needs a value.
    #[error("flag needs an argument: --{0}")]
    NoValue(&'static str),
    /// `--`, `=` or a dash where a name is expected.
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    /// The value does not fit the flag's type.
    #[error("invalid argument \"{value}\" for \"--{flag}\" flag: {cause}")]
    Value {
        /// Name of the flag, without dashes.
        flag: &'static str,
        /// The text given.
        value: String,
        /// Why it was refused.
        cause: String,
    },
}
