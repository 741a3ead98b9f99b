//! The side that calls: one call at a time, by whoever makes it, without a task of its own.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::Progress;
use crate::encode;
use crate::error::{Cut, Refused};
use crate::head::{AnswerHead, Limits, Start, may_be_whole, take_answer};
use crate::out::Out;
use crate::sending::{BoxError, Sending};
use crate::wire::State;

/// How large the head of an answer may be.
const LIMITS: Limits = Limits {
    bytes: 256 * 1024,
    fields: 100,
};

/// A connection between two calls.
pub struct Client<I>(Box<Idle<I>>);

struct Idle<I> {
    state: State<I>,
    out: Out,
}

impl<I> std::fmt::Debug for Client<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
#[error("{failed}")]
pub struct Unanswered {
    /// Whether the server may have seen some of it.
    pub sent: bool,
    /// What failed.
    #[source]
    pub failed: Failed,
}

/// What failed before there was an answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The connection was closed.
    #[error("the server closed the connection before it answered")]
    Closed,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is no answer.
    #[error("the server's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The body of the request failed.
    #[error("the body of the request failed: {0}")]
    Body(BoxError),
}

impl Failed {
    /// Whether the connection failed, as against the request or the answer.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        Self::Malformed(refused.what)
    }
}

/// What is behind the head of an answer.
#[derive(Debug)]
pub enum Answer<I, B> {
    /// All of it, and the connection where it can be used again.
    Whole(Bytes, Option<Client<I>>),
    /// What comes later.
    Coming(Coming<I, B>),
}

impl<I: AsyncRead + AsyncWrite + Unpin> Client<I> {
    /// A connection that nothing was said on.
    pub fn new(io: I) -> Self {
        Self(Box::new(Idle {
            state: State::new(io),
            out: Out::default(),
        }))
    }

    /// Whether a call can be made, as far as can be told without asking: the server has neither closed the connection
    /// nor said what it was not asked.
    pub fn is_usable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.0.state.read.is_empty() && self.0.state.poll_read(&mut cx).is_pending()
    }

    /// Makes a call, of which the target is the path and query of the URI. The answer may come before all of the
    /// request has been sent; the rest is sent while its body is read.
    ///
    /// # Errors
    /// Why there is no answer; the connection is closed.
    pub async fn call<B>(mut self, request: Request<B>) -> Result<Response<Answer<I, B>>, Unanswered>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        let (head, mut body) = request.into_parts();
        let Idle { state, out } = &mut *self.0;
        let framing = encode::request(&head, body.size_hint().exact(), &mut out.bytes);
        let head_only = head.method == Method::HEAD;
        drop(head);
        let mut exchange = Exchange {
            state,
            out,
            sending: Sending::new(framing),
            sent: false,
            lost: None,
            seen: 0,
        };
        let result = std::future::poll_fn(|cx| exchange.poll_head(&mut body, head_only, cx)).await;
        let (sent, sending) = (exchange.sent, exchange.sending);
        let found = result.map_err(|failed| Unanswered { sent, failed })?;
        let complete = self.0.out.is_empty() && matches!(sending.result, Some(Ok(())));
        let (parts, ()) = found.answer.into_parts();
        let answer = match found.body {
            Start::Whole(data) if complete => Answer::Whole(data, found.keep_alive.then_some(self)),
            // An answer that does not wait for its request ends the request too.
            Start::Whole(data) => Answer::Whole(data, None),
            Start::Later(rest) => {
                let progress = Progress::before(&rest);
                self.0.state.rest = rest;
                Answer::Coming(Coming {
                    client: Some(self),
                    request: (!complete).then(|| Box::new((sending, body))),
                    keep_alive: found.keep_alive,
                    progress,
                })
            }
        };
        Ok(Response::from_parts(parts, answer))
    }
}

