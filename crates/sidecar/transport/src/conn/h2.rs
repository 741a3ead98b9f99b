//! A pool of HTTP/2 connections to one address: few connections, shared by many streams, opened on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use outrigger_http2::{Config, SendRequest};
use outrigger_identity::expiry;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::dial::DialErrorKind;
use super::resend::Unanswered;
use super::{DialError, Dialer, Io, SendError};
use crate::body::Body;
use crate::http2::{MAX_STREAM_WINDOW, MAX_WINDOW_GROWTH, WINDOW_MEMORY};

/// Streams on one connection before another is opened.
const STREAMS_PER_CONNECTION: usize = 100;
/// Most connections to one address; beyond that, streams queue.
const MAX_CONNECTIONS: usize = 64;
/// Time for connections to end at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Keep-alive to other sidecars, as they expect it: idle time before a ping, and its timeout.
const PEER_PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// Keep-alive to arbitrary servers. gRPC libraries close connections that are pinged more often than every 5
/// minutes, or without a call in flight.
const SERVER_PING: (Duration, Duration) = (Duration::from_secs(310), Duration::from_secs(20));
/// Keep-alive to placement, which pings every 2 s. After this much silence the sidecar is out of its tables.
const PLACEMENT_PING: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(1));
/// Keep-alive to schedulers, which ping every 3 s. Dapr's scheduler closes connections that are pinged as
/// often, so the sidecar pings only after a longer silence. It gives up after 8 s, as the contract requires.
const SCHEDULER_PING: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3));
/// Flow-control window of a stream, bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of a connection: it covers every stream's window, so unread streams do not block the
/// others.
const CONNECTION_WINDOW: u32 = STREAMS_PER_CONNECTION as u32 * STREAM_WINDOW;
/// Largest response header list, decoded, bytes.
const MAX_HEADER_LIST: u32 = 1024 * 1024;
/// Bytes of a request buffered for the peer, for each stream.
const SEND_BUFFER: usize = 256 * 1024;
const CONFIG: Config = Config {
    stream_window: STREAM_WINDOW,
    connection_window: CONNECTION_WINDOW,
    max_stream_window: MAX_STREAM_WINDOW,
    window_growth: MAX_WINDOW_GROWTH,
    window_memory: Some(&WINDOW_MEMORY),
    max_streams: STREAMS_PER_CONNECTION as u32,
    header_list: MAX_HEADER_LIST,
    send_buffer: SEND_BUFFER,
    ..Config::DEFAULT
};

/// When to ping a silent peer.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    ping: outrigger_http2::KeepAlive,
    /// Also ping without calls in flight.
    idle: bool,
}

impl KeepAlive {
    /// Other sidecars.
    pub const OF_PEERS: Self = Self::new(PEER_PING, true);
    /// Apps on other machines, and the control plane. Without calls in flight, TCP keep-alive detects a
    /// vanished peer.
    pub const OF_SERVERS: Self = Self::new(SERVER_PING, false);

    /// Placement: a silent server means that another has taken over.
    pub const OF_PLACEMENT: Self = Self::new(PLACEMENT_PING, true);

    /// Schedulers: their triggers and responses use connections that are otherwise silent for long.
    pub const OF_SCHEDULERS: Self = Self::new(SCHEDULER_PING, true);

    const fn new((interval, timeout): (Duration, Duration), idle: bool) -> Self {
        Self {
            ping: outrigger_http2::KeepAlive { interval, timeout },
            idle,
        }
    }
}

type Connection = Arc<PooledConnection>;

/// A connection of a pool.
struct PooledConnection {
    client: SendRequest<Io>,
    /// Whether the connection takes no new calls because a certificate expires soon.
    retired: Arc<AtomicBool>,
}

impl PooledConnection {
    fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.retired.load(Ordering::Relaxed)
    }
}

/// Pooled connections to one address.
pub struct H2Pool {
    dialer: Dialer,
    scheme: Scheme,
    authority: Authority,
    connections: Arc<ArcSwap<Vec<Connection>>>,
    /// When an attempt to connect last timed out, and its timeout.
    dialing: Mutex<Option<(Instant, Duration)>>,
    keep_alive: Option<KeepAlive>,
    /// One task for each connection.
    tasks: TaskTracker,
}

