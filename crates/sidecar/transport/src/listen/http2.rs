//! Serves connections that speak only HTTP/2: gRPC.

use std::future::Future;
use std::sync::Arc;

use http::{Request, Response};
use outrigger_accept::budget;
use outrigger_grpc::unfinished::Unfinished;
use outrigger_http2::limits::HEADER_MEMORY;
use outrigger_http2::{Config, Error, Incoming, KeepAlive, Reason, Service, Timeouts, Upgrade};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::unfinished::unfinished;
use super::{Client, HANDSHAKE_TIMEOUT, Handler, MAX_STREAMS, Options, PING, SEND_BUFFER, Versions, WINDOWS};
use crate::body::{Body, BoxError};
use crate::http2::{MAX_STREAM_WINDOW, MAX_WINDOW_GROWTH, UNREAD_MEMORY, WINDOW_MEMORY};

const TIMEOUTS: Timeouts = Timeouts {
    preface: HANDSHAKE_TIMEOUT,
    keep_alive: KeepAlive {
        interval: PING.0,
        timeout: PING.1,
    },
};

/// Serves a connection until the client is done. Once draining, until its calls in flight are done. `upgrade`
/// holds the first request of an upgraded connection.
///
/// # Errors
/// Why the connection ended early.
pub(super) async fn serve<H, I>(
    io: I,
    handler: Arc<H>,
    client: Client,
    options: &Options,
    drain: &CancellationToken,
    upgrade: Option<Upgrade>,
) -> Result<(), Error>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = Config {
        stream_window: WINDOWS.0,
        connection_window: WINDOWS.1,
        max_stream_window: MAX_STREAM_WINDOW,
        window_growth: MAX_WINDOW_GROWTH,
        window_memory: Some(&WINDOW_MEMORY),
        unread_memory: Some(&UNREAD_MEMORY),
        max_streams: MAX_STREAMS,
        open_streams: Some(&budget::CALLS),
        header_list: options.header_list_limit,
        // At least two header lists of the largest size, so that one does not block all others.
        header_memory: HEADER_MEMORY.saturating_add((options.header_list_limit as usize).saturating_mul(2)),
        send_buffer: SEND_BUFFER,
        grpc: options.versions == Versions::Http2,
        ..Config::DEFAULT
    };
    let calls = Arc::new(Calls {
        handler,
        client: Arc::new(client),
        unfinished: unfinished(options),
    });
    outrigger_http2::serve(io, upgrade, calls, &config, TIMEOUTS, drain.cancelled()).await
}

/// The calls of one client.
struct Calls<H> {
    handler: Arc<H>,
    client: Arc<Client>,
    unfinished: Arc<Unfinished>,
}

impl<H: Handler> Service for Calls<H> {
    type Body = Body;

    fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + 'static {
        self.client.prove();
        let request = request.map(|body| match Body::from(body) {
            whole @ (Body::Empty | Body::Full(_)) => whole,
            body => body.counted(Some(Arc::clone(&self.unfinished))),
        });
        Arc::clone(&self.handler).handle(Arc::clone(&self.client), request)
    }

    fn connected(&self, is_busy: impl Fn() -> bool + Send + Sync + 'static) {
        self.client.keep_while(is_busy);
    }

    #[inline]
    fn reason(error: BoxError) -> Reason {
        Body::reset_reason(error)
    }
}
