//! Limits on the messages of a server, and on times.

use std::time::Duration;

/// Maximum size of an answer of a server, and of the list of its tools, in bytes.
pub const MAX_ANSWER: usize = 16 << 20;
/// Maximum pages of a server's list of tools.
#[cfg(feature = "client")]
pub(crate) const MAX_PAGES: usize = 500;
/// Maximum tools whose arguments are checked before a call.
pub(crate) const MAX_SCHEMAS: usize = 500;
/// Maximum size of a tool's schema whose arguments are checked, in bytes.
pub(crate) const MAX_SCHEMA: usize = 1 << 20;
/// Attempts to register a server, and the time after which no other begins.
pub(crate) const ATTEMPTS: u32 = 4;
pub(crate) const ATTEMPTS_TIME: Duration = Duration::from_secs(10);
/// Interval of pings, and their time limit.
#[cfg(feature = "client")]
pub(crate) const PING: Duration = Duration::from_secs(30);
#[cfg(feature = "client")]
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of the head of a response, except to a call of a tool.
#[cfg(feature = "client")]
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a subprocess to end after its input was closed.
#[cfg(feature = "client")]
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time before a token expires at which another is requested.
#[cfg(feature = "client")]
pub(crate) const TOKEN_MARGIN: Duration = Duration::from_secs(10);
