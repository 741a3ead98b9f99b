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

mod error;
mod number;
mod parser;
mod table;
mod values;

pub use error::{FlagError, FlagErrors};
pub use number::Int;
pub use parser::{Parsed, parse, parse_every};
pub use table::{Flag, Kind, reference, see_help, usage};
pub use values::Values;

/// Exit status for an invalid command line.
pub const EXIT_USAGE: u8 = 2;
