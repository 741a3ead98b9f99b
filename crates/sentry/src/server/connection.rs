//! Serving one connection: time limits, and an orderly end.

use std::{convert::Infallible, future::Future, pin::pin, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::{HttpService, Service},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time limit for the header of a request.
const HEADER: Duration = Duration::from_secs(10);
/// A gRPC connection on which nothing is asked for this long is closed.
const FIRST_REQUEST: Duration = Duration::from_secs(60);
/// Silence after which a gRPC peer is asked whether it is still there.
const PING_AFTER: Duration = Duration::from_secs(60);
/// Time limit of its answer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that open connections have to finish once the process shuts down.
const GRACE: Duration = Duration::from_secs(5);
/// Calls at the same time on one gRPC connection.
const MAX_STREAMS: u32 = 100;
/// Largest header of a request, in bytes.
const MAX_HEADER: usize = 16 << 10;

/// The TLS handshake; `None` when it fails, takes too long, or the process shuts down.
pub(crate) async fn handshake(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    drain: &CancellationToken,
) -> Option<TlsStream<TcpStream>> {
    let accept = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream));
    let outcome = tokio::select! {
        () = drain.cancelled() => return None,
        outcome = accept => outcome,
    };
    match outcome {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(target: "dapr.sentry", "TLS handshake failed: {error}"),
        Err(_) => tracing::debug!(target: "dapr.sentry", "TLS handshake took longer than {HANDSHAKE:?}"),
    }
    None
}

/// Serves HTTP/1.1.
pub(crate) async fn http1<I, S, B>(io: I, service: S, drain: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        .max_buf_size(MAX_HEADER)
        .serve_connection(TokioIo::new(io), service);
    run(connection, drain).await;
}

/// Serves HTTP/2, for gRPC. `seen` completes when the first request arrives.
pub(crate) async fn http2<I, S>(io: I, service: S, seen: impl Future<Output = ()>, drain: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: HttpService<Incoming, Error = Infallible>,
    S::ResBody: http_body::Body + 'static,
    <S::ResBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send + 'static,
    TokioExecutor: hyper::rt::bounds::Http2ServerConnExec<S::Future, S::ResBody>,
{
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER as u32)
        .serve_connection(TokioIo::new(io), service);
    let idle = async {
        if tokio::time::timeout(FIRST_REQUEST, seen).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = run(connection, drain) => {}
        () = idle => tracing::debug!(target: "dapr.sentry.server", "Closed a connection without requests"),
    }
}

/// Drives a connection to its end. On shutdown it is told to finish, and cut off after a while.
async fn run<C: GracefulConnection>(connection: C, drain: CancellationToken)
where
    C::Error: std::fmt::Display,
{
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = drain.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(target: "dapr.sentry", "A connection ended early: {error}");
    }
}
