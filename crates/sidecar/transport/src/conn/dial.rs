//! Opening a connection: TCP, optionally TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_accept::is_out_of_descriptors;
use outrigger_identity::{Expect, Identity, expiry};
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Pause before a retry when the process is out of file descriptors.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);

/// The byte stream of a client connection.
pub enum Io {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {address}: {kind}")]
pub struct DialError {
    /// `host:port` that was dialled.
    pub address: String,
    /// The reason; callers match on it.
    pub kind: DialErrorKind,
}

/// The step of dialling that failed.
#[derive(Debug, thiserror::Error)]
pub enum DialErrorKind {
    /// TCP connect, or an address that cannot be resolved.
    #[error("{0}")]
    Connect(io::Error),
    /// The TLS handshake failed, for example because the peer has another identity.
    #[error("TLS handshake: {0}")]
    Handshake(io::Error),
    /// The HTTP/1.1 handshake failed.
    #[error("HTTP/1.1: {0}")]
    Http(hyper::Error),
    /// The attempt timed out.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// Opens connections to one address.
#[derive(Clone)]
pub struct Dialer {
    address: Arc<str>,
    tls: Option<(Arc<rustls::ClientConfig>, ServerName<'static>)>,
    /// The client certificate.
    identity: Option<Identity>,
    timeout: Duration,
}

impl Dialer {
    /// Plain TCP to `host:port`.
    pub fn plain(address: impl Into<Arc<str>>, timeout: Duration) -> Self {
        Self {
            address: address.into(),
            tls: None,
            identity: None,
            timeout,
        }
    }

    /// TLS to `host:port`; `name` is the server name in the handshake.
    pub fn tls(
        address: impl Into<Arc<str>>,
        config: Arc<rustls::ClientConfig>,
        name: ServerName<'static>,
        timeout: Duration,
    ) -> Self {
        Self {
            address: address.into(),
            tls: Some((config, name)),
            identity: None,
            timeout,
        }
    }

    /// Like [`Dialer::tls`], with a client certificate; only the peer `expect` is accepted.
    pub fn mutual(
        address: impl Into<Arc<str>>,
        identity: &Identity,
        expect: Expect,
        name: ServerName<'static>,
        timeout: Duration,
    ) -> Self {
        Self {
            identity: Some(identity.clone()),
            ..Self::tls(address, identity.client_config(expect), name, timeout)
        }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether connections are encrypted.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Wraps a failure with this address.
    pub fn error(&self, kind: DialErrorKind) -> DialError {
        DialError {
            address: self.address.to_string(),
            kind,
        }
    }

    /// When the first certificate of either end expires; `None` without TLS.
    pub fn valid_until(&self, io: &Io) -> Option<Timestamp> {
        let Io::Tls(stream) = io else { return None };
        let theirs = expiry::valid_until(stream.get_ref().1.peer_certificates()?).ok()?;
        let own = self.identity.as_ref().map(|identity| identity.svid().not_after());
        Some(own.map_or(theirs, |own| own.min(theirs)))
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// [`DialError`] naming the address and the step that failed.
    pub async fn dial(&self) -> Result<Io, DialError> {
        match tokio::time::timeout(self.timeout, self.open()).await {
            Ok(result) => result.map_err(|kind| self.error(kind)),
            Err(_) => Err(self.error(DialErrorKind::Timeout(self.timeout))),
        }
    }

    async fn open(&self) -> Result<Io, DialErrorKind> {
        let tcp = loop {
            match TcpStream::connect(&*self.address).await {
                // Callers hold all descriptors until the listeners have evicted connections.
                Err(error) if is_out_of_descriptors(&error) => tokio::time::sleep(DESCRIPTOR_PAUSE).await,
                connected => break connected.map_err(DialErrorKind::Connect)?,
            }
        };
        crate::tcp::prepare(&tcp).map_err(DialErrorKind::Connect)?;
        let Some((config, name)) = &self.tls else {
            return Ok(Io::Tcp(tcp));
        };
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name.clone(), tcp)
            .await;
        Ok(Io::Tls(Box::new(stream.map_err(DialErrorKind::Handshake)?)))
    }
}

impl Io {
    /// The underlying TCP connection.
    #[inline]
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Io {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    #[inline]
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
