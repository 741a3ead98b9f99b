//! One connection: head, call, answer, and again.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::body::{Incoming, Received};
use crate::chunks::{Part, Rest};
use crate::encode;
use crate::error::{Ended, Refused};
use crate::head::{self, Head, Limits, Start, may_be_whole};
use crate::out::Out;
use crate::rewound::Rewound;
use crate::sending::{BoxError, Sending};
use crate::wire::{State, Wire};

/// What a client of HTTP/2 says first (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a body that nobody wanted that are read all the same, so that the connection can be used again.
const UNWANTED: u64 = 256 * 1024;
/// Time for them.
const UNWANTED_TIME: Duration = Duration::from_secs(5);
/// Time for a client to read an answer that ends a connection on which it still sends.
const LINGER: Duration = Duration::from_secs(1);

/// How a server treats its connections.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of a request's head.
    pub head: usize,
    /// Fields of a request's head.
    pub fields: usize,
    /// For a head, once it has begun, and for the first one of a connection.
    pub patience: Duration,
    /// Whether a client may begin with HTTP/2.
    pub http2: bool,
}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin;

    /// Answers one request. The future is dropped when the client has left. After an answer of status 101 the
    /// connection is [handed back](Served::Switched).
    fn call(self: Arc<Self>, request: Request<Incoming>)
    -> impl Future<Output = Response<Self::Body>> + Send;
}

/// How a connection ended, or went on.
#[derive(Debug)]
pub enum Served<I> {
    /// It is closed.
    Closed,
    /// It speaks something else, after an answer of status 101.
    Switched(Rewound<I>),
    /// It speaks HTTP/2, from the first byte.
    Http2(Rewound<I>),
}

/// Serves a connection until the client is done, or, once `drain` is cancelled, until the call in flight is.
///
/// # Errors
/// Why the connection ended early.
pub async fn serve<I, S>(
    io: I,
    service: Arc<S>,
    config: &Config,
    drain: &CancellationToken,
) -> Result<Served<I>, Ended>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
{
    let mut connection = Connection {
        wire: Arc::new(Wire::new(io)),
        config: *config,
        drain,
        out: Out::default(),
    };
    let after = connection.run(&service).await;
    // A body that is still in use somewhere must not keep a connection open that nobody serves.
    connection.wire.state().abandon();
    match after {
        Ok(After::Closed) => Ok(Served::Closed),
        Ok(After::Switched) => connection.hand_back(Served::Switched),
        Ok(After::Http2) => connection.hand_back(Served::Http2),
        Err(ended) => Err(ended),
    }
}

struct Connection<'a, I> {
    wire: Arc<Wire<I>>,
    config: Config,
    drain: &'a CancellationToken,
    out: Out,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly always the large one, and never kept"
)]
enum Next {
    Head(Head),
    After(After),
}

enum After {
    Closed,
    Switched,
    Http2,
}

