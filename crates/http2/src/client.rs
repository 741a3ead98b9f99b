//! The side that dials: many requests share a connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::{Incoming, Received};
use crate::error::{Cut, Ended, Reason};
use crate::sending::Sending;
use crate::settings::Config;
use crate::state::{Load, Role};
use crate::turns::{Silence, Turns};
use crate::wire::Wire;

/// Makes a connection of a socket. Nothing happens on it unless the second value runs, as a task of its own.
pub fn connect<I>(io: I, config: &Config, silence: Option<Silence>) -> (Client<I>, Connection<I>)
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let wire = Wire::new(io, config, Role::Client);
    let load = wire.core.state().load();
    let turns = Turns::new(Arc::clone(&wire), None, silence);
    (Client { wire, load }, Connection(turns))
}

/// What moves a connection's bytes.
pub struct Connection<I>(Turns<I>);

impl<I: AsyncRead + AsyncWrite + Unpin> Connection<I> {
    /// Runs until the [`Client`] is dropped and its last request is over, or until the peer ends the connection.
    ///
    /// # Errors
    /// Why the connection ended early.
    pub async fn run(mut self) -> Result<(), Ended> {
        std::future::poll_fn(|cx| self.0.poll(cx, |_| false)).await
    }
}

/// Sends requests.
pub struct Client<I> {
    wire: Arc<Wire<I>>,
    load: Arc<Load>,
}

impl<I> Drop for Client<I> {
    fn drop(&mut self) {
        self.wire.core.state().finish();
    }
}

/// Why there is no response.
#[derive(Debug)]
pub struct Unanswered<B> {
    /// What happened.
    pub why: Cut,
    /// The request, where nothing of it was sent.
    pub unsent: Option<Request<B>>,
}

impl<I> Client<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Requests that are not over: their answers have not been read to the end, or given up.
    pub fn streams(&self) -> usize {
        self.load.streams()
    }

    /// True when no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        self.load.closed.load(Ordering::Relaxed)
    }

    /// Sends a request and waits for the head of the answer. `reason` is what the peer is told when the body fails.
    ///
    /// # Errors
    /// [`Unanswered`].
    pub async fn send<B>(
        &self,
        request: Request<B>,
        reason: fn(B::Error) -> Reason,
    ) -> Result<Response<Incoming>, Unanswered<B>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let ended = body.is_end_stream();
        let number = match Opening::of(&self.wire, &head, ended).await {
            Ok(number) => number,
            Err(why) => {
                let unsent = Some(head.map(|()| body));
                return Err(Unanswered { why, unsent });
            }
        };
        let answer = Answer(Some(Received::new(Arc::clone(&self.wire.core), number)));
        let sending = Sending {
            wire: Arc::clone(&self.wire),
            number,
        };
        let rest = if ended {
            None
        } else {
            sending.at_hand(body, reason)
        };
        self.wire.queued();
        match rest {
            Some(body) => drop(tokio::spawn(sending.pump(body, reason))),
            None => drop(sending),
        }
        answer.await.map_err(|why| Unanswered { why, unsent: None })
    }
}

/// A request that waits for its turn. Given up, it passes its turn on.
struct Opening<'a, I> {
    wire: &'a Wire<I>,
    ticket: Option<u64>,
}

impl<'a, I> Opening<'a, I> {
    async fn of(wire: &'a Wire<I>, head: &Request<()>, ended: bool) -> Result<u32, Cut> {
        let mut opening = Self { wire, ticket: None };
        std::future::poll_fn(|cx| {
            let mut state = opening.wire.core.state();
            state.poll_open(head, ended, &mut opening.ticket, cx)
        })
        .await
    }
}

impl<I> Drop for Opening<'_, I> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.wire.core.state().stop_waiting(ticket);
        }
    }
}

/// An answer whose head is waited for. Given up, it cancels the request.
struct Answer(Option<Received>);

impl Future for Answer {
    type Output = Result<Response<Incoming>, Cut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(received) = &self.0 else {
            return Poll::Pending;
        };
        match received.poll_head(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
            Poll::Ready(Ok(head)) => {
                let body = self.0.take().map_or(Incoming::Empty, Received::into_incoming);
                Poll::Ready(Ok(head.map(|()| body)))
            }
        }
    }
}
