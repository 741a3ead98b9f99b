//! The side that dials: many requests share a connection.

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

/// Makes a client connection of a socket. Nothing happens on it unless the second value runs, as a task of its own.
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

/// What moves a connection's bytes: runs until the [`SendRequest`] is dropped and its last request is over, or until the
/// connection ends; the error tells why it ended early.
pub struct Connection<I>(Driver<I>);

impl<I: Io> Future for Connection<I> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll(cx, |_| false)
    }
}

/// Sends requests, many at a time on one connection.
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
    /// Requests that are not over: their responses have not been read to the end, or dropped.
    pub fn streams(&self) -> usize {
        self.load.streams.load(Ordering::Relaxed)
    }

    /// True when no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.load.closed.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for the head of the response. `reason` is what the peer is told when the body fails.
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
            // It ends with its stream, for which the connection's task waits, or with the connection.
            Some(body) => drop(tokio::spawn(sending.send_body(body, reason))),
            None => drop(sending),
        }
        response
            .await
            .map_err(|error| TrySendError { error, request: None })
    }
}

/// A request that waits until it may open a stream. Dropped, it passes its turn on.
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

/// Waits for the head of a response. Dropped, it cancels the request.
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
