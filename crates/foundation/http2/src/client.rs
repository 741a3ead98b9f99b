//! Client side: many requests share a connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

use crate::boundary::{Incoming, Io, KeepAlive, TrySendError};
use crate::driver::Driver;
use crate::error::{Error, Reason, StreamError};
use crate::recv_stream::RecvStream;
use crate::send_stream::SendStream;
use crate::settings::Config;
use crate::state::{Load, Role};
use crate::transport::Transport;

/// Opens a client connection over a socket. The second value drives the connection and must be spawned as a
/// task.
pub fn connect<I: Io>(
    io: I,
    config: &Config,
    keep_alive: Option<KeepAlive>,
) -> (SendRequest<I>, Connection<I>) {
    let transport = Transport::new(io, config, Role::Client);
    let load = transport.shared.state().load();
    let driver = Driver::new(Arc::clone(&transport), None, keep_alive);
    (SendRequest { transport, load }, Connection(driver))
}

/// Drives a connection. Resolves when the [`SendRequest`] is dropped and its last request has completed, or
/// when the connection ends; the error says why it ended early.
pub struct Connection<I>(Driver<I>);

impl<I: Io> Future for Connection<I> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll(cx, |_| false)
    }
}

/// Sends requests, multiplexed on one connection.
pub struct SendRequest<I> {
    transport: Arc<Transport<I>>,
    load: Arc<Load>,
}

impl<I> Drop for SendRequest<I> {
    fn drop(&mut self) {
        self.transport.shared.state().close();
    }
}

impl<I: Io> SendRequest<I> {
    /// Requests in flight: responses that are neither read to the end nor dropped.
    pub fn streams(&self) -> usize {
        self.load.streams.load(Ordering::Relaxed)
    }

    /// True if the connection accepts no new requests.
    pub fn is_closed(&self) -> bool {
        self.load.closed.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for the head of the response. `reason` maps an error of the body to the
    /// error code sent to the peer.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub async fn send<B>(
        &self,
        request: Request<B>,
        reason: fn(B::Error) -> Reason,
    ) -> Result<Response<Incoming>, TrySendError<B>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let ended = body.is_end_stream();
        let id = match Opening::of(&self.transport, &head, ended).await {
            Ok(id) => id,
            Err(error) => {
                let request = Some(head.map(|()| body));
                return Err(TrySendError { error, request });
            }
        };
        let response = ResponseFuture(Some(RecvStream::new(Arc::clone(&self.transport.shared), id)));
        let sending = SendStream {
            transport: Arc::clone(&self.transport),
            id,
        };
        let rest = if ended {
            None
        } else {
            sending.send_ready(body, reason)
        };
        self.transport.notify();
        match rest {
            // The task ends with its stream, which the connection's task awaits, or with the connection.
            Some(body) => drop(tokio::spawn(sending.send_body(body, reason))),
            None => drop(sending),
        }
        response
            .await
            .map_err(|error| TrySendError { error, request: None })
    }
}

/// A request waiting to open a stream. Dropping it gives its turn to the next.
struct Opening<'a, I> {
    transport: &'a Transport<I>,
    ticket: Option<u64>,
}

impl<'a, I> Opening<'a, I> {
    async fn of(transport: &'a Transport<I>, head: &Request<()>, ended: bool) -> Result<u32, StreamError> {
        let mut opening = Self {
            transport,
            ticket: None,
        };
        std::future::poll_fn(|cx| {
            let mut state = opening.transport.shared.state();
            state.poll_open(head, ended, &mut opening.ticket, cx)
        })
        .await
    }
}

impl<I> Drop for Opening<'_, I> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.transport.shared.state().cancel_open(ticket);
        }
    }
}

/// Waits for the head of the response. Dropping it cancels the request.
struct ResponseFuture(Option<RecvStream>);

impl Future for ResponseFuture {
    type Output = Result<Response<Incoming>, StreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(received) = &self.0 else {
            return Poll::Pending;
        };
        match received.poll_head(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
            Poll::Ready(Ok(head)) => {
                let body = self.0.take().map_or(Incoming::Empty, RecvStream::into_incoming);
                Poll::Ready(Ok(head.map(|()| body)))
            }
        }
    }
}
