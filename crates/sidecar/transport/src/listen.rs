//! Listening sockets and accepted connections.

mod connections;
mod h2c;
mod held;
mod http1;
mod http2;
mod unfinished;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use outrigger_accept::{Accept, Accepted, Admission, Limits, Permit};
use outrigger_grpc::unfinished::Bounds;
use outrigger_identity::{SpiffeId, expiry};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::body::Body;

pub use connections::{api_connections, peer_connections, public_connections};
pub use held::HeldAnswers;
pub use http1::Received;
#[cfg(feature = "fuzzing")]
pub use http1::{fuzz_body_end, fuzz_head};
pub use unfinished::unfinished_bounds;

const LOG: &str = "dapr.runtime.listen";
/// Length of the accept queue.
const BACKLOG: i32 = 1024;
/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Grace period for calls in flight once the client certificate has expired.
const EXPIRED_GRACE: Duration = Duration::from_secs(5);
/// Timeout for an HTTP/1.1 request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 keep-alive: idle time before a ping, and its timeout.
const PING: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// Concurrent streams of one HTTP/2 client.
const MAX_STREAMS: u32 = 4096;
/// Flow-control windows of HTTP/2 servers: stream, connection (bytes). The connection window covers as many
/// full stream windows as sidecars open on one connection, so unread streams do not block the others.
const WINDOWS: (u32, u32) = (256 * 1024, 128 * 256 * 1024);
/// Bytes buffered per HTTP/2 stream towards the client.
const SEND_BUFFER: usize = 256 * 1024;

/// A listening socket.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket, removed when dropped.
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _already_gone = std::fs::remove_file(&self.0);
    }
}

/// A bound socket that refuses connections until [`Bound::listen`]. Binding first reserves the port; clients
/// fail at once instead of waiting for a server that is still starting.
pub enum Bound {
    /// TCP.
    Tcp(Socket),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Bound {
    /// The TCP port.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(socket) => socket.local_addr().ok()?.as_socket().map(|a| a.port()),
            Self::Unix(_) => None,
        }
    }

    /// Whether this and `other` cannot both listen. Both can be bound, because the sockets allow address
    /// reuse; the first to listen wins.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(two)) => {
                let address = |socket: &Socket| socket.local_addr().ok()?.as_socket();
                let (Some(first), Some(second)) = (address(one), address(two)) else {
                    return false;
                };
                first.port() == second.port()
                    && (first.ip() == second.ip() || covers(one, first, second) || covers(two, second, first))
            }
            (Self::Unix(one), Self::Unix(two)) => one == two,
            _ => false,
        }
    }

    /// Starts listening.
    ///
    /// # Errors
    /// [`BindError`] if another process already listens.
    pub fn listen(self) -> Result<Listener, BindError> {
        let (what, result) = match self {
            Self::Tcp(socket) => {
                let what = socket.local_addr().ok().and_then(|a| a.as_socket());
                let listener = socket
                    .listen(BACKLOG)
                    .and_then(|()| TcpListener::from_std(socket.into()));
                (
                    what.map_or_else(String::new, |a| a.to_string()),
                    listener.map(Listener::Tcp),
                )
            }
            Self::Unix(path) => {
                let listener = UnixListener::bind(&path);
                (
                    path.display().to_string(),
                    listener.map(|l| Listener::Unix(l, SocketFile(path))),
                )
            }
        };
        result.map_err(|source| BindError { what, source })
    }
}

/// Whether a socket bound to `own` listens on every interface, including that of `other`.
fn covers(socket: &Socket, own: SocketAddr, other: SocketAddr) -> bool {
    let both = || own.is_ipv6() && !socket.only_v6().unwrap_or(true);
    own.ip().is_unspecified() && (own.is_ipv4() == other.is_ipv4() || both())
}

impl Listener {
    /// The TCP port.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|a| a.port()),
            Self::Unix(..) => None,
        }
    }
}

/// A failure to bind.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct BindError {
    what: String,
    source: io::Error,
}

