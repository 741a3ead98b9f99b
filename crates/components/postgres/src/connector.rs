//! Connections with an answer limit.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use outrigger_component::answer::Filtered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::{
    Config, Socket,
    config::{Host, SslMode, SslNegotiation},
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::either::Either;

use super::frames::Frames;

type Rustls = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
type RustlsStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The message that requests TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// Creates the stream of a connection. As the driver's TLS connector it gets every connection, including
/// those without TLS.
#[derive(Clone)]
pub(super) struct Connector {
    tls: MakeRustlsConnect,
    /// Whether to negotiate TLS here; `None` if the driver did.
    mode: Option<SslMode>,
    limit: usize,
}

impl Connector {
    /// A connector, and a `config` that makes the driver use it for every connection. Unix sockets bypass it
    /// and have no limit.
    pub(super) fn new(
        tls: MakeRustlsConnect,
        mode: SslMode,
        config: &Config,
        limit: usize,
    ) -> (Self, Config) {
        let mut config = config.clone();
        let by_tcp = |host: &Host| matches!(host, Host::Tcp(_));
        let mode = config.get_hosts().iter().all(by_tcp).then_some(mode);
        if mode.is_some() {
            config
                .ssl_mode(SslMode::Require)
                .ssl_negotiation(SslNegotiation::Direct);
        }
        (Self { tls, mode, limit }, config)
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Bounded;
    type TlsConnect = Connecting;
    type Error = Cause;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connecting, Cause> {
        let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut self.tls, host)?;
        let (mode, limit) = (self.mode, self.limit);
        Ok(Connecting { tls, mode, limit })
    }
}

/// A connection being established.
pub(super) struct Connecting {
    tls: Rustls,
    mode: Option<SslMode>,
    limit: usize,
}

impl TlsConnect<Socket> for Connecting {
    type Stream = Bounded;
    type Error = Cause;
    type Future = BoxFuture<'static, Result<Bounded, Cause>>;

    fn connect(self, mut socket: Socket) -> Self::Future {
        Box::pin(async move {
            let is_secure = match self.mode {
                None => true,
                Some(SslMode::Disable) => false,
                Some(mode) => offers_tls(&mut socket, mode).await?,
            };
            let stream = match is_secure {
                true => Either::Right(self.tls.connect(socket).await?),
                false => Either::Left(socket),
            };
            Ok(Bounded(Filtered::new(stream, Frames::new(self.limit))))
        })
    }
}

/// Requests TLS; false if the server lacks it and the mode permits that.
async fn offers_tls(socket: &mut Socket, mode: SslMode) -> Result<bool, Cause> {
    socket.write_all(&SSL_REQUEST).await?;
    socket.flush().await?;
    match (socket.read_u8().await?, mode) {
        (b'S', _) => Ok(true),
        (_, SslMode::Require) => Err("server does not support TLS".into()),
        _ => Ok(false),
    }
}

/// A connection that the driver treats as TLS.
pub(super) struct Bounded(Filtered<Either<Socket, RustlsStream>, Frames>);

impl TlsStream for Bounded {
    fn channel_binding(&self) -> ChannelBinding {
        match self.0.get_ref() {
            Either::Left(_) => ChannelBinding::none(),
            Either::Right(tls) => tls.channel_binding(),
        }
    }
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
