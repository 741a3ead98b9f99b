//! Frames: RFC 9113 sections 4 and 6.

/// Bytes of a frame header.
pub const HEAD: usize = 9;

/// The client connection preface (RFC 9113 section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A part of a body.
    Data,
    /// The head of a message, or its trailers.
    Headers,
    /// The priority of a stream; deprecated.
    Priority,
    /// Terminates a stream early.
    Reset,
    /// Configuration parameters of one side.
    Settings,
    /// Announces a stream that the server opens.
    PushPromise,
    /// Measures a round trip or checks that the peer is alive.
    Ping,
    /// Shuts a connection down.
    GoAway,
    /// Extends a flow-control window.
    WindowUpdate,
    /// Continues a field block.
    Continuation,
    /// An unknown extension; ignored.
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

/// Frame flags. RFC 9113 section 6 lists the frames they apply to.
pub mod flag {
    /// The sender's last frame on the stream: DATA, HEADERS.
    pub const END_STREAM: u8 = 0x1;
    /// An acknowledgement: SETTINGS, PING.
    pub const ACK: u8 = 0x1;
    /// The field block is complete: HEADERS, CONTINUATION.
    pub const END_HEADERS: u8 = 0x4;
    /// The payload starts with a Pad Length: DATA, HEADERS.
    pub const PADDED: u8 = 0x8;
    /// The payload starts with a priority: HEADERS.
    pub const PRIORITY: u8 = 0x20;
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the payload; 24 bits.
    pub length: usize,
    /// The type of the frame.
    pub kind: Kind,
    /// See [`flag`].
    pub flags: u8,
    /// 0 means the connection.
    pub stream: u32,
}

impl Head {
    /// Parses the frame header at the start of `bytes`; `None` if there are fewer than [`HEAD`] bytes.
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

    /// Encodes the frame header.
    ///
    /// The length must be below 2²⁴; no setting allows more.
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
