//! Serves connections that speak nothing but HTTP/2: gRPC. What a handler has ready leaves in one write.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Builder, Connection, SendResponse};
use http::{Method, Request, Response};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{Client, HANDSHAKE_TIMEOUT, Handler, MAX_STREAMS, Options, PING, SEND_BUFFER, WINDOWS};
use crate::body::Body;
use crate::http2::{Drive, Driver, Ended, Gather, Outgoing, Received, pump, send_at_hand};

/// Streams that clients may reset before they are looked at, and that we may reset because they break the protocol,
/// before the connection is given up.
const RESETS: (usize, usize) = (64, 1024);

/// A connection that was accepted.
struct Accepted<H, I> {
    connection: Connection<Gather<I>, Bytes>,
    out: Outgoing<I>,
    handler: Arc<H>,
    client: Arc<Client>,
}

type Wire<H, I> = Arc<Driver<Accepted<H, I>>>;

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
) -> Result<(), Ended>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (io, out) = Gather::new(io);
    let mut handshake = pin!(builder(options).handshake(io));
    // Our settings leave first: a client that begins with TLS learns from them that nobody here speaks it.
    let handshake = std::future::poll_fn(|cx| {
        let done = handshake.as_mut().poll(cx);
        let _told_or_gone = out.poll_flush(cx);
        done
    });
    let Ok(connection) = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await else {
        return Err(Ended::Silent(HANDSHAKE_TIMEOUT));
    };
    let mut connection = connection?;
    let pings = connection.ping_pong().map(|pings| (pings, PING));
    let wire = Driver::new(Accepted {
        connection,
        out,
        handler,
        client: Arc::new(client),
    });
    let mut running = pin!(wire.run_watched(pings));
    tokio::select! {
        ended = running.as_mut() => ended,
        () = drain.cancelled() => {
            wire.with(|accepted| accepted.connection.graceful_shutdown());
            running.await
        }
    }
}

fn builder(options: &Options) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(options.header_list_limit)
        .max_pending_accept_reset_streams(RESETS.0)
        .max_local_error_reset_streams(Some(RESETS.1));
    builder
}

impl<H, I> Drive for Accepted<H, I>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn poll_drive(&mut self, wire: &Wire<H, I>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        loop {
            let accepted = pin!(self.connection.accept()).poll(cx);
            match accepted {
                Poll::Ready(Some(Ok((request, respond)))) => self.answer(wire, request, respond),
                Poll::Ready(Some(Err(error))) => {
                    // What tells the client why, if it still can be told.
                    let _gone = self.out.poll_flush(cx);
                    return Poll::Ready(Err(error.into()));
                }
                Poll::Ready(None) => return self.out.poll_flush(cx).map_err(Into::into),
                Poll::Pending => {
                    let _goes_on = self.out.poll_flush(cx)?;
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<H, I> Accepted<H, I>
where
    H: Handler,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn answer(&self, wire: &Wire<H, I>, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        if request.method() == Method::CONNECT {
            return respond.send_reset(h2::Reason::REFUSED_STREAM);
        }
        let (head, stream) = request.into_parts();
        let body = Received::body(stream, &head.headers, None);
        let request = Request::from_parts(head, body);
        let (handler, client) = (Arc::clone(&self.handler), Arc::clone(&self.client));
        let wire = Arc::clone(wire);
        // Boxed: a call's future is large, and starting a task moves it several times.
        let handling = Box::pin(handler.handle(client, request));
        tokio::spawn(async move {
            let Some(response) = unless_reset(handling, &mut respond).await else {
                return;
            };
            let (head, body) = response.into_parts();
            let ended = body.is_end_stream();
            let stream = match respond.send_response(Response::from_parts(head, ()), ended) {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(target: super::LOG, "a response was not sent: {error}");
                    return;
                }
            };
            let rest = if ended { None } else { send_at_hand(stream, body) };
            wire.queued();
            drop(wire);
            if let Some((stream, body)) = rest {
                pump(stream, body).await;
            }
        });
    }
}

/// What the handler answers; `None` when the client does not want to know any more.
async fn unless_reset<F>(
    mut handling: Pin<Box<F>>,
    respond: &mut SendResponse<Bytes>,
) -> Option<Response<Body>>
where
    F: Future<Output = Response<Body>>,
{
    std::future::poll_fn(|cx| match handling.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => respond.poll_reset(cx).map(|_| None),
    })
    .await
}

#[cfg(test)]
mod tests;
