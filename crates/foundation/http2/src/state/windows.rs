//! Receive windows: returning consumed bytes to the peer, and growth with the bandwidth-delay product.
//!
//! A stream starts with [`Config::stream_window`](crate::Config::stream_window). While its reader keeps up,
//! a PING measures the bytes consumed in one round trip. If they are most of the window, the window limits
//! the sender and is doubled, up to [`Config::max_stream_window`](crate::Config::max_stream_window). The
//! connection's window grows by the same amount, so that other streams lose nothing, and shrinks again when
//! the stream ends. The window of an unread stream never grows. Growth is taken from two budgets: the
//! connection's ([`Config::window_growth`](crate::Config::window_growth)), and the shared one
//! ([`WindowMemory`]).

use super::State;
use crate::settings::{MAX_WINDOW, WindowMemory};

/// Payload of the PING that measures a round trip.
pub(super) const BANDWIDTH_PING: [u8; 8] = *b"bdp-ping";
/// Window updates to skip after a round trip that needed no growth.
const BACKOFF: u8 = 8;

/// A measurement of the bytes consumed of a stream since a PING.
#[derive(Debug)]
struct Probe {
    stream: u32,
    released: u32,
}

/// Growth of the windows beyond their configured size.
#[derive(Debug)]
pub(super) struct Growth {
    /// `None`: windows do not grow.
    memory: Option<&'static WindowMemory>,
    /// Bytes by which the connection's window exceeds its configured size, reserved in `memory`.
    reserved: u32,
    /// The part of `reserved` that belonged to streams that have ended.
    excess: u32,
    probe: Option<Probe>,
    /// Window updates before the next probe.
    skip: u8,
}

impl Growth {
    pub(super) fn new(memory: Option<&'static WindowMemory>) -> Self {
        Self {
            memory,
            reserved: 0,
            excess: 0,
            probe: None,
            skip: 0,
        }
    }

    /// Reserves `more` bytes, using those of ended streams first; `None` if a budget is exhausted. Returns
    /// the growth of the connection's window.
    fn reserve(&mut self, more: u32, limit: u32) -> Option<u32> {
        let new = more.saturating_sub(self.excess);
        if self.reserved.saturating_add(new) > limit || !self.memory?.reserve(new) {
            return None;
        }
        self.excess -= more - new;
        self.reserved += new;
        Some(new)
    }

    /// Shrinks the connection's window by consumed bytes; returns how many remain to be released.
    fn shrink(&mut self, read: u32) -> u32 {
        let shrunk = read.min(self.excess);
        self.excess -= shrunk;
        self.free(shrunk);
        read - shrunk
    }

    fn free(&mut self, bytes: u32) {
        self.reserved -= bytes;
        if let Some(memory) = self.memory {
            memory.free(bytes);
        }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.free(self.reserved);
    }
}

impl State {
    /// Returns consumed bytes to the connection's window.
    pub(super) fn release_connection_capacity(&mut self, read: usize) {
        let mut read = u32::try_from(read).unwrap_or(u32::MAX);
        if self.growth.excess > 0 {
            read = self.growth.shrink(read);
        }
        self.released += read;
        let slack = u32::try_from(self.slack).unwrap_or(u32::MAX);
        let free = self.released.saturating_sub(slack);
        if free >= self.config.connection_window / 2 {
            self.recv_window += free;
            self.output.window_update(0, free);
            self.released -= free;
            self.wake();
        }
    }

    /// Returns consumed bytes to the windows of a stream and the connection.
    pub(crate) fn release_capacity(&mut self, id: u32, read: usize) {
        let read = u32::try_from(read).unwrap_or(u32::MAX);
        self.release_connection_capacity(read as usize);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.released += read;
        if let Some(probe) = &mut self.growth.probe
            && probe.stream == id
        {
            probe.released = probe.released.saturating_add(read);
        }
        if stream.state.is_recv_open() && stream.released >= stream.recv_window_size / 2 {
            stream.recv_window += stream.released;
            self.output.window_update(id, stream.released);
            stream.released = 0;
            if stream.recv_window_size < self.config.max_stream_window {
                self.probe(id);
            }
            self.wake();
        }
    }

    /// Starts measuring the bytes consumed of a stream in a round trip.
    fn probe(&mut self, id: u32) {
        let growth = &mut self.growth;
        if growth.memory.is_none() || growth.probe.is_some() {
            return;
        }
        match growth.skip.checked_sub(1) {
            Some(skip) => growth.skip = skip,
            None => {
                growth.probe = Some(Probe {
                    stream: id,
                    released: 0,
                });
                self.output.ping(BANDWIDTH_PING);
            }
        }
    }

    /// Handles the answer to [`BANDWIDTH_PING`]; false if none was sent.
    pub(super) fn probed(&mut self) -> bool {
        let Some(probe) = self.growth.probe.take() else {
            return false;
        };
        let Some(stream) = self.streams.get(&probe.stream) else {
            return true;
        };
        let size = stream.recv_window_size;
        // Two thirds, because a part of the window is always in flight.
        if u64::from(probe.released) * 3 < u64::from(size) * 2 {
            self.growth.skip = BACKOFF;
        } else if stream.state.is_recv_open() {
            let larger = size.saturating_mul(2).min(self.config.max_stream_window);
            self.grow(probe.stream, larger - size);
        }
        true
    }

    fn grow(&mut self, id: u32, more: u32) {
        let fits = self.recv_window <= MAX_WINDOW - more;
        let reserved = if fits {
            self.growth.reserve(more, self.config.window_growth)
        } else {
            None
        };
        let (Some(connection), Some(stream)) = (reserved, self.streams.get_mut(&id)) else {
            self.growth.skip = BACKOFF;
            return;
        };
        stream.recv_window_size += more;
        stream.recv_window += more;
        self.output.window_update(id, more);
        if connection > 0 {
            self.recv_window += connection;
            self.output.window_update(0, connection);
        }
        self.wake();
    }

    /// A stream has ended: the connection's window shrinks by its growth as bytes are consumed.
    pub(super) fn end_growth(&mut self, recv_window_size: u32) {
        self.growth.excess += recv_window_size.saturating_sub(self.config.stream_window);
    }
}