impl<I> Connection<'_, I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    async fn run<S: Service>(&mut self, service: &Arc<S>) -> Result<After, Ended> {
        let mut drained = pin!(self.drain.cancelled());
        loop {
            let head = match self.head(drained.as_mut()).await {
                Ok(Next::Head(head)) => head,
                Ok(Next::After(after)) => return Ok(after),
                Err(Ended::Refused(refused)) => return self.refuse(refused).await,
                Err(ended) => return Err(ended),
            };
            if let Some(after) = self.exchange(head, service).await? {
                return Ok(after);
            }
        }
    }

    /// Waits for a request.
    async fn head(&mut self, mut drained: Pin<&mut WaitForCancellationFuture<'_>>) -> Result<Next, Ended> {
        let limits = Limits {
            bytes: self.config.head,
            fields: self.config.fields,
        };
        let patience = self.config.patience;
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        // How much of what was read has been looked at in vain.
        let mut seen = 0;
        std::future::poll_fn(|cx| {
            let mut state = self.wire.state();
            let first = state.request == 0;
            loop {
                let http2 = first && self.config.http2;
                if http2 && state.read.starts_with(PREFACE) {
                    return Poll::Ready(Ok(Next::After(After::Http2)));
                }
                let undecided = http2 && PREFACE.starts_with(&state.read);
                if !undecided && may_be_whole(&state.read, seen, limits.bytes) {
                    if let Some(head) = head::take(&mut state.read, limits)? {
                        state.request += 1;
                        return Poll::Ready(Ok(Next::Head(head)));
                    }
                    seen = state.read.len();
                }
                match state.poll_read(cx)? {
                    Poll::Ready(0) if state.read.is_empty() => {
                        return Poll::Ready(Ok(Next::After(After::Closed)));
                    }
                    Poll::Ready(0) => return Poll::Ready(Err(Ended::Head)),
                    Poll::Ready(_) => {}
                    Poll::Pending => break,
                }
            }
            if drained.as_mut().poll(cx).is_ready() && state.read.is_empty() {
                return Poll::Ready(Ok(Next::After(After::Closed)));
            }
            if first || !state.read.is_empty() {
                let timer = timer.get_or_insert_with(|| Box::pin(sleep(patience)));
                ready!(timer.as_mut().poll(cx));
                return Poll::Ready(Err(Ended::Slow(patience)));
            }
            Poll::Pending
        })
        .await
    }

    /// Has a request answered; `None` when another one may follow.
    async fn exchange<S: Service>(&mut self, head: Head, service: &Arc<S>) -> Result<Option<After>, Ended> {
        let (asked, mut keep_alive) = (head.asked, head.keep_alive);
        let body = self.begin(head.body, head.expects);
        let request = head.request.map(|()| body);
        // Boxed: a call's future is large, and most connections are idle most of the time.
        let mut call = Box::pin(Arc::clone(service).call(request));
        let answer = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending => self.poll_gone(cx).map(|()| Err(Ended::Gone)),
        })
        .await?;
        drop(call);
        let (head, body) = answer.into_parts();
        let switching = head.status == StatusCode::SWITCHING_PROTOCOLS;
        keep_alive &= self.may_go_on() && !self.drain.is_cancelled();
        let length = body.size_hint().exact();
        let framing = encode::answer(&head, length, asked, &mut keep_alive, &mut self.out.bytes);
        drop(head);
        self.body(body, framing).await?;
        if switching {
            return Ok(Some(After::Switched));
        }
        if !self.wire.state().rest.is_nothing() {
            self.wire.state().abandon();
            if !keep_alive || !self.discard().await {
                self.linger().await;
                return Ok(Some(After::Closed));
            }
        }
        if keep_alive {
            return Ok(None);
        }
        self.close().await;
        Ok(Some(After::Closed))
    }

    /// Readies the connection for a body.
    fn begin(&self, start: Start, expects: bool) -> Incoming {
        let rest = match start {
            Start::Whole(data) if data.is_empty() => return Incoming::Empty,
            Start::Whole(data) => return Incoming::Whole(data),
            Start::Later(rest) => rest,
        };
        let mut state = self.wire.state();
        let source = Arc::clone(&self.wire);
        let received = Received::new(source, state.request, &rest);
        state.rest = rest;
        state.expects = expects;
        Incoming::Stream(received)
    }

    /// Whether another request can follow on this one, as far as its body lets it. Who waits to be asked for it is told
    /// by the answer that nobody will.
    fn may_go_on(&self) -> bool {
        let mut state = self.wire.state();
        let asked = !std::mem::take(&mut state.expects);
        match &state.rest {
            Rest::Nothing => true,
            Rest::Bytes(left) => asked && *left <= UNWANTED,
            Rest::Chunks(_) | Rest::All => asked,
            Rest::Lost(_) => false,
        }
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.wire.state().poll_gone(self.config.head, cx)
    }

    /// Writes the body of an answer, and the head that waits already.
    async fn body<B>(&mut self, mut body: B, framing: encode::Framing) -> Result<(), Ended>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        let mut sending = Sending::new(framing);
        std::future::poll_fn(|cx| {
            loop {
                let waits = sending.gather(&mut body, &mut self.out, cx);
                if !self.out.is_empty() {
                    let mut state = self.wire.state();
                    ready!(state.poll_ask(cx))?;
                    ready!(self.out.poll_write(&mut state.io, cx))?;
                }
                if let Some(result) = sending.result.take() {
                    return Poll::Ready(result.map_err(Ended::Body));
                }
                if waits {
                    return self.poll_gone(cx).map(|()| Err(Ended::Gone));
                }
            }
        })
        .await
    }

    /// Reads what is left of a body that nobody wanted. Whether the connection can be used again.
    async fn discard(&self) -> bool {
        let mut room = UNWANTED;
        let read = std::future::poll_fn(|cx| {
            let mut state = self.wire.state();
            while !state.rest.is_nothing() {
                match ready!(state.poll_part(cx)) {
                    Ok(Part::Data(data)) => match room.checked_sub(data.len() as u64) {
                        Some(left) => room = left,
                        None => return Poll::Ready(false),
                    },
                    Ok(Part::Trailers(_) | Part::End) => {}
                    Err(_) => return Poll::Ready(false),
                }
            }
            Poll::Ready(true)
        });
        timeout(UNWANTED_TIME, read).await.unwrap_or(false)
    }

    async fn refuse(&mut self, refused: Refused) -> Result<After, Ended> {
        encode::refuse(refused, &mut self.out.bytes);
        let written = std::future::poll_fn(|cx| self.out.poll_write(&mut self.wire.state().io, cx));
        // Who talks and does not listen is not waited for.
        if let Ok(written) = timeout(LINGER, written).await {
            written?;
            self.linger().await;
        }
        Err(refused.into())
    }

    /// Says that nothing more comes.
    async fn close(&self) {
        let closed = std::future::poll_fn(|cx| Pin::new(&mut self.wire.state().io).poll_shutdown(cx));
        let _gone_already = closed.await;
    }

    /// Closes a connection on which the client still sends: what is not read would make the kernel take back the answer.
    async fn linger(&self) {
        self.close().await;
        let gone = std::future::poll_fn(|cx| {
            let mut state = self.wire.state();
            loop {
                state.read.clear();
                if matches!(ready!(state.poll_read(cx)), Ok(0) | Err(_)) {
                    return Poll::Ready(());
                }
            }
        });
        let _gone_or_late = timeout(LINGER, gone).await;
    }

    fn hand_back(self, how: fn(Rewound<I>) -> Served<I>) -> Result<Served<I>, Ended> {
        let wire = Arc::into_inner(self.wire).ok_or_else(|| {
            io::Error::other(
                "the body of a request is still in use on a connection that is to be handed back",
            )
        })?;
        let State { io, read, .. } = wire.into_state();
        Ok(how(Rewound::new(read.freeze(), io)))
    }
}
