//! Why streams and connections end.

use std::fmt;
use std::time::Duration;

/// An error code (RFC 9113 section 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

impl Reason {
    /// Nothing went wrong.
    pub const NO_ERROR: Self = Self(0);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// Something went wrong here.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// More was sent than there was room for.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame for a stream that has ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame of an impossible length.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not looked at.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not wanted any more.
    pub const CANCEL: Self = Self(8);
    /// The state of the header compression is lost.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer asks too much.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);

    fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(self.0 as usize).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What the peer did wrong, when that ends the connection: the code it is told, and what is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {what}")]
pub struct Broken {
    /// The code in our GOAWAY.
    pub reason: Reason,
    /// What it did.
    pub what: &'static str,
}

impl Broken {
    pub(crate) fn protocol(what: &'static str) -> Self {
        Self {
            reason: Reason::PROTOCOL_ERROR,
            what,
        }
    }

    pub(crate) fn size(what: &'static str) -> Self {
        Self {
            reason: Reason::FRAME_SIZE_ERROR,
            what,
        }
    }

    pub(crate) fn flow(what: &'static str) -> Self {
        Self {
            reason: Reason::FLOW_CONTROL_ERROR,
            what,
        }
    }

    pub(crate) fn closed(what: &'static str) -> Self {
        Self {
            reason: Reason::STREAM_CLOSED,
            what,
        }
    }

    pub(crate) fn calm(what: &'static str) -> Self {
        Self {
            reason: Reason::ENHANCE_YOUR_CALM,
            what,
        }
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The peer broke the protocol; it was told so.
    #[error("the peer broke the protocol: {0}")]
    Broken(#[from] Broken),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Nothing came, not even the answer to a ping.
    #[error("nothing was heard within {0:?}, not even the answer to a ping")]
    Silent(Duration),
    /// A frame or a list of fields was begun and not ended.
    #[error("a frame or a list of fields was not ended within {0:?}")]
    Unfinished(Duration),
    /// Nothing of what we sent was read.
    #[error("the peer read nothing for {0:?}")]
    Unread(Duration),
    /// The client did not begin.
    #[error("no HTTP/2 preface within {0:?}")]
    NoPreface(Duration),
}

/// Why a message that is being received ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// The stream was reset.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// The peer ended the connection, and did not look at the stream.
    #[error("the peer ended the connection before it looked at the stream: {0}")]
    GoneAway(Reason),
    /// The connection ended.
    #[error("the connection ended in the middle of the stream")]
    Connection,
    /// Its fields are more than we take, or than we keep for one connection.
    #[error("the message's header fields are larger than the {0} bytes that are taken")]
    Fields(u32),
    /// Its fields, or those of its answer, are more than the peer takes; they were not sent.
    #[error("the message has {size} bytes of header fields, and the peer takes {limit}")]
    PeerFields {
        /// Bytes as RFC 9113 section 6.5.2 counts them.
        size: usize,
        /// The peer's SETTINGS_MAX_HEADER_LIST_SIZE.
        limit: usize,
    },
    /// Nothing came, or was taken, for too long: see [`STALL`](crate::limits::STALL).
    #[error("the body did not move for {0:?}")]
    Stalled(Duration),
}

impl Cut {
    /// The code for whoever is behind this stream.
    pub fn reason(self) -> Reason {
        match self {
            Self::Reset(reason) => reason,
            Self::GoneAway(_) => Reason::REFUSED_STREAM,
            Self::Connection | Self::Stalled(_) => Reason::CANCEL,
            Self::Fields(_) | Self::PeerFields { .. } => Reason::ENHANCE_YOUR_CALM,
        }
    }

    /// True when the peer did not look at the stream, so that the request may be repeated (RFC 9113 section 8.7).
    pub fn is_refusal(self) -> bool {
        self.reason() == Reason::REFUSED_STREAM
    }

    /// True when the fields of the message, or of its answer, were too large: to repeat it does not help.
    pub fn is_too_large(self) -> bool {
        matches!(self, Self::Fields(_) | Self::PeerFields { .. })
    }

    /// True when the connection is of no more use.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::GoneAway(_) | Self::Connection)
    }
}
