//! Limits that all HTTP/2 connections of a process share.

use outrigger_http2::{SharedLimit, WindowMemory};

/// Largest flow-control window of a stream, bytes. The window grows with the bandwidth-delay product.
pub const MAX_STREAM_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes by which a connection's window and those of its streams may grow together.
pub const MAX_WINDOW_GROWTH: u32 = 16 * 1024 * 1024;
/// Bytes by which the windows of all connections may grow together.
const MAX_WINDOW_MEMORY: usize = 64 * 1024 * 1024;

/// Budget of window growth across all connections.
pub static WINDOW_MEMORY: WindowMemory = WindowMemory::new(MAX_WINDOW_MEMORY);

/// Response bytes that clients of all connections have not read. Above this limit, connections over their
/// fair share must read first; above twice the limit all must. At least the limit of one connection.
const MAX_UNREAD_ANSWERS: usize = 1088 << 20;

/// Budget of unread response bytes across all connections.
pub static UNREAD_MEMORY: SharedLimit = SharedLimit::new(MAX_UNREAD_ANSWERS);
