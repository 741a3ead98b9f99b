//! The interface between a connection and the data path.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::RecvStream;
use crate::error::{Reason, StreamError};
use crate::settings::PeerSettings;

/// The byte stream of a connection.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for I {}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes> + Send + Unpin + 'static;

    /// Answers one request. The future is dropped when the client cancels the request.
    fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// Called when a connection starts. `is_busy` reports, without a lock, whether the connection has
    /// requests in flight.
    fn connected(&self, is_busy: impl Fn() -> bool + Send + Sync + 'static) {
        drop(is_busy);
    }

    /// The error code to send to the client when the response body fails.
    fn reason(error: <Self::Body as Body>::Error) -> Reason;
}

/// The body that follows the head of a message.
#[derive(Debug)]
pub enum Incoming {
    /// No body.
    Empty,
    /// The complete body: it arrived together with the head.
    Full(Bytes),
    /// A streamed body.
    Stream(RecvStream),
}

/// Why a request got no response.
#[derive(Debug)]
pub struct TrySendError<B> {
    /// The error of the stream.
    pub error: StreamError,
    /// The request, if none of it was sent.
    pub request: Option<Request<B>>,
}

/// How long to wait for a client.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For the connection preface.
    pub preface: Duration,
    /// For frames after the preface.
    pub keep_alive: KeepAlive,
}

/// How long to wait for a silent peer.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Silence before a PING is sent.
    pub interval: Duration,
    /// Wait for any frame after the PING.
    pub timeout: Duration,
}

/// A request without a body that asked, over HTTP/1.1, for its response over HTTP/2 (RFC 7540 section 3.2).
#[derive(Debug)]
pub struct Upgrade {
    pub(crate) request: Request<()>,
    pub(crate) settings: PeerSettings,
}

impl Upgrade {
    /// `settings` is the decoded value of the `HTTP2-Settings` header. Returns `None` if it is not a
    /// SETTINGS payload.
    pub fn new(request: Request<()>, settings: &[u8]) -> Option<Self> {
        let mut peer = PeerSettings::default();
        peer.update(settings).ok()?;
        Some(Self {
            request,
            settings: peer,
        })
    }
}
