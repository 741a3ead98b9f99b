//! What the data path gives to a connection and what it gets from it.

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

/// The bytes of a connection.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for I {}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes> + Send + Unpin + 'static;

    /// Answers one request. The future is dropped when the client does not want the answer any more.
    fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// A connection begins; `is_busy` tells at any time, without a lock, whether it has a request that is not over.
    fn connected(&self, is_busy: impl Fn() -> bool + Send + Sync + 'static) {
        drop(is_busy);
    }

    /// What the client is told when the body of an answer fails.
    fn reason(error: <Self::Body as Body>::Error) -> Reason;
}

/// What is behind the head of a message.
#[derive(Debug)]
pub enum Incoming {
    /// A body without bytes.
    Empty,
    /// All of it: it came together with the head.
    Full(Bytes),
    /// A body that streams.
    Stream(RecvStream),
}

/// Why there is no response.
#[derive(Debug)]
pub struct TrySendError<B> {
    /// The error of the stream.
    pub error: StreamError,
    /// The request, where nothing of it was sent.
    pub request: Option<Request<B>>,
}

/// How long to wait for a client.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For its connection preface.
    pub preface: Duration,
    /// For anything later.
    pub keep_alive: KeepAlive,
}

/// How long to wait for a peer that sends nothing.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Before it gets a PING.
    pub interval: Duration,
    /// For any frame after that.
    pub timeout: Duration,
}

/// A request without a body that asked, over HTTP/1.1, for its answer over HTTP/2 (RFC 7540 section 3.2).
#[derive(Debug)]
pub struct Upgrade {
    pub(crate) request: Request<()>,
    pub(crate) settings: PeerSettings,
}

impl Upgrade {
    /// `settings` is the decoded value of its `HTTP2-Settings`; `None` when they cannot be settings.
    pub fn new(request: Request<()>, settings: &[u8]) -> Option<Self> {
        let mut peer = PeerSettings::default();
        peer.update(settings).ok()?;
        Some(Self {
            request,
            settings: peer,
        })
    }
}
