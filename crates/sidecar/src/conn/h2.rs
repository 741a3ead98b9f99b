//! HTTP/2 connections to one address: few, shared by many streams, opened on demand.

mod exchange;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use tokio::sync::Mutex;

use super::dial::DialErrorKind;
use super::{DialError, Dialer, Io, SendError};
use crate::body::Body;
use crate::http2::{Drive, Driver, Ended, Gather, InFlight, Outgoing};
use exchange::{Unanswered, exchange};

/// Streams on one connection before another is opened.
const STREAMS_PER_CONNECTION: usize = 100;
/// Connections to one address at most; beyond that streams queue.
const MAX_CONNECTIONS: usize = 64;
/// Flow-control window of a stream, bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of a connection, bytes: room for every stream's window, so that streams nobody reads cannot
/// stop the others.
const CONNECTION_WINDOW: u32 = STREAMS_PER_CONNECTION as u32 * STREAM_WINDOW;
/// Bytes buffered per stream towards the peer.
const SEND_BUFFER: usize = 256 * 1024;
/// Response header bytes accepted.
const MAX_HEADER_LIST: u32 = 1024 * 1024;

/// A connection as its task and the requests on it see it.
type Wire = Arc<Driver<Dialled>>;

/// What is driven.
struct Dialled {
    connection: h2::client::Connection<Gather<Io>, Bytes>,
    out: Outgoing<Io>,
}

impl Drive for Dialled {
    fn poll_drive(&mut self, _: &Wire, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let ended = Pin::new(&mut self.connection).poll(cx)?;
        match (ended, self.out.poll_flush(cx)?) {
            (Poll::Ready(()), _) => Poll::Ready(Ok(())),
            (Poll::Pending, _) => Poll::Pending,
        }
    }
}

struct Connection {
    sender: SendRequest<Bytes>,
    wire: Wire,
    in_flight: Arc<AtomicUsize>,
    /// Set when no new stream can be opened.
    closed: Arc<AtomicBool>,
}

impl Connection {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Connections to one address.
pub struct H2Pool {
    dialer: Dialer,
    scheme: Scheme,
    authority: Authority,
    connections: ArcSwap<Vec<Arc<Connection>>>,
    dialing: Mutex<()>,
    keep_alive: Option<(Duration, Duration)>,
}

impl H2Pool {
    /// A pool without connections; `keep_alive` is ping interval and time to answer, also when idle.
    pub fn new(dialer: Dialer, keep_alive: Option<(Duration, Duration)>) -> Self {
        let scheme = if dialer.is_tls() {
            Scheme::HTTPS
        } else {
            Scheme::HTTP
        };
        let authority =
            Authority::try_from(dialer.address()).unwrap_or_else(|_| Authority::from_static("localhost"));
        Self {
            dialer,
            scheme,
            authority,
            connections: ArcSwap::default(),
            dialing: Mutex::new(()),
            keep_alive,
        }
    }

    /// `host:port` of the peer.
    pub fn address(&self) -> &str {
        self.dialer.address()
    }

    /// Forgets all connections: running streams finish, new ones dial.
    pub fn reset(&self) {
        self.connections.store(Arc::default());
    }

    /// True when no stream is running.
    pub fn is_idle(&self) -> bool {
        self.connections
            .load()
            .iter()
            .all(|c| c.in_flight.load(Ordering::Relaxed) == 0)
    }

    fn usable(&self) -> Option<Arc<Connection>> {
        let connections = self.connections.load();
        let best = connections
            .iter()
            .filter(|c| !c.is_closed())
            .min_by_key(|c| c.in_flight.load(Ordering::Relaxed))?;
        let full = best.in_flight.load(Ordering::Relaxed) >= STREAMS_PER_CONNECTION;
        (!full || connections.len() >= MAX_CONNECTIONS).then(|| Arc::clone(best))
    }

    /// Opens a connection, unless another call just did.
    async fn open(&self) -> Result<Arc<Connection>, DialError> {
        let _one_at_a_time = self.dialing.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        let connection = Arc::new(self.connect().await?);
        let mut connections: Vec<_> = Vec::clone(&self.connections.load());
        connections.retain(|c| !c.is_closed());
        connections.push(Arc::clone(&connection));
        self.connections.store(Arc::new(connections));
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, DialError> {
        let (io, out) = Gather::new(self.dialer.dial().await?);
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            .handshake(io)
            .await;
        let (sender, mut connection) = handshake.map_err(|e| self.dialer.error(DialErrorKind::Http2(e)))?;
        let pings = connection.ping_pong().zip(self.keep_alive);
        let wire = Driver::new(Dialled { connection, out });
        let closed = Arc::new(AtomicBool::new(false));
        let (address, flag, driven) = (
            self.dialer.address().to_owned(),
            Arc::clone(&closed),
            Arc::clone(&wire),
        );
        // Ends by itself: when the pool and all streams drop their handles, or when the peer goes away.
        tokio::spawn(async move {
            let ended = driven.run_watched(pings).await;
            flag.store(true, Ordering::Relaxed);
            if let Err(error) = ended {
                tracing::debug!(target: "dapr.runtime.conn", "connection to {address} ended: {error}");
            }
        });
        Ok(Connection {
            sender,
            wire,
            in_flight: Arc::default(),
            closed,
        })
    }

    /// Sends a request; a connection that died before taking it is replaced once.
    ///
    /// # Errors
    /// [`SendError`] when no connection could be made or the connection broke before the response head.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, SendError> {
        self.address_request(&mut request);
        for last in [false, true] {
            let connection = match self.usable() {
                Some(connection) => connection,
                // Boxed: the rare path should not widen every call.
                None => Box::pin(self.open()).await?,
            };
            let in_flight = InFlight::new(&connection.in_flight);
            match exchange(connection.sender.clone(), &connection.wire, request, in_flight).await {
                Ok(response) => return Ok(response),
                Err(Unanswered { error, unsent }) => {
                    if unsent.is_some() || error.is_go_away() || error.is_io() {
                        connection.closed.store(true, Ordering::Relaxed);
                    }
                    match unsent {
                        Some(unsent) if !last => request = unsent,
                        unsent => {
                            return Err(SendError::Broken {
                                address: self.address().to_owned(),
                                repeatable: unsent.is_some() || was_refused(&error),
                                source: error.into(),
                            });
                        }
                    }
                }
            }
        }
        unreachable!("the last round returns")
    }
}

impl H2Pool {
    /// HTTP/2 requests carry scheme and authority (RFC 9113 section 8.3.1). HTTP servers like to know the length of
    /// a body; gRPC has its own.
    fn address_request(&self, request: &mut Request<Body>) {
        *request.version_mut() = http::Version::HTTP_2;
        if let Some(length) = request.body().known_length()
            && length > 0
            && !crate::grpc::is_grpc(request.headers())
        {
            request.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        if request.uri().authority().is_some() {
            return;
        }
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        if parts.path_and_query.is_none() {
            parts.path_and_query = Some(PathAndQuery::from_static("/"));
        }
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// The peer said that it did not look at the stream: RFC 9113 sections 6.8 and 8.7.
fn was_refused(error: &h2::Error) -> bool {
    error.reason() == Some(h2::Reason::REFUSED_STREAM)
        || (error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}