impl H2Pool {
    /// A pool without connections; without `keep_alive`, peers are not pinged.
    pub fn new(dialer: Dialer, keep_alive: Option<KeepAlive>) -> Self {
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
            connections: Arc::default(),
            dialing: Mutex::new(None),
            keep_alive,
            tasks: TaskTracker::new(),
        }
    }

    /// Closes the connections and waits for calls in flight, up to a limit.
    pub async fn close(&self) {
        self.reset();
        self.tasks.close();
        let _cut_off = tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await;
    }

    /// `host:port` of the peer.
    pub fn address(&self) -> &str {
        self.dialer.address()
    }

    /// Drops all connections: streams in flight finish, new ones dial.
    pub fn reset(&self) {
        self.connections.store(Arc::default());
    }

    /// Number of connections that take calls.
    pub fn connections(&self) -> usize {
        self.connections.load().iter().filter(|c| c.is_usable()).count()
    }

    /// Whether no stream is in flight.
    pub fn is_idle(&self) -> bool {
        self.connections.load().iter().all(|c| c.client.streams() == 0)
    }

    fn usable(&self) -> Option<Connection> {
        let connections = self.connections.load();
        let open = connections.iter().filter(|c| c.is_usable());
        let best = open.min_by_key(|c| c.client.streams())?;
        let full = best.client.streams() >= STREAMS_PER_CONNECTION;
        (!full || connections.len() >= MAX_CONNECTIONS).then(|| Arc::clone(best))
    }

    /// Opens a connection if none takes calls.
    ///
    /// # Errors
    /// [`DialError`] if none could be opened.
    pub async fn connect(&self) -> Result<(), DialError> {
        match self.usable() {
            Some(_) => Ok(()),
            None => self.open().await.map(|_| ()),
        }
    }

    /// Opens a connection, unless another call just did or just timed out.
    async fn open(&self) -> Result<Connection, DialError> {
        let since = Instant::now();
        let mut one_at_a_time = self.dialing.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        // Waiting callers share the outcome of the attempt. One attempt after another would add up their
        // timeouts.
        if let Some((at, limit)) = *one_at_a_time
            && at >= since
        {
            return Err(self.dialer.error(DialErrorKind::Timeout(limit)));
        }
        let connection = self.dial().await.inspect_err(|error| {
            if let DialErrorKind::Timeout(limit) = error.kind {
                *one_at_a_time = Some((Instant::now(), limit));
            }
        })?;
        let connection = Arc::new(connection);
        let mut connections: Vec<_> = Vec::clone(&self.connections.load());
        connections.retain(|c| c.is_usable());
        connections.push(Arc::clone(&connection));
        self.connections.store(Arc::new(connections));
        Ok(connection)
    }

    async fn dial(&self) -> Result<PooledConnection, DialError> {
        let io = self.dialer.dial().await?;
        let end = self.dialer.valid_until(&io);
        let config = Config {
            ping_idle: self.keep_alive.is_none_or(|keep_alive| keep_alive.idle),
            ..CONFIG
        };
        let ping = self.keep_alive.map(|keep_alive| keep_alive.ping);
        let (client, connection) = outrigger_http2::connect(io, &config, ping);
        let address = self.dialer.address().to_owned();
        // The task ends when the pool and all streams drop their handles, or when the peer closes.
        let retired = Arc::new(AtomicBool::new(false));
        let retire = Arc::clone(&retired);
        let pool = Arc::downgrade(&self.connections);
        self.tasks.spawn(async move {
            let expired = async {
                let Some(end) = end else {
                    return std::future::pending().await;
                };
                expiry::reached(expiry::last_quarter(end)).await;
                // Calls in flight have the remaining time.
                retire.store(true, Ordering::Relaxed);
                expiry::reached(end).await;
            };
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(target: "dapr.runtime.conn", "connection to {address} ended: {error}");
                },
                () = expired => {
                    tracing::info!(target: "dapr.runtime.conn", "closed a connection to {address}: a certificate expired");
                }
            }
            // The socket closes once the last handle is dropped.
            retire.store(true, Ordering::Relaxed);
            if let Some(connections) = pool.upgrade() {
                connections.rcu(|connections| {
                    let others = connections.iter().filter(|c| !Arc::ptr_eq(&c.retired, &retire));
                    others.cloned().collect::<Vec<_>>()
                });
            }
        });
        Ok(PooledConnection { client, retired })
    }

    /// Sends a request. A connection that broke before taking it is replaced once (see `resend.rs`).
    ///
    /// # Errors
    /// [`SendError`] if no connection could be opened or it broke before the response head.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, SendError> {
        self.address_request(&mut request);
        let mut is_last = false;
        loop {
            let connection = match self.usable() {
                Some(connection) => connection,
                // Boxed: the rare path must not widen the future of every call.
                None => Box::pin(self.open()).await?,
            };
            let failed = match connection.client.send(request, Body::reset_reason).await {
                Ok(response) => return Ok(response.map(Body::from)),
                Err(failed) => failed,
            };
            let unanswered = Unanswered {
                why: failed.error.into(),
                unsent: failed.request,
            };
            request = unanswered.again(None, is_last, self.address())?;
            is_last = true;
        }
    }

    /// Sets scheme and authority (RFC 9113 section 8.3.1), and for plain HTTP the length of the body; gRPC
    /// has its own framing.
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

#[cfg(test)]
mod tests;
