//! What the HTTP/2 connections of a process share.

use outrigger_http2::{SharedLimit, WindowMemory};

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
