//! Serves HTTP/1.1 connections with hyper, including those that switch to HTTP/2.
//!
//! A connection is one task: hyper's connection, with its timers replaced by one of ours. The module
//! `requests` sits between hyper and the socket and explains why. A body that came with its head reaches the
//! handler as bytes. The connection drains a body that the handler left unread, up to a limit. Beyond it the
//! connection closes, after the client has had time to read the response.
//!
//! hyper refuses malformed heads, conflicting lengths and heads over the limit. If a request has both a
//! length and chunks, hyper uses the chunks and closes the connection. This module refuses the rest: a
//! missing or repeated Host, a transfer coding other than chunked, and a line of a chunked body that does not
//! end with CR LF (`chunks`).
//!
//! Every wait for a peer has a timeout: the first head, the rest of a head, the next request, the next piece
//! of a body, and the reading of a response. Draining closes connections without a first request at once.
//!
//! `outrigger_http2` takes over connections that begin with HTTP/2 or upgrade to it; the upgraded request is
//! handed over as a value and becomes stream 1. The tests are byte-level conversations.

mod body;
mod chunks;
mod exchange;
mod framing;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod head;
mod requests;

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outrigger_grpc::unfinished::Unfinished;
use outrigger_http2::Upgrade;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use body::Received;
use body::ResponseBody;
use body::Unread;
use exchange::{Calling, Exchange};
#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_body_end, fuzz_head};
use requests::{Requests, Times};

use super::unfinished::unfinished;
use super::{Client, HEAD_TIMEOUT, Handler, Options, Versions, h2c, http2};
use crate::body::{Body, BoxError};
use crate::response::text_response;

/// Slack of the head limit beyond `--read-buffer-size`, as in Go's server.
const HEAD_SLACK: usize = 4096;
/// The smallest head limit that hyper accepts, bytes.
const MIN_HEAD: usize = 8192;
/// Minimum average size of a header field, bytes.
const FIELD: usize = 32;
/// The smallest limit on the number of fields: up to this many are parsed without an allocation.
const MIN_FIELDS: usize = 100;
/// Idle timeout. It is longer than that of most clients, so clients rarely send a request on a connection
/// that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout for the next byte of a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a client to read the last response of a connection on which it still sends.
const LINGER: Duration = Duration::from_secs(1);

const TIMES: Times = Times {
    head: HEAD_TIMEOUT,
    idle: IDLE_TIMEOUT,
    body: BODY_TIMEOUT,
};

/// Serves a connection until the client is done. Once draining, until its calls in flight are done.
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
    serve_timed(io, handler, client, options, drain, TIMES).await
}

async fn serve_timed<H, I>(
    io: I,
    handler: Arc<H>,
    client: Client,
    options: &Options,
    drain: &CancellationToken,
    times: Times,
) -> Result<(), BoxError>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limit = (options.head_limit + HEAD_SLACK).max(MIN_HEAD);
    let exchange = Arc::new(Exchange::new(options.held.clone()));
    let mut requests = Requests::new(io, Arc::clone(&exchange), limit, times);
    let of_place = Arc::clone(&exchange);
    client.keep_while(move || of_place.is_calling());
    if options.versions == Versions::Both {
        let first = tokio::time::timeout(times.head, requests.begins_with_http2());
        let http2 = tokio::select! {
            first = first => first.map_err(|_| format!("no request within {:?}", times.head))??,
            () = drain.cancelled() => None,
        };
        match http2 {
            None => return Ok(()),
            Some(true) => {
                return Ok(
                    http2::serve(requests.into_raw(&[]), handler, client, options, drain, None).await?,
                );
            }
            Some(false) => {}
        }
    }
    let calls = Calls {
        handler: Arc::clone(&handler),
        client: Arc::new(client.clone()),
        exchange,
        unfinished: unfinished(options),
        upgrade: (options.versions == Versions::Both).then(Arc::default),
    };
    let upgrade = calls.upgrade.clone();
    let (mut requests, read, result) = converse(requests, calls, limit, options, drain).await;
    let upgrade = upgrade.and_then(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner).take());
    match (upgrade, result) {
        (Some(upgrade), Ok(())) => {
            http2::serve(
                requests.into_raw(&read),
                handler,
                client,
                options,
                drain,
                Some(upgrade),
            )
            .await?;
            Ok(())
        }
        (_, result) => {
            requests.close(LINGER).await;
            match requests.take_timeout() {
                Some(late) => Err(late.into()),
                None => Ok(result?),
            }
        }
    }
}