/// A call until its answer begins.
struct Exchange<'a, I> {
    state: &'a mut State<I>,
    out: &'a mut Out,
    sending: Sending,
    sent: bool,
    /// Why nothing more can be sent.
    lost: Option<io::Error>,
    /// How much of what was read has been looked at in vain.
    seen: usize,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Exchange<'_, I> {
    fn poll_head<B>(
        &mut self,
        body: &mut B,
        head_only: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<AnswerHead, Failed>>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        loop {
            let goes_on = self.lost.is_none() && self.send(body, cx)?;
            if may_be_whole(&self.state.read, self.seen, LIMITS.bytes) {
                self.seen = self.state.read.len();
                if let Some(found) = take_answer(&mut self.state.read, LIMITS, head_only)? {
                    self.seen = 0;
                    let status = found.answer.status();
                    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                        continue;
                    }
                    return Poll::Ready(Ok(found));
                }
            }
            match self.state.poll_read(cx) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(self.lost.take().map_or(Failed::Closed, Failed::Io)));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.lost.take().unwrap_or(error).into())),
                Poll::Pending if goes_on => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Sends what there is. Whether more could be sent at once.
    fn send<B>(&mut self, body: &mut B, cx: &mut Context<'_>) -> Result<bool, Failed>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        let waits = self.sending.gather(body, self.out, cx);
        if let Some(Err(error)) = self.sending.result.take_if(|result| result.is_err()) {
            return Err(Failed::Body(error));
        }
        if self.out.is_empty() {
            return Ok(false);
        }
        let written = self.out.poll_write(&mut self.state.io, cx);
        self.sent |= self.out.is_begun();
        match written {
            Poll::Ready(Ok(())) => Ok(!waits && self.sending.result.is_none()),
            // What the server has said before it closed the connection may be an answer.
            Poll::Ready(Err(error)) => {
                self.lost = Some(error);
                Ok(false)
            }
            Poll::Pending => Ok(false),
        }
    }
}

/// The body of an answer that is not here yet, or not all of it. Reading it reads from the socket, and sends what is
/// left of the request.
pub struct Coming<I, B> {
    client: Option<Client<I>>,
    request: Option<Box<(Sending, B)>>,
    keep_alive: bool,
    progress: Progress,
}

impl<I, B> std::fmt::Debug for Coming<I, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coming({:?})", self.progress)
    }
}

impl<I, B> Coming<I, B> {
    /// The connection, once the body has been read to its end, and if it can be used again.
    pub fn take_client(&mut self) -> Option<Client<I>> {
        let over = self.progress.ended && self.keep_alive && self.request.is_none();
        self.client.take_if(|_| over)
    }
}

impl<I, B> Coming<I, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    /// Sends what is left of the request. When that fails the answer is still read, and the connection closed.
    fn send(&mut self, cx: &mut Context<'_>) {
        let (Some(client), Some(request)) = (&mut self.client, &mut self.request) else {
            return;
        };
        let Idle { state, out } = &mut *client.0;
        let (sending, body) = &mut **request;
        loop {
            let waits = sending.gather(body, out, cx);
            let Poll::Ready(written) = out.poll_write(&mut state.io, cx) else {
                return;
            };
            match (written, &sending.result) {
                (Ok(()), None) if waits => return,
                (Ok(()), None) => {}
                (Ok(()), Some(Ok(()))) => break,
                (Err(_), _) | (_, Some(Err(_))) => {
                    self.keep_alive = false;
                    break;
                }
            }
        }
        self.request = None;
    }
}

impl<I, B> Body for Coming<I, B>
where
    I: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.progress.ended {
            return Poll::Ready(None);
        }
        self.send(cx);
        let Some(client) = &mut self.client else {
            return Poll::Ready(None);
        };
        let part = ready!(client.0.state.poll_part(cx));
        self.keep_alive &= part.is_ok();
        let frame = self.progress.frame(part);
        if self.progress.ended && (!self.keep_alive || self.request.is_some()) {
            // What can't be used again is closed at once.
            self.client = None;
            self.request = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.progress.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.progress.size_hint()
    }
}
