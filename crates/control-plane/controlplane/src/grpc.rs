//! gRPC servers with control plane identities, or in plain text.

mod calls;
mod written;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use calls::{Calls, Served};
use futures::TryFutureExt;
use futures::future::{Either, ready};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use outrigger_accept::{Accepted, Admission, Limits, Permit, Server, descriptors, keep_alive};
use outrigger_identity::{Identity, SpiffeId, expiry};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::{Service, ServiceExt};
use written::written;
pub use written::{list, stream};

const LOG: &str = "dapr.grpc";
/// Timeout of the first byte of a plain text connection.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Divisor of the process's file descriptors: connections may use one part of this many.
const DESCRIPTORS_PART: usize = 2;
/// Maximum size of request headers in bytes.
const MAX_HEADER: u32 = 16 << 10;
/// Maximum bytes of a response buffered before the client reads them.
const SEND_BUFFER: usize = 32 << 10;

/// Limits for the clients of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connection limits, in total and per client.
    pub connections: Limits,
    /// Idle time before a peer is pinged.
    pub ping_after: Duration,
    /// Timeout of a ping.
    pub ping_timeout: Duration,
    /// Maximum number of concurrent calls per connection.
    pub streams: u32,
}

/// The identity of a caller.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Any caller, without mTLS.
    Anyone,
    /// The workload named in the caller's certificate.
    Workload(SpiffeId),
}

/// Serves `service` until stopped. Requests have their [`Caller`] and the [`Permit`] of their connection as
/// extensions.
pub async fn serve<S>(
    server: Server,
    limits: ServerLimits,
    identity: Option<Identity>,
    service: S,
    drain: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let handle = |accepted: Accepted| {
        let (identity, service) = (identity.clone(), service.clone());
        async move {
            match identity {
                None => plain(accepted, limits, service).await,
                Some(identity) => secure(accepted, limits, &identity, service).await,
            }
        }
    };
    keep_alive(&server.listener);
    let admission = Admission::new(limits.connections.within(descriptors() / DESCRIPTORS_PART));
    outrigger_accept::serve(server.listener, admission, drain, handle).await;
}

async fn plain<S>(accepted: Accepted, limits: ServerLimits, service: S)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let Accepted {
        stream,
        peer,
        permit,
        drain,
    } = accepted;
    if !says_something(&stream, &drain).await {
        tracing::debug!(target: LOG, "closed the silent connection of {peer}");
        return;
    }
    let end = async move { drain.cancelled().await };
    http2(stream, limits, service, (Caller::Anyone, permit), end).await;
}

async fn says_something(stream: &TcpStream, drain: &CancellationToken) -> bool {
    let mut byte = [0];
    let peek = tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut byte));
    matches!(drain.run_until_cancelled(peek).await, Some(Ok(Ok(1..))))
}

async fn secure<S>(accepted: Accepted, limits: ServerLimits, identity: &Identity, service: S)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let Accepted {
        stream,
        peer,
        permit,
        drain,
    } = accepted;
    // Boxed, so that its memory is released before the connection's is allocated.
    let handshake = Box::pin(outrigger_accept::handshake(
        stream,
        identity.server_config(),
        &drain,
    ));
    let Some(stream) = handshake.await else {
        return;
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let proven = outrigger_identity::peer_id(chain).and_then(|id| Ok((id, expiry::valid_until(chain)?)));
    let (id, valid_until) = match proven {
        Ok(proven) => proven,
        Err(error) => {
            tracing::warn!(target: LOG, "the client certificate of {peer} has no valid SPIFFE id: {error}");
            return;
        }
    };
    permit.prove();
    let end = async move {
        tokio::select! {
            () = drain.cancelled() => {}
            () = expiry::reached(valid_until) => {
                tracing::info!(target: LOG, "the client certificate of {peer} has expired: closing its connection");
            }
        }
    };
    http2(stream, limits, service, (Caller::Workload(id), permit), end).await;
}

/// Drives a connection to its end. Not an `async fn`, whose future would hold the arguments next to the
/// connection built from them.
fn http2<I, S>(
    io: I,
    limits: ServerLimits,
    service: S,
    (caller, permit): (Caller, Arc<Permit>),
    end: impl Future<Output = ()>,
) -> impl Future<Output = ()>
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let introduced = move |request: &mut Request<Body>| {
        // Connections with calls keep their slots before those without.
        permit.prove();
        request.extensions_mut().insert(caller.clone());
        request.extensions_mut().insert(Arc::clone(&permit));
    };
    drive(io, limits, Calls::new(), service, introduced, end)
}

fn drive<I, S>(
    io: I,
    limits: ServerLimits,
    calls: Arc<Calls>,
    service: S,
    introduced: impl Fn(&mut Request<Body>),
    end: impl Future<Output = ()>,
) -> impl Future<Output = ()>
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let over = Arc::clone(&calls);
    let served = service_fn(move |request: Request<Incoming>| {
        let answered = calls.begin(request.uri().path()).map(|call| {
            let mut request = request.map(|body| call.request(body));
            introduced(&mut request);
            let answered = service.clone().oneshot(request);
            answered.map_ok(|answer| written(answer).map(|body| call.answer(body)))
        });
        match answered {
            Ok(answered) => Either::Left(answered),
            Err(refused) => Either::Right(ready(Ok(refused.into_http()))),
        }
    });
    let connection = http2::Builder::new(Served)
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping_after)
        .keep_alive_timeout(limits.ping_timeout)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(MAX_HEADER)
        .max_send_buf_size(SEND_BUFFER)
        .serve_connection(TokioIo::new(io), served);
    let end = async move {
        tokio::select! {
            () = end => {}
            reason = over.close_reason() => tracing::debug!(target: LOG, "closed a connection {reason}"),
        }
    };
    outrigger_accept::finish(Box::pin(connection), end)
}
