//! Serves connections that speak HTTP/1.1, and those that go on with HTTP/2.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::future::{Either, ready};
use http::{Request, Response};
use outrigger_http1::{Config, Incoming, Served, Service};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Client, HEAD_TIMEOUT, Handler, Options, Versions, h2c, http2};
use crate::body::{Body, BoxError};

/// Room that the head limit leaves beyond `--read-buffer-size`, as Go's server has it.
const HEAD_SLACK: usize = 4096;
/// The smallest limit of a head, bytes.
const MIN_HEAD: usize = 8192;
/// Bytes of a header field, on average at least.
const FIELD: usize = 32;
/// The smallest limit of the number of fields.
const MIN_FIELDS: usize = 100;

/// Serves a connection until the client is done, or, once draining, until the calls in flight are.
///
/// # Errors
/// Why the connection ended early.
pub(super) async fn serve<H, I>(
    io: I,
    handler: Arc<H>,
    client: Client,
    options: &Options,
    drain: &CancellationToken,
) -> Result<(), BoxError>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let both = options.versions == Versions::Both;
    let head = (options.head_limit + HEAD_SLACK).max(MIN_HEAD);
    let config = Config {
        head,
        fields: match head {
            MIN_HEAD => MIN_FIELDS,
            // Those who ask for more room have many fields rather than large ones.
            _ => (options.head_limit / FIELD).max(MIN_FIELDS),
        },
        patience: HEAD_TIMEOUT,
        http2: both,
    };
    let calls = Arc::new(Calls {
        handler: Arc::clone(&handler),
        client: Arc::new(client.clone()),
        upgrades: both.then(OnceLock::new),
    });
    match outrigger_http1::serve(io, Arc::clone(&calls), &config, drain).await? {
        Served::Closed => {}
        Served::Http2(io) => http2::serve(io, handler, client, options, drain).await?,
        Served::Switched(io) => {
            let first = calls.upgrades.as_ref().and_then(OnceLock::get);
            let io = h2c::finish(io, first.cloned().unwrap_or_default()).await?;
            http2::serve(io, handler, client, options, drain).await?;
        }
    }
    Ok(())
}

/// The calls of one client.
struct Calls<H> {
    handler: Arc<H>,
    client: Arc<Client>,
    /// Where upgrades are allowed: the request that became the first stream of HTTP/2.
    upgrades: Option<OnceLock<Bytes>>,
}

impl<H: Handler> Service for Calls<H> {
    type Body = Body;

    fn call(self: Arc<Self>, request: Request<Incoming>) -> impl Future<Output = Response<Body>> + Send {
        if let Some(upgrade) = &self.upgrades
            && let Some(first) = h2c::first_stream(&request)
        {
            let _only_once = upgrade.set(first);
            return Either::Left(ready(h2c::switching_protocols()));
        }
        let request = request.map(Body::from);
        Either::Right(Arc::clone(&self.handler).handle(Arc::clone(&self.client), request))
    }
}
