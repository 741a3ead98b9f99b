//! What the data path asks of HTTP/2, and what it gets: the one trait that every implementation has.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{Error, Reason, StreamError};
use crate::settings::{Config, PeerSettings};

/// The bytes of a connection.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> Io for I {}

/// An implementation of HTTP/2.
///
/// Which one a program uses is a type, so that a call costs no dispatch. They differ in their limits against hostile
/// peers: see each implementation.
pub trait Http2: Sized + Send + Sync + 'static {
    /// The body of a message that was received. The sender gets room for more as fast as somebody reads.
    type Body: Body<Data = Bytes, Error = StreamError> + Send + Unpin + std::fmt::Debug + 'static;
    /// What sends requests on a connection.
    type Client<I: Io>: Client<Body = Self::Body>;
    /// What moves a connection's bytes: runs until the [`Client`] is dropped and its last request is over, or until the
    /// connection ends; the error tells why it ended early.
    type Connection<I: Io>: Future<Output = Result<(), Error>> + Send + 'static;
    /// Whether [`serve`](Self::serve) can begin with an [`Upgrade`].
    const UPGRADES: bool;

    /// Serves a connection until the client is done, or, once `drain` is ready, until the calls in flight are.
    /// `upgrade` is the request of stream 1, where the connection was upgraded to HTTP/2 and the answer to that was
    /// sent; only where [`UPGRADES`](Self::UPGRADES) is true.
    ///
    /// # Errors
    /// Why the connection ended early.
    fn serve<I, S, D>(
        io: I,
        upgrade: Option<Upgrade>,
        service: Arc<S>,
        config: &Config,
        timeouts: Timeouts,
        drain: D,
    ) -> impl Future<Output = Result<(), Error>> + Send
    where
        I: Io,
        S: Service<Self::Body>,
        D: Future<Output = ()> + Send;

    /// Makes a client connection of a socket. Nothing happens on it unless the second value runs, as a task of its own.
    ///
    /// # Errors
    /// The socket failed at once.
    fn connect<I: Io>(
        io: I,
        config: &Config,
        keep_alive: Option<KeepAlive>,
    ) -> impl Future<Output = Connected<Self, I>> + Send;
}

/// The two halves of a client connection, or why there is none.
pub type Connected<H, I> = Result<(<H as Http2>::Client<I>, <H as Http2>::Connection<I>), Error>;

/// Answers requests; `B` is the body of one that comes in pieces.
pub trait Service<B>: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes> + Send + Unpin + 'static;

    /// Answers one request. The future is dropped when the client does not want the answer any more.
    fn call(
        self: Arc<Self>,
        request: Request<Incoming<B>>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// A connection begins; `is_busy` tells at any time, without a lock, whether it has a request that is not over.
    fn connected(&self, is_busy: impl Fn() -> bool + Send + Sync + 'static) {
        drop(is_busy);
    }

    /// What the client is told when the body of an answer fails.
    fn reason(error: <Self::Body as Body>::Error) -> Reason;
}

/// Sends requests, many at a time on one connection.
pub trait Client: Send + Sync + 'static {
    /// The body of a response.
    type Body;

    /// Requests that are not over: their responses have not been read to the end, or dropped.
    fn streams(&self) -> usize;

    /// True when no request can be sent any more.
    fn is_closed(&self) -> bool;

    /// Sends a request and waits for the head of the response. `reason` is what the peer is told when the body fails.
    ///
    /// # Errors
    /// [`TrySendError`].
    fn send<B>(
        &self,
        request: Request<B>,
        reason: fn(B::Error) -> Reason,
    ) -> impl Future<Output = Result<Response<Incoming<Self::Body>>, TrySendError<B>>> + Send
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static;
}

/// What is behind the head of a message.
#[derive(Debug)]
pub enum Incoming<B> {
    /// A body without bytes.
    Empty,
    /// All of it: it came together with the head.
    Full(Bytes),
    /// A body that streams.
    Stream(B),
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
