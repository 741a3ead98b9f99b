//! Serves connections that speak nothing but HTTP/2: gRPC.

use std::future::Future;
use std::sync::Arc;

use http::{Request, Response};
use outrigger_http2::limits::HEADER_MEMORY;
use outrigger_http2::{Config, Ended, Incoming, Load, Reason, Service, Silence, Times, Upgrade};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Client, HANDSHAKE_TIMEOUT, Handler, MAX_STREAMS, Options, PING, SEND_BUFFER, Versions, WINDOWS};
use crate::body::{Body, BoxError};

const TIMES: Times = Times {
    preface: HANDSHAKE_TIMEOUT,
    silence: Silence {
        interval: PING.0,
        patience: PING.1,
    },
};

/// Serves a connection until the client is done, or, once draining, until the calls in flight are. `upgrade` is what an
/// upgraded connection begins with.
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
) -> Result<(), Ended>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = Config {
        stream_window: WINDOWS.0,
        connection_window: WINDOWS.1,
        max_streams: MAX_STREAMS,
        header_list: options.header_list_limit,
        // Never so little that one list of the largest size leaves no room for others.
        header_memory: HEADER_MEMORY.saturating_add((options.header_list_limit as usize).saturating_mul(2)),
        send_buffer: SEND_BUFFER,
        grpc: options.versions == Versions::Http2,
        ..Config::DEFAULT
    };
    let calls = Arc::new(Calls {
        handler,
        client: Arc::new(client),
    });
    let drained = drain.cancelled();
    outrigger_http2::serve_upgraded(upgrade, io, calls, &config, TIMES, drained).await
}

/// The calls of one client.
struct Calls<H> {
    handler: Arc<H>,
    client: Arc<Client>,
}

impl<H: Handler> Service for Calls<H> {
    type Body = Body;

    fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Body>> + Send + 'static {
        self.client.prove();
        let request = request.map(Body::from);
        Arc::clone(&self.handler).handle(Arc::clone(&self.client), request)
    }

    fn connected(&self, load: Arc<Load>) {
        self.client.keep_while(move || load.streams() > 0);
    }

    fn reason(error: BoxError) -> Reason {
        Body::reset_reason(error)
    }
}
