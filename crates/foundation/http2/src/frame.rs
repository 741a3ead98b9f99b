//! Frames: RFC 9113 sections 4 and 6.

/// Bytes of a frame's head.
pub const HEAD: usize = 9;

/// What every client says first (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of a body.
    Data,
    /// A head, or trailers.
    Headers,
    /// An order of streams; without meaning today.
    Priority,
    /// The end of a stream that failed.
    Reset,
    /// What one side asks of the other.
    Settings,
    /// A stream that the server begins.
    PushPromise,
    /// A sign of life.
    Ping,
    /// The end of a connection.
    GoAway,
    /// Room for more bytes.
    WindowUpdate,
    /// More of a head.
    Continuation,
    /// Of an extension: to be ignored.
    Unknown,
}

impl From<u8> for Kind {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::Reset,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Unknown,
        }
    }
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::Priority => 2,
            Self::Reset => 3,
            Self::Settings => 4,
            Self::PushPromise => 5,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::WindowUpdate => 8,
            Self::Continuation => 9,
            Self::Unknown => 0xff,
        }
    }
}

/// Flags of frames. Which frames they belong to: RFC 9113 section 6.
pub mod flag {
    /// The last frame of its sender on the stream: DATA, HEADERS.
    pub const END_STREAM: u8 = 0x1;
    /// An answer: SETTINGS, PING.
    pub const ACK: u8 = 0x1;
    /// The head is complete: HEADERS, CONTINUATION.
    pub const END_HEADERS: u8 = 0x4;
    /// The payload begins with the length of padding at its end: DATA, HEADERS.
    pub const PADDED: u8 = 0x8;
    /// The payload begins with a priority: HEADERS.
    pub const PRIORITY: u8 = 0x20;
}

/// What precedes each frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the payload; 24 bits.
    pub length: usize,
    /// The type of the frame.
    pub kind: Kind,
    /// See [`flag`].
    pub flags: u8,
    /// 0 for the connection.
    pub stream: u32,
}

impl Head {
    /// Reads the head at the start of `bytes`; `None` when there are fewer than [`HEAD`] of them.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0, ..] = *bytes else {
            return None;
        };
        Some(Self {
            length: u32::from_be_bytes([0, l2, l1, l0]) as usize,
            kind: kind.into(),
            flags,
            stream: u32::from_be_bytes([s3 & 0x7f, s2, s1, s0]),
        })
    }

    /// True when `flag` is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The head as it stands on the wire.
    ///
    /// Lengths of 2²⁴ and more have no place in it; no setting allows them.
    pub fn bytes(&self) -> [u8; HEAD] {
        let [_, l2, l1, l0] = u32::try_from(self.length).unwrap_or(0).to_be_bytes();
        let [s3, s2, s1, s0] = self.stream.to_be_bytes();
        [l2, l1, l0, self.kind.number(), self.flags, s3, s2, s1, s0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_header_round_trips() {
        let head = Head {
            length: 0x01_02_03,
            kind: Kind::Continuation,
            flags: flag::END_HEADERS,
            stream: 0x7fff_fffe,
        };
        let bytes = head.bytes();
        assert_eq!(bytes, [1, 2, 3, 9, 4, 0x7f, 0xff, 0xff, 0xfe]);
        assert_eq!(Head::read(&bytes), Some(head));
        assert_eq!(Head::read(&bytes[..8]), None);
    }

    #[test]
    fn ignores_reserved_stream_bit() {
        let head = Head::read(&[0, 0, 0, 42, 0, 0x80, 0, 0, 1]).unwrap();
        assert_eq!((head.stream, head.kind), (1, Kind::Unknown));
    }
}