/// Runs hyper's connection to its end. Returns it and the bytes that hyper read but did not use.
async fn converse<H, I>(
    requests: Requests<I>,
    calls: Calls<H>,
    limit: usize,
    options: &Options,
    drain: &CancellationToken,
) -> (Requests<I>, Bytes, hyper::Result<()>)
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new();
    // `Requests` has the head timeout, which also covers the time between requests.
    builder.header_read_timeout(None).max_buf_size(limit);
    if limit > MIN_HEAD {
        // A larger head limit usually means more fields rather than larger ones.
        builder.max_headers((options.head_limit / FIELD).max(MIN_FIELDS));
    }
    let service = service_fn(move |request: Request<Incoming>| calls.begin(request));
    let mut connection = builder.serve_connection(TokioIo::new(requests), service);
    let mut drained = pin!(drain.cancelled());
    let mut draining = false;
    let result = std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = connection.poll_without_shutdown(cx) {
                return Poll::Ready(result);
            }
            if draining || drained.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            draining = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
    })
    .await;
    let parts = connection.into_parts();
    (parts.io.into_inner(), parts.read_buf, result)
}

/// The calls of one client.
struct Calls<H> {
    handler: Arc<H>,
    client: Arc<Client>,
    exchange: Arc<Exchange>,
    unfinished: Arc<Unfinished>,
    /// If upgrades are allowed: the request that becomes the first stream of HTTP/2.
    upgrade: Option<Arc<Mutex<Option<Upgrade>>>>,
}

type Called = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl<H: Handler> Calls<H> {
    fn begin(&self, request: Request<Incoming>) -> Called {
        let length = request.body().size_hint().exact();
        let buffered = self.exchange.begin(length, request.version());
        let calling = self.exchange.calling();
        if let Some(refused) = refuse(&request) {
            return Box::pin(ready(Ok(calling.answer(refused))));
        }
        self.client.prove();
        if let Some(slot) = &self.upgrade
            && let Some(upgrade) = h2c::requested(&request)
        {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
            return Box::pin(ready(Ok(calling.answer(h2c::switching_protocols()))));
        }
        let (handler, client) = (Arc::clone(&self.handler), Arc::clone(&self.client));
        let at_hand = length.is_some_and(|length| length <= buffered as u64);
        // Boxed: hyper moves the future of a call several times before polling it, and the future is large.
        if length == Some(0) {
            let request = request.map(|_| Body::Empty);
            return Box::pin(async move { Ok(calling.answer(handler.handle(client, request).await)) });
        }
        let coming = (!at_hand).then(|| Arc::clone(&self.unfinished));
        Box::pin(async move {
            let answer = with_body(handler, client, request, coming).await;
            Ok(calling.answer(answer))
        })
    }
}

impl Calling {
    #[inline]
    fn answer(self, response: Response<Body>) -> Response<ResponseBody> {
        self.hold(response.body().in_memory());
        response.map(|body| ResponseBody::new(body, self))
    }
}

/// Buffered bytes count against `coming` until the body is complete; `None` if the body was read with its
/// head.
async fn with_body<H: Handler>(
    handler: Arc<H>,
    client: Arc<Client>,
    request: Request<Incoming>,
    coming: Option<Arc<Unfinished>>,
) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let waits = head.headers.contains_key(EXPECT);
    if coming.is_none() && !waits {
        // The whole body was read with the head, so this does not wait for the client.
        let body = match incoming.collect().await {
            Ok(whole) => whole.to_bytes().into(),
            Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        return handler.handle(client, Request::from_parts(head, body)).await;
    }
    let unread = Unread::default();
    let body = Body::Http1(Received::new(incoming, unread.clone())).counted(coming);
    let mut response = handler.handle(client, Request::from_parts(head, body)).await;
    if (waits && unread.is_left()) || !unread.discard().await {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The response to a request that hyper accepts but that must be refused (RFC 9112 sections 3.2 and 6.1).
#[inline]
fn refuse(request: &Request<Incoming>) -> Option<Response<Body>> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let mut encodings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let bad = match (hosts.next(), hosts.next()) {
        (None, _) if request.version() == Version::HTTP_11 => "the Host field is missing",
        (_, Some(_)) => "there are two Host fields",
        _ => {
            let chunked = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"chunked");
            if encodings.next().is_none_or(chunked) && encodings.next().is_none() {
                return None;
            }
            let what = "chunked is the only supported transfer encoding";
            return Some(refusal(StatusCode::NOT_IMPLEMENTED, what));
        }
    };
    Some(refusal(StatusCode::BAD_REQUEST, bad))
}

/// A response that closes the connection.
fn refusal(status: StatusCode, what: &str) -> Response<Body> {
    let mut response = text_response(status, &format!("{status}: {what}"));
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests;
