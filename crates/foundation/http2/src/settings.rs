//! Configuration of a connection, and the SETTINGS of both sides: RFC 9113 section 6.5.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, BytesMut};

use crate::error::ConnectionError;
use crate::frame::{Head, Kind};
use crate::limits;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Bytes of one setting.
const SETTING: usize = 6;
/// Maximum settings in one frame.
const MAX_SETTINGS: usize = 64;
/// Default maximum frame size. We never ask for more.
pub(crate) const FRAME: usize = 16_384;
/// Largest frame we send, even if the peer accepts larger ones: streams take turns frame by frame.
const MAX_FRAME: usize = 64 * 1024;
/// Default window of streams and connections (RFC 9113 section 6.9.2).
pub(crate) const INITIAL_WINDOW: u32 = 65_535;
/// Assumed limit on open streams until the server's SETTINGS arrive: the minimum that RFC 9113 section
/// 6.5.2 recommends.
const STREAMS: u32 = 100;
/// Maximum window size (RFC 9113 section 6.9.1).
pub(crate) const MAX_WINDOW: u32 = 0x7fff_ffff;

/// Budget in bytes for the growth of receive windows, shared by several connections.
#[derive(Debug)]
pub struct WindowMemory {
    limit: usize,
    reserved: AtomicUsize,
}

impl WindowMemory {
    /// A budget of `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            reserved: AtomicUsize::new(0),
        }
    }

    /// Bytes reserved now.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Reserves `bytes`; false if fewer are left.
    pub(crate) fn reserve(&self, bytes: u32) -> bool {
        let more = |reserved: usize| {
            let sum = reserved.checked_add(bytes as usize)?;
            (sum <= self.limit).then_some(sum)
        };
        self.reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(crate) fn free(&self, bytes: u32) {
        self.reserved.fetch_sub(bytes as usize, Ordering::Relaxed);
    }
}

/// A limit on a resource of several connections: unread bytes, or open streams. Above the limit,
/// connections with more than their fair share get nothing more; above twice the limit, no connection does.
#[derive(Debug)]
pub struct SharedLimit {
    limit: usize,
    held: AtomicUsize,
    /// Connections that hold any.
    connections: AtomicUsize,
}

impl SharedLimit {
    /// A limit of `limit` bytes or streams.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            held: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    /// The amount held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether a connection that holds `held` may take `more`.
    pub(crate) fn has_room(&self, held: usize, more: usize) -> bool {
        let (sum, held) = (self.held().saturating_add(more), held.saturating_add(more));
        let share = || self.limit / self.connections.load(Ordering::Relaxed).max(1);
        sum <= self.limit || sum <= self.limit * 2 && held <= share()
    }

    /// Whether stalled peers must make room for others.
    pub(crate) fn is_crowded(&self) -> bool {
        self.held() > self.limit / 2
    }