impl BindError {
    /// The error kind of the operating system.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// Binds `port` on each address; an empty address is every interface. An address that fails or repeats an
/// earlier one is logged and skipped, as long as another works.
///
/// # Errors
/// [`BindError`] if none works.
pub fn bind(addresses: &[String], port: u16) -> Result<Vec<Bound>, BindError> {
    let mut listeners: Vec<Bound> = Vec::new();
    let mut failed = None;
    for address in addresses {
        match bind_one(address, port).map(Bound::Tcp) {
            Ok(bound) if listeners.iter().any(|before| before.overlaps(&bound)) => {
                tracing::debug!(target: LOG, "already listening on {address}:{port}");
            }
            Ok(bound) => listeners.push(bound),
            Err(source) => {
                tracing::debug!(target: LOG, "Failed to listen on {address}:{port}: {source}");
                failed = Some(BindError {
                    what: format!("{address}:{port}"),
                    source,
                });
            }
        }
    }
    match failed {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

fn bind_one(address: &str, port: u16) -> io::Result<Socket> {
    let bare = address.trim().trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() {
        let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        return claim(any6, true).or_else(|_| claim((Ipv4Addr::UNSPECIFIED, port).into(), false));
    }
    let mut last = io::Error::new(
        io::ErrorKind::NotFound,
        "the address does not resolve to an IP address",
    );
    for address in std::net::ToSocketAddrs::to_socket_addrs(&(bare, port))? {
        match claim(address, false) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn claim(address: SocketAddr, dual_stack: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!dual_stack)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Claims the path of a Unix socket. Only a stale socket of an ended process is removed, no other file.
///
/// # Errors
/// [`BindError`] naming the path.
pub fn bind_unix(path: &Path) -> Result<Bound, BindError> {
    let failed = |source| BindError {
        what: path.display().to_string(),
        source,
    };
    let refused = |kind, text| Err(failed(io::Error::new(kind, text)));
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return refused(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket has this name",
            );
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return refused(io::ErrorKind::AddrInUse, "another process listens here");
        }
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
    }
    Ok(Bound::Unix(path.to_owned()))
}

/// The client of a connection.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// Its address; `None` on Unix sockets.
    pub address: Option<SocketAddr>,
    /// Its SPIFFE identity; `None` without mTLS.
    pub identity: Option<SpiffeId>,
    /// Its slot in the server's connection limit, if the server counts connections.
    pub permit: Option<Arc<Permit>>,
}

impl Client {
    /// The client has authenticated or sent a complete request head.
    #[inline]
    fn prove(&self) {
        if let Some(permit) = &self.permit {
            permit.prove();
        }
    }

    /// Keeps the connection from being evicted while `busy`.
    #[inline]
    fn keep_while(&self, busy: impl Fn() -> bool + Send + Sync + 'static) {
        if let Some(permit) = &self.permit {
            permit.keep_while(busy);
        }
    }
}

/// Handles requests.
pub trait Handler: Send + Sync + 'static {
    /// Handles one request of a client.
    fn handle(
        self: Arc<Self>,
        client: Arc<Client>,
        request: Request<Body>,
    ) -> impl Future<Output = Response<Body>> + Send;
}

/// Settings of a server.
#[derive(Clone)]
pub struct Options {
    /// HTTP versions served.
    pub versions: Versions,
    /// Mutual TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// `--read-buffer-size`: bytes of a request head.
    pub head_limit: usize,
    /// Bytes of an HTTP/2 header list.
    pub header_list_limit: u32,
    /// Connection limits, for all addresses together.
    pub connections: Limits,
    /// Limit of responses that HTTP/1.1 clients have not read.
    pub held: HeldAnswers,
    /// Limits of buffered incomplete requests: [`unfinished_bounds`].
    pub unfinished: Bounds,
}

/// Versions of HTTP a server speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Versions {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Both,
    /// HTTP/2 only: gRPC.
    Http2,
}

