//! What a connection is configured with, and the SETTINGS of both sides: RFC 9113 section 6.5.

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
/// Settings in one frame at most.
const MAX_SETTINGS: usize = 64;
/// Largest frame before settings say otherwise; we never ask for more.
pub(crate) const FRAME: usize = 16_384;
/// Largest frame we send, whatever the peer takes: streams have their driver frame by frame.
const MAX_FRAME: usize = 64 * 1024;
/// Window of streams and connections before anything is said (RFC 9113 section 6.9.2).
pub(crate) const INITIAL_WINDOW: u32 = 65_535;
/// Streams a client has open before the server has said how many it allows: what the protocol asks servers to allow
/// at least (RFC 9113 section 6.5.2).
const STREAMS: u32 = 100;
/// No window may become larger (RFC 9113 section 6.9.1).
pub(crate) const MAX_WINDOW: u32 = 0x7fff_ffff;

/// The bytes by which the receive windows of several connections may grow together.
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

    /// Bytes by which windows are larger now.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// False when fewer than `bytes` are left.
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

/// What several connections hold together: bytes that their peers have not read, or open streams. Beyond the limit, those that
/// hold more than their share of it get nothing more; beyond twice the limit, no connection gets more.
#[derive(Debug)]
pub struct SharedLimit {
    limit: usize,
    held: AtomicUsize,
    /// Those that hold any.
    connections: AtomicUsize,
}

impl SharedLimit {
    /// Room for so much.
    pub const fn new(limit: usize) -> Self {
        Self {
            limit,
            held: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        }
    }

    /// How much is held now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether a connection that holds so much may hold `more`.
    pub(crate) fn has_room(&self, held: usize, more: usize) -> bool {
        let (sum, held) = (self.held().saturating_add(more), held.saturating_add(more));
        let share = || self.limit / self.connections.load(Ordering::Relaxed).max(1);
        sum <= self.limit || sum <= self.limit * 2 && held <= share()
    }

    /// Whether that is so much that those who read nothing make room for others.
    pub(crate) fn is_crowded(&self) -> bool {
        self.held() > self.limit / 2
    }

    /// A connection holds `now`, and held `before` until now.
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

/// What this side asks for, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes a stream may have under way to us; at most 2³¹ - 1.
    pub stream_window: u32,
    /// Bytes all streams together may have under way to us, those of memory that gathers small frames included; at most
    /// 2³¹ - 1 and at least 65,535.
    pub connection_window: u32,
    /// What the window of a stream may grow to, bytes, where the bandwidth-delay product asks for it; at most 2³¹ - 1.
    pub max_stream_window: u32,
    /// Bytes by which the connection's window may grow together with its streams'.
    pub window_growth: u32,
    /// What windows of all connections may grow by together; `None`: they do not grow.
    pub window_memory: Option<&'static WindowMemory>,
    /// What peers of all connections may leave unread together; `None`: only the limits of each connection hold. Of a server.
    pub unread_memory: Option<&'static SharedLimit>,
    /// Streams the peer may have open; of a server.
    pub max_streams: u32,
    /// Streams that the peers of all connections may have open together; `None`: only the limit of each connection holds. Of a
    /// server.
    pub open_streams: Option<&'static SharedLimit>,
    /// See [`limits::HEADER_LIST`].
    pub header_list: u32,
    /// See [`limits::HEADER_MEMORY`].
    pub header_memory: usize,
    /// Bytes of a body that wait for the peer to make room, per stream.
    pub send_buffer: usize,
    /// See [`limits::SEND_BUFFERS`].
    pub send_buffers: usize,
    /// Nothing but gRPC is spoken: what the service does not see is refused in its terms, and streams may be silent.
    pub grpc: bool,
    /// A silent peer is asked whether it is there also while no stream is open.
    pub ping_idle: bool,
    /// See [`limits::STALL`].
    pub stall: Duration,
    /// See [`limits::IDLE`].
    pub idle: Duration,
}

impl Config {
    /// The windows and the number of streams of the protocol itself, and the limits' defaults.
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

    /// Our SETTINGS, and the WINDOW_UPDATE that makes the connection's window what it should be.
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

/// The SETTINGS of the peer, as far as they matter to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    /// Bytes of our dynamic table for header compression.
    pub(crate) header_table_size: usize,
    /// Bytes of DATA a new stream may send.
    pub(crate) initial_window_size: u32,
    /// Bytes of payload that we put in one frame.
    pub(crate) max_frame_size: usize,
    /// Streams we may have open.
    pub(crate) max_concurrent_streams: u32,
    /// Bytes of a list of fields, as [`list_size`](crate::fields::list_size) counts them.
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
    /// Reads the payload of a SETTINGS frame.
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