    /// Updates the amount held by a connection from `before` to `now`.
    pub(crate) fn recount(&self, before: usize, now: usize) {
        match (before, now) {
            (0, 0) => return,
            (0, _) => _ = self.connections.fetch_add(1, Ordering::Relaxed),
            (_, 0) => _ = self.connections.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        if now > before {
            self.held.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.held.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}

/// Limits and timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Initial receive window of a stream in bytes; at most 2³¹ - 1.
    pub stream_window: u32,
    /// Receive window of the connection in bytes, including overhead for merged small frames; between
    /// 65,535 and 2³¹ - 1.
    pub connection_window: u32,
    /// Bytes to which a stream's window may grow with the bandwidth-delay product; at most 2³¹ - 1.
    pub max_stream_window: u32,
    /// Bytes by which the connection's window may grow.
    pub window_growth: u32,
    /// Shared budget for window growth; `None` disables growth.
    pub window_memory: Option<&'static WindowMemory>,
    /// Shared limit on output that peers have not read; `None`: only the connection's limits apply. Server
    /// only.
    pub unread_memory: Option<&'static SharedLimit>,
    /// Streams that the peer may have open. Server only.
    pub max_streams: u32,
    /// Shared limit on open streams; `None`: only the connection's limit applies. Server only.
    pub open_streams: Option<&'static SharedLimit>,
    /// See [`limits::HEADER_LIST`].
    pub header_list: u32,
    /// See [`limits::HEADER_MEMORY`].
    pub header_memory: usize,
    /// Body bytes queued per stream because the peer's window is full.
    pub send_buffer: usize,
    /// See [`limits::SEND_BUFFERS`].
    pub send_buffers: usize,
    /// gRPC only: errors that the service does not see have gRPC's form, and streams may be silent.
    pub grpc: bool,
    /// Ping a silent peer even while no stream is open.
    pub ping_idle: bool,
    /// See [`limits::STALL`].
    pub stall: Duration,
    /// See [`limits::IDLE`].
    pub idle: Duration,
}

impl Config {
    /// The protocol's default windows and number of streams, and the default limits.
    pub const DEFAULT: Self = Self {
        stream_window: INITIAL_WINDOW,
        connection_window: INITIAL_WINDOW,
        max_stream_window: INITIAL_WINDOW,
        window_growth: 0,
        window_memory: None,
        unread_memory: None,
        max_streams: STREAMS,
        open_streams: None,
        header_list: limits::HEADER_LIST,
        header_memory: limits::HEADER_MEMORY,
        send_buffer: INITIAL_WINDOW as usize,
        send_buffers: limits::SEND_BUFFERS,
        grpc: false,
        ping_idle: true,
        stall: limits::STALL,
        idle: limits::IDLE,
    };

    /// Writes our SETTINGS, and a WINDOW_UPDATE that sets the connection's window.
    pub(crate) fn announce(&self, client: bool, out: &mut BytesMut) {
        let first = if client {
            (ENABLE_PUSH, 0)
        } else {
            (MAX_CONCURRENT_STREAMS, self.max_streams)
        };
        let settings = [
            first,
            (INITIAL_WINDOW_SIZE, self.stream_window),
            (MAX_HEADER_LIST_SIZE, self.header_list),
        ];
        let head = Head {
            length: settings.len() * SETTING,
            kind: Kind::Settings,
            flags: 0,
            stream: 0,
        };
        out.put_slice(&head.bytes());
        for (id, value) in settings {
            out.put_u16(id);
            out.put_u32(value);
        }
        if let Some(more) = self
            .connection_window
            .checked_sub(INITIAL_WINDOW)
            .filter(|more| *more > 0)
        {
            let head = Head {
                length: 4,
                kind: Kind::WindowUpdate,
                flags: 0,
                stream: 0,
            };
            out.put_slice(&head.bytes());
            out.put_u32(more);
        }
    }
}

/// The peer's SETTINGS that matter to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    /// Size of our dynamic table for header compression, in bytes.
    pub(crate) header_table_size: usize,
    /// Initial send window of a stream in bytes.
    pub(crate) initial_window_size: u32,
    /// Maximum payload of a frame we send.
    pub(crate) max_frame_size: usize,
    /// Streams that we may have open.
    pub(crate) max_concurrent_streams: u32,
    /// Bytes of a header list, as [`list_size`](crate::fields::list_size) counts them.
    pub(crate) max_header_list_size: usize,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_size: 4096,
            initial_window_size: INITIAL_WINDOW,
            max_frame_size: FRAME,
            max_concurrent_streams: STREAMS,
            max_header_list_size: usize::MAX,
        }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame.
    pub(crate) fn update(&mut self, payload: &[u8]) -> Result<(), ConnectionError> {
        if !payload.len().is_multiple_of(SETTING) {
            return Err(ConnectionError::size(
                "SETTINGS with a length that is not a multiple of 6",
            ));
        }
        if payload.len() > MAX_SETTINGS * SETTING {
            return Err(ConnectionError::calm("too many settings in one SETTINGS frame"));
        }
        for setting in payload.chunks_exact(SETTING) {
            let [i1, i0, v3, v2, v1, v0] = *setting else {
                continue;
            };
            self.set(u16::from_be_bytes([i1, i0]), u32::from_be_bytes([v3, v2, v1, v0]))?;
        }
        Ok(())
    }

