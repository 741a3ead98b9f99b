//! Client connections of the data path: dialling, HTTP/1.1 pools to the app, HTTP/2 pools to apps and peers.

mod channel;
mod dial;
mod h1;
mod h2;
mod resend;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request};
use outrigger_http2::StreamError;

pub use channel::Channel;
pub use dial::{DialError, DialErrorKind, Dialer, Io};
pub use h1::{H1Pool, PooledBody};
pub use h2::{H2Pool, KeepAlive};

use crate::body::Body;

/// Largest number of header fields in an HTTP/1.1 response.
pub const MAX_FIELDS: usize = 500;

/// Whether requests of a method usually have a body and must state an empty one (RFC 9110 section 8.6).
#[inline]
pub fn usually_has_body(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// Sets the framing headers that hyper omits. hyper sends no length for an empty body, although some methods
/// require one (RFC 9110 section 8.6). It also treats a GET body of unknown length as empty.
#[inline]
pub fn set_framing(request: &mut Request<Body>) {
    let (method, length) = (request.method(), request.body().known_length());
    if length == Some(0) && usually_has_body(method) {
        request.headers_mut().insert(CONTENT_LENGTH, 0.into());
    } else if length.is_none()
        && [Method::GET, Method::HEAD].contains(method)
        && !request.headers().contains_key(CONTENT_LENGTH)
    {
        const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, CHUNKED);
    }
}

/// Why a request got no response head.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The connection broke or the peer refused the request.
    #[error("connection to {address} failed: {source}")]
    Broken {
        /// `host:port` of the peer.
        address: String,
        /// Whether the peer provably did not process the request.
        repeatable: bool,
        /// The connection error.
        source: ConnectionError,
    },
}

/// A connection error of either HTTP version.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// An HTTP/1.1 connection failed.
    #[error("{}", crate::error::chain(.0))]
    Http1(#[from] hyper::Error),
    /// An HTTP/2 stream failed.
    #[error(transparent)]
    Http2(#[from] StreamError),
}

impl ConnectionError {
    /// Whether the connection failed, rather than the request or the response.
    fn is_lost(&self) -> bool {
        match self {
            Self::Http1(error) => !error.is_parse() && !error.is_user(),
            Self::Http2(error) => !error.is_too_large(),
        }
    }

    /// Whether there was no response, or none of this HTTP version.
    fn is_foreign(&self) -> bool {
        match self {
            Self::Http1(error) => !error.is_parse_too_large() && !error.is_user(),
            Self::Http2(error) => matches!(error, StreamError::ConnectionClosed | StreamError::GoAway(_)),
        }
    }

    /// Whether the server says that it did not process the request.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_refusal())
    }

    /// Whether header fields of the request or response exceed the limit of either side.
    fn is_too_large(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_too_large())
    }
}

impl SendError {
    /// Whether a retry cannot make the peer process the request twice.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Broken { repeatable, .. } => *repeatable,
        }
    }

    /// Whether header fields of the request or response exceed the limit of either side.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Broken { source, .. } if source.is_too_large())
    }

    /// Whether the peer accepted the connection but did not respond in this protocol. It may speak another
    /// one.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Broken { source, .. } if source.is_foreign())
    }

    /// Whether the peer was unreachable or disconnected, rather than the request being invalid.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Broken { source, .. } => source.is_lost(),
        }
    }
}
