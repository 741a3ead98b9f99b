//! Serves one connection, with timeouts and a graceful end.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{body::Incoming, server::conn::http2, service::HttpService};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::lifetime::Lifetime;

/// Idle time before a gRPC peer is pinged.
const PING_AFTER: Duration = Duration::from_secs(60);
/// Timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent calls per gRPC connection.
const MAX_STREAMS: u32 = 100;
/// Maximum size of request headers in bytes.
const MAX_HEADER: usize = 16 << 10;

/// Serves HTTP/2, for gRPC, for as long as `lifetime` allows.
pub(crate) async fn http2<I, S>(io: I, service: S, lifetime: Arc<Lifetime>, drain: CancellationToken)
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
    let end = async {
        tokio::select! {
            () = drain.cancelled() => {}
            () = lifetime.expired() => {
                tracing::debug!(
                    target: "dapr.sentry.server",
                    "closing a connection that has reached its maximum age"
                );
            }
        }
    };
    outrigger_accept::finish(Box::pin(connection), end).await;
}