    fn set(&mut self, id: u16, value: u32) -> Result<(), ConnectionError> {
        match id {
            HEADER_TABLE_SIZE => self.header_table_size = value as usize,
            ENABLE_PUSH if value > 1 => {
                return Err(ConnectionError::protocol(
                    "SETTINGS_ENABLE_PUSH is neither 0 nor 1",
                ));
            }
            INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                return Err(ConnectionError::flow(
                    "SETTINGS_INITIAL_WINDOW_SIZE is larger than 2^31-1",
                ));
            }
            INITIAL_WINDOW_SIZE => self.initial_window_size = value,
            MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = value,
            MAX_HEADER_LIST_SIZE => self.max_header_list_size = value as usize,
            MAX_FRAME_SIZE => {
                let size = value as usize;
                if !(FRAME..1 << 24).contains(&size) {
                    return Err(ConnectionError::protocol(
                        "SETTINGS_MAX_FRAME_SIZE is out of bounds",
                    ));
                }
                self.max_frame_size = size.min(MAX_FRAME);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use crate::frame::HEAD;

    fn setting(id: u16, value: u32) -> [u8; SETTING] {
        let mut out = [0; SETTING];
        out[..2].copy_from_slice(&id.to_be_bytes());
        out[2..].copy_from_slice(&value.to_be_bytes());
        out
    }

    fn refused(id: u16, value: u32) -> Reason {
        PeerSettings::default()
            .update(&setting(id, value))
            .unwrap_err()
            .reason
    }

    #[test]
    fn applies_known_settings() {
        let mut peer = PeerSettings::default();
        let payload = [
            setting(1, 0),
            setting(3, 3),
            setting(4, 7),
            setting(5, 20_000),
            setting(6, 1),
            setting(0xf00, 1),
        ]
        .concat();
        peer.update(&payload).unwrap();
        assert_eq!(
            peer,
            PeerSettings {
                header_table_size: 0,
                initial_window_size: 7,
                max_frame_size: 20_000,
                max_concurrent_streams: 3,
                max_header_list_size: 1,
            }
        );
    }

    #[test]
    fn rejects_out_of_range_settings() {
        assert_eq!(refused(2, 2), Reason::PROTOCOL_ERROR);
        assert_eq!(refused(4, 1 << 31), Reason::FLOW_CONTROL_ERROR);
        assert_eq!(refused(5, 16_383), Reason::PROTOCOL_ERROR);
        assert_eq!(refused(5, 1 << 24), Reason::PROTOCOL_ERROR);
        assert_eq!(
            PeerSettings::default().update(&[0; 5]).unwrap_err().reason,
            Reason::FRAME_SIZE_ERROR
        );
        let flood = vec![0; SETTING * (MAX_SETTINGS + 1)];
        assert_eq!(
            PeerSettings::default().update(&flood).unwrap_err().reason,
            Reason::ENHANCE_YOUR_CALM
        );
    }

    #[test]
    fn announces_settings_and_window() {
        let mut out = BytesMut::new();
        let config = Config {
            stream_window: 1 << 18,
            connection_window: 1 << 20,
            max_streams: 100,
            header_list: 4096,
            ..Config::DEFAULT
        };
        config.announce(false, &mut out);
        let settings = Head::read(&out).unwrap();
        assert_eq!((settings.kind, settings.length), (Kind::Settings, 18));
        let window = out.split_off(HEAD + settings.length);
        assert_eq!(Head::read(&window).unwrap().kind, Kind::WindowUpdate);
        assert_eq!(&window[HEAD..], ((1 << 20) - INITIAL_WINDOW).to_be_bytes());
    }
}