/// Accepts connections until `drain` is cancelled, then waits until all have finished their calls in flight.
/// Listeners of one server share `admission`.
pub async fn serve<H: Handler>(
    listener: Listener,
    admission: Admission,
    handler: Arc<H>,
    options: Options,
    drain: CancellationToken,
) {
    let server = Arc::new(Server { handler, options });
    let handle = |accepted| Arc::clone(&server).connection(accepted);
    outrigger_accept::serve(listener, admission, drain, handle).await;
}

/// An accepted connection.
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Through a Unix socket.
    Unix(UnixStream),
}

impl Accept for Listener {
    type Stream = Stream;
    type Peer = Option<SocketAddr>;

    async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                if let Err(error) = crate::tcp::prepare(&stream) {
                    tracing::debug!(
                        target: LOG,
                        "cannot set the socket options of a connection of {address}: {error}"
                    );
                }
                Ok((Stream::Tcp(stream), Some(address)))
            }
            Self::Unix(listener, _) => {
                let (stream, _unnamed) = listener.accept().await?;
                Ok((Stream::Unix(stream), None))
            }
        }
    }

    fn source(peer: Option<SocketAddr>) -> Option<IpAddr> {
        peer.map(|address| address.ip())
    }

    fn describe(&self) -> String {
        match self {
            Self::Tcp(listener) => listener.describe(),
            Self::Unix(_, file) => file.0.display().to_string(),
        }
    }
}

struct Server<H> {
    handler: Arc<H>,
    options: Options,
}

impl<H: Handler> Server<H> {
    async fn connection(self: Arc<Self>, accepted: Accepted<Stream, Option<SocketAddr>>) {
        let client = Client {
            address: accepted.peer,
            identity: None,
            permit: Some(accepted.permit),
        };
        let drain = accepted.drain;
        match (accepted.stream, &self.options.tls) {
            (Stream::Unix(stream), _) => self.drive(stream, client, &drain).await,
            (Stream::Tcp(stream), None) => self.drive(stream, client, &drain).await,
            (Stream::Tcp(stream), Some(config)) => {
                Box::pin(self.mutual(config, stream, client, drain)).await;
            }
        }
    }

    async fn mutual(
        &self,
        config: &Arc<rustls::ServerConfig>,
        stream: TcpStream,
        mut client: Client,
        drain: CancellationToken,
    ) {
        let address = client
            .address
            .map_or_else(String::new, |address| address.to_string());
        let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        let handshake = tokio::select! {
            handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => handshake,
            () = drain.cancelled() => return,
        };
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(target: LOG, "TLS handshake of {address} failed: {error}");
                return;
            }
            Err(_) => {
                tracing::debug!(target: LOG, "TLS handshake of {address} took longer than {HANDSHAKE_TIMEOUT:?}");
                return;
            }
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let end = match outrigger_identity::peer_id(chain)
            .and_then(|id| Ok((id, expiry::valid_until(chain)?)))
        {
            Ok((id, end)) => {
                client.identity = Some(id);
                end
            }
            Err(error) => {
                tracing::warn!(target: LOG, "the client certificate of {address} has no valid SPIFFE id: {error}");
                return;
            }
        };
        client.prove();
        let ending = drain.child_token();
        let mut driving = std::pin::pin!(self.drive(stream, client, &ending));
        tokio::select! {
            () = &mut driving => return,
            () = expiry::reached(end) => {}
        }
        tracing::info!(target: LOG, "the client certificate of {address} expired at {end}: closing its connection");
        ending.cancel();
        let _cut_off = tokio::time::timeout(EXPIRED_GRACE, driving).await;
    }

    async fn drive<I>(&self, io: I, client: Client, drain: &CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handler = Arc::clone(&self.handler);
        let result = match self.options.versions {
            Versions::Http2 => http2::serve(io, handler, client, &self.options, drain, None)
                .await
                .map_err(Into::into),
            _ => http1::serve(io, handler, client, &self.options, drain).await,
        };
        if let Err(error) = result {
            tracing::debug!(target: LOG, "connection ended: {}", crate::error::chain(error.as_ref()));
        }
    }
}

#[cfg(test)]
mod tests;
