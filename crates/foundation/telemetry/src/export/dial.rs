//! Connections to collectors.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection, with or without TLS. One per batch at most: the indirection does not matter.
pub(super) type Connection = TokioIo<Box<dyn Io>>;

/// Opens connections.
#[derive(Clone)]
pub(super) struct Dialer {
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("tls", &self.tls.is_some())
            .finish()
    }
}

impl Dialer {
    /// With `secure`, TLS that trusts the operating system's roots and negotiates `alpn`.
    pub(super) fn new(secure: bool, alpn: &[u8]) -> Result<Self, rustls::Error> {
        if !secure {
            return Ok(Self { tls: None });
        }
        let roots = outrigger_tls::system_roots();
        if roots.is_empty() {
            tracing::warn!(
                target: "dapr.runtime",
                "no trusted root certificates found: TLS to the trace collector will fail (install ca-certificates, or \
                 set SSL_CERT_FILE)"
            );
        }
        Self::with_roots(roots, alpn)
    }

    pub(super) fn with_roots(roots: RootCertStore, alpn: &[u8]) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Self {
            tls: Some(TlsConnector::from(Arc::new(config))),
        })
    }

    /// Connects to the URI's host and port (the scheme's default port when it has none).
    pub(super) async fn connect(&self, uri: &Uri) -> io::Result<Connection> {
        let limited = tokio::time::timeout(CONNECT_LIMIT, self.open(uri)).await;
        limited.unwrap_or_else(|_| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("connecting to {uri} timed out"),
            ))
        })
    }

    async fn open(&self, uri: &Uri) -> io::Result<Connection> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let default_port = if self.tls.is_some() { 443 } else { 80 };
        let port = uri.port_u16().unwrap_or(default_port);
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
                Box::new(tls.connect(name, stream).await?)
            }
        };
        Ok(TokioIo::new(io))
    }
}
