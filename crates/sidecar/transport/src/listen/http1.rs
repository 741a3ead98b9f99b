//! Serves connections that speak HTTP/1.1, on hyper, and those that go on with HTTP/2.
//!
//! A connection is one task: hyper's connection, its timers replaced by one of ours. `requests` stands between it and the
//! socket, and says why. A body that came with its head reaches the handler as bytes. A body that the handler left unread is
//! read up to a limit; beyond it the connection ends, once the client has had time to read the answer.
//!
//! hyper refuses malformed heads, lengths that differ and heads over the limit; where a request has a length and chunks it
//! takes the chunks and closes the connection. What it does not refuse is refused here: no host or two, a transfer coding
//! other than chunked, and a line of a chunked body that does not end with CR LF (`chunks`). Every wait for a peer has an
//! end: for the first head, for the rest of a head, between requests, for the next piece of a body that is read, for a peer
//! that does not read its answer. Drain ends connections without a first request at once.
//!
//! A connection that begins with HTTP/2 goes on in `outrigger_http2`, as does one that is upgraded to it: its request is
//! handed over as a value, and becomes stream 1. The tests are conversations byte by byte.

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

/// Room that the head limit leaves beyond `--read-buffer-size`, as Go's server has it.
const HEAD_SLACK: usize = 4096;
/// hyper's smallest limit of a head, bytes.
const MIN_HEAD: usize = 8192;
/// Bytes of a header field, on average at least.
const FIELD: usize = 32;
/// The smallest limit of the number of fields: as many are parsed without an allocation.
const MIN_FIELDS: usize = 100;
/// Time that a connection may be without a request: longer than clients keep theirs, mostly, so that they do not send one
/// on a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time without any byte of a request's body that is waited for.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a client to read the last answer of a connection on which it still sends.
const LINGER: Duration = Duration::from_secs(1);

const TIMES: Times = Times {
    head: HEAD_TIMEOUT,
    idle: IDLE_TIMEOUT,
    body: BODY_TIMEOUT,
};

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
            match requests.take_late() {
                Some(late) => Err(late.into()),
                None => Ok(result?),
            }
        }
    }
}

/// Lets hyper serve a connection to its end; returns it, and what hyper has read and not used.
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
    // Heads are waited for where they are cut, with a limit for the time between them too.
    builder.header_read_timeout(None).max_buf_size(limit);
    if limit > MIN_HEAD {
        // Those who ask for more room have many fields rather than large ones.
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
    /// Where upgrades are allowed: the request that becomes the first stream of HTTP/2.
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
            && let Some(upgrade) = h2c::asked(&request)
        {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
            return Box::pin(ready(Ok(calling.answer(h2c::switching_protocols()))));
        }
        let (handler, client) = (Arc::clone(&self.handler), Arc::clone(&self.client));
        let at_hand = length.is_some_and(|length| length <= buffered as u64);
        // Boxed: hyper moves the future of a call several times before it runs, and a call's future is large.
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

/// `coming` is where what is here counts until the rest is; `None` for a body that was read with its head.
async fn with_body<H: Handler>(
    handler: Arc<H>,
    client: Arc<Client>,
    request: Request<Incoming>,
    coming: Option<Arc<Unfinished>>,
) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let waits = head.headers.contains_key(EXPECT);
    if coming.is_none() && !waits {
        // All of it was read with the head: this does not wait for the client.
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

/// The refusal of a request that hyper takes and that has to be refused (RFC 9112 sections 3.2 and 6.1).
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
            let what = "of transfer encodings only chunked is understood";
            return Some(refusal(StatusCode::NOT_IMPLEMENTED, what));
        }
    };
    Some(refusal(StatusCode::BAD_REQUEST, bad))
}

/// An answer that ends the connection.
fn refusal(status: StatusCode, what: &str) -> Response<Body> {
    let mut response = text_response(status, &format!("{status}: {what}"));
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests;
