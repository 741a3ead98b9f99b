//! Which implementation of HTTP/2 the data path runs on: our own, or, with the feature `http2-hyper`, hyper and h2.

use outrigger_http2::{Http2, SharedLimit, WindowMemory};

/// Our own.
#[cfg(not(feature = "http2-hyper"))]
pub type Implementation = outrigger_http2::Native;
/// hyper and h2.
#[cfg(feature = "http2-hyper")]
pub type Implementation = outrigger_http2::HyperH2;

/// The body of a message that was received.
pub type RecvStream = <Implementation as Http2>::Body;

/// What sends requests on a connection.
pub type Client<I> = <Implementation as Http2>::Client<I>;

/// What the flow-control window of a stream may grow to, bytes, where the bandwidth-delay product asks for it.
pub const MAX_STREAM_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes by which the window of a connection may grow together with those of its streams.
pub const MAX_WINDOW_GROWTH: u32 = 16 * 1024 * 1024;
/// Bytes by which the windows of all connections may grow together.
const MAX_WINDOW_MEMORY: usize = 64 * 1024 * 1024;

/// What windows of all connections may grow by.
pub static WINDOW_MEMORY: WindowMemory = WindowMemory::new(MAX_WINDOW_MEMORY);

/// Bytes of answers that the clients of all connections have not read, beyond which who holds more than its share gets nothing
/// more, and beyond twice as many nobody: not less than one connection may have by itself.
const MAX_UNREAD_ANSWERS: usize = 1088 << 20;

/// What clients of all connections may leave unread together.
pub static UNREAD_MEMORY: SharedLimit = SharedLimit::new(MAX_UNREAD_ANSWERS);
