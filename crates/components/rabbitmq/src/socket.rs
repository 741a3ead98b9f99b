//! The byte stream below AMQP: the client's own streams do not support our TLS.

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use async_compat::Compat;
use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls::ClientConfig};

use super::frames::{Frames, Limits};

pub(super) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A connection with or without TLS.
pub(super) type Socket = Compat<Box<dyn Bytes>>;

/// TLS settings and the expected server name.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    pub(super) fn new(config: ClientConfig, host: &str) -> Result<Self, String> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            name: name.map_err(|error| format!("the host: {error}"))?,
        })
    }
}

/// Connects to a broker, whose output is limited by `limits`.
pub(super) async fn connect(host: &str, port: u16, tls: Option<&Tls>, limits: Limits) -> io::Result<Socket> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(Compat::new(match tls {
        None => Box::new(Frames::new(stream, limits)),
        Some(tls) => {
            let stream = tls.connector.connect(tls.name.clone(), stream).await?;
            Box::new(Frames::new(stream, limits))
        }
    }))
}

/// Tokio with our sockets.
#[derive(Debug, Clone)]
pub(super) struct Sockets(Tokio);

pub(super) fn runtime() -> Runtime<RuntimeParts<Tokio, Sockets>> {
    Runtime::new(RuntimeParts::new(Tokio::current(), Sockets(Tokio::current())))
}

impl Reactor for Sockets {
    type TcpStream = Socket;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// The client creates its sockets only with [`connect`].
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _socket: H,
    ) -> io::Result<impl futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static> {
        Err::<Socket, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl futures::Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    #[expect(clippy::manual_async_fn, reason = "the future must not borrow the runtime")]
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        async move {
            let stream = TcpStream::connect(address).await?;
            Ok(Compat::new(Box::new(stream) as Box<dyn Bytes>))
        }
    }
}
