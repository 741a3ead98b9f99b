//! Errors of streams and connections.

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
    /// This side failed.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// The peer exceeded a flow-control window.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame on a closed stream.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame with a length that its type does not allow.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not processed.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is no longer needed.
    pub const CANCEL: Self = Self(8);
    /// The header compression state is lost.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The peer causes excessive load.
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

/// A connection error (RFC 9113 section 5.4.1): the code for the peer, and the text for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct ConnectionError {
    /// The code in our GOAWAY.
    pub reason: Reason,
    /// Description of the violation.
    pub detail: &'static str,
}

impl ConnectionError {
    pub(crate) fn protocol(detail: &'static str) -> Self {
        Self {
            reason: Reason::PROTOCOL_ERROR,
            detail,
        }
    }

    pub(crate) fn size(detail: &'static str) -> Self {
        Self {
            reason: Reason::FRAME_SIZE_ERROR,
            detail,
        }
    }

    pub(crate) fn flow(detail: &'static str) -> Self {
        Self {
            reason: Reason::FLOW_CONTROL_ERROR,
            detail,
        }
    }

    pub(crate) fn closed(detail: &'static str) -> Self {
        Self {
            reason: Reason::STREAM_CLOSED,
            detail,
        }
    }

    pub(crate) fn calm(detail: &'static str) -> Self {
        Self {
            reason: Reason::ENHANCE_YOUR_CALM,
            detail,
        }
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer broke the protocol and was sent a GOAWAY.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] ConnectionError),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The peer sent nothing, not even the answer to a PING.
    #[error("the peer did not answer a PING within {0:?}")]
    KeepAliveTimeout(Duration),
    /// A frame or a field block was started but not completed.
    #[error("incomplete frame or field block after {0:?}")]
    IncompleteFrame(Duration),
    /// The peer read none of the output.
    #[error("the peer read nothing for {0:?}")]
    WriteTimeout(Duration),
    /// The client sent no connection preface.
    #[error("no HTTP/2 connection preface within {0:?}")]
    PrefaceTimeout(Duration),
}

/// Why a stream ended before its message was complete: a stream error (RFC 9113 section 5.4.2), or the end
/// of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The stream was reset.
    #[error("the stream was reset: {0}")]
    Reset(Reason),
    /// The peer's GOAWAY says that it did not process the stream.
    #[error("the peer closed the connection without processing the stream: {0}")]
    GoAway(Reason),
    /// Either side closed the connection before the stream ended.
    #[error("the connection was closed before the stream was complete")]
    ConnectionClosed,
    /// A received header list exceeds the limit, or the memory that the connection has left for header
    /// lists. In bytes.
    #[error("the message's header list is larger than the limit of {0} bytes")]
    HeadersTooLarge(u32),
    /// The header list to be sent exceeds the peer's limit; nothing was sent.
    #[error(
        "the message's header list has {size} bytes, and the peer accepts {limit} (SETTINGS_MAX_HEADER_LIST_SIZE)"
    )]
    PeerHeaderListLimit {
        /// Bytes by the count of RFC 9113 section 6.5.2.
        size: usize,
        /// The peer's SETTINGS_MAX_HEADER_LIST_SIZE.
        limit: usize,
    },
    /// No DATA was received, or could be sent, for too long: see [`STALL`](crate::limits::STALL).
    #[error("the body made no progress for {0:?}")]
    Stalled(Duration),
}

impl StreamError {
    /// The error code to pass on to the other end of a proxied stream.
    pub fn reason(self) -> Reason {
        match self {
            Self::Reset(reason) => reason,
            Self::GoAway(_) => Reason::REFUSED_STREAM,
            Self::ConnectionClosed | Self::Stalled(_) => Reason::CANCEL,
            Self::HeadersTooLarge(_) | Self::PeerHeaderListLimit { .. } => Reason::ENHANCE_YOUR_CALM,
        }
    }

    /// True if the peer did not process the stream, so the request can be retried (RFC 9113 section 8.7).
    pub fn is_refusal(self) -> bool {
        self.reason() == Reason::REFUSED_STREAM
    }

    /// True if the header list of the request or response was too large; a retry does not help.
    pub fn is_too_large(self) -> bool {
        matches!(self, Self::HeadersTooLarge(_) | Self::PeerHeaderListLimit { .. })
    }

    /// True if the connection is no longer usable.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::GoAway(_) | Self::ConnectionClosed)
    }
}
