//! Client connections of the data path: dialling, HTTP/1.1 pools towards the app, HTTP/2 pools towards apps and peers.

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

/// Fields of the head of an HTTP/1.1 response.
pub const MAX_FIELDS: usize = 500;

/// Whether requests of a method mostly have a body, and tell when they have none (RFC 9110 section 8.6).
#[inline]
pub fn mostly_has_body(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH].contains(method)
}

/// Says how the body of a request is framed where hyper does not: it tells no length where there is no body, which
/// requests of some methods have to (RFC 9110 section 8.6), and takes a GET with a body of unknown length for one without.
#[inline]
pub fn tell_framing(request: &mut Request<Body>) {
    let (method, length) = (request.method(), request.body().known_length());
    if length == Some(0) && mostly_has_body(method) {
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
    /// The connection ended or the peer refused the request; `repeatable` when the peer cannot have acted on it.
    #[error("connection to {address} failed: {source}")]
    Broken {
        /// `host:port` of the peer.
        address: String,
        /// True when no byte of the request was processed.
        repeatable: bool,
        /// The error of the connection.
        source: ConnectionError,
    },
}

/// What a connection reports, by the version of HTTP that it speaks.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// A connection of HTTP/1.1 failed.
    #[error("{}", crate::error::chain(.0))]
    Http1(#[from] hyper::Error),
    /// A stream of HTTP/2 failed.
    #[error(transparent)]
    Http2(#[from] StreamError),
}

impl ConnectionError {
    /// Whether the connection failed, as against the request or the answer.
    fn is_lost(&self) -> bool {
        match self {
            Self::Http1(error) => !error.is_parse() && !error.is_user(),
            Self::Http2(error) => !error.is_too_large(),
        }
    }

    /// Whether no answer came, or none of this version of HTTP.
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

    /// Whether the header fields of the request or of the answer are more than one side takes.
    fn is_too_large(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_too_large())
    }
}

impl SendError {
    /// True when repeating the request cannot make the peer act twice.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Broken { repeatable, .. } => *repeatable,
        }
    }

    /// True when the header fields of the request or of the answer are more than one side takes.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Broken { source, .. } if source.is_too_large())
    }

    /// True when the peer accepted the connection and did not answer on it as the protocol has it: it may speak another.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Broken { source, .. } if source.is_foreign())
    }

    /// True when the peer could not be reached or went away, as against a broken request.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Broken { source, .. } => source.is_lost(),
        }
    }
}
