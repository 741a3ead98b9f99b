//! The side that accepts. A request that has arrived whole, and whose answer is at hand, costs no task and no wake-up:
//! it is answered in the turn in which it was read.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::body::Incoming;
use crate::error::{Ended, Reason};
use crate::sending::Sending;
use crate::settings::{Asked, Config};
use crate::state::{Load, Opened, Role};
use crate::turns::{Silence, Turns};
use crate::wire::Wire;

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes> + Send + Unpin + 'static;

    /// Answers one request. The future is dropped when the client does not want the answer any more.
    fn call(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;

    /// A connection begins; `load` tells at any time how busy it is.
    fn connected(&self, load: Arc<Load>) {
        drop(load);
    }

    /// What the client is told when the body of an answer fails.
    fn reason(error: <Self::Body as Body>::Error) -> Reason;
}

/// How long to wait for a client.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// For its first words.
    pub preface: Duration,
    /// For any word later.
    pub silence: Silence,
}

/// A request without a body that asked, over HTTP/1.1, for its answer over HTTP/2 (RFC 7540 section 3.2).
#[derive(Debug)]
pub struct Upgrade {
    pub(crate) request: Request<()>,
    pub(crate) asked: Asked,
}

impl Upgrade {
    /// `settings` is the decoded value of its `HTTP2-Settings`; `None` when they cannot be settings.
    pub fn new(request: Request<()>, settings: &[u8]) -> Option<Self> {
        let mut asked = Asked::default();
        asked.update(settings).ok()?;
        Some(Self { request, asked })
    }
}

/// Serves a connection until the client is done, or, once `drain` is ready, until the calls in flight are.
///
/// # Errors
/// Why the connection ended early.
pub async fn serve<I, S, D>(
    io: I,
    service: Arc<S>,
    config: &Config,
    times: Times,
    drain: D,
) -> Result<(), Ended>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
    D: Future<Output = ()>,
{
    serve_upgraded(None, io, service, config, times, drain).await
}

/// As [`serve`]; with an `upgrade`, on a connection on which the answer to it has been sent: its request is that of
/// stream 1.
///
/// # Errors
/// Why the connection ended early.
pub async fn serve_upgraded<I, S, D>(
    upgrade: Option<Upgrade>,
    io: I,
    service: Arc<S>,
    config: &Config,
    times: Times,
    drain: D,
) -> Result<(), Ended>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
    D: Future<Output = ()>,
{
    let mut drain = pin!(drain);
    let mut draining = false;
    let wire = Wire::new(io, config, Role::Server);
    service.connected(wire.core.state().load());
    let mut opened = Vec::new();
    if let Some(upgrade) = upgrade {
        let mut state = wire.core.state();
        state.upgrade(upgrade);
        state.take_opened(&wire.core, &mut opened);
    }
    opened
        .drain(..)
        .for_each(|request| begin(&wire, &service, request));
    let mut turns = Turns::new(wire, Some(times.preface), Some(times.silence));
    std::future::poll_fn(|cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            turns.wire.core.state().leave();
        }
        turns.poll(cx, |wire| {
            let more = wire.core.state().take_opened(&wire.core, &mut opened);
            opened
                .drain(..)
                .for_each(|request| begin(wire, &service, request));
            more
        })
    })
    .await
}

/// Answers a request at once, or begins to.
fn begin<I, S>(wire: &Arc<Wire<I>>, service: &Arc<S>, opened: Opened)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
{
    let answer = Sending {
        wire: Arc::clone(wire),
        number: opened.stream,
    };
    // Boxed: a call's future is large, and starting a task moves it several times.
    let mut call = Box::pin(Arc::clone(service).call(opened.request));
    // The first poll may be the last. If it is not, the next one, by a task of the call's own, brings a waker.
    let mut cx = Context::from_waker(Waker::noop());
    match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))) {
        Ok(Poll::Ready(response)) => {
            if let Some(body) = respond::<S, I>(&answer, response) {
                tokio::spawn(answer.pump(body, S::reason));
            }
        }
        Ok(Poll::Pending) => {
            tokio::spawn(wait::<S, I, _>(answer, call));
        }
        // Dropping the answer tells the client.
        Err(_panicked) => {}
    }
}

async fn wait<S, I, F>(answer: Sending<I>, mut call: Pin<Box<F>>)
where
    S: Service,
    I: AsyncWrite + Unpin,
    F: Future<Output = Response<S::Body>>,
{
    let response = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => answer.poll_gone(cx).map(|()| None),
    });
    let Some(response) = response.await else { return };
    let rest = respond::<S, I>(&answer, response);
    answer.wire.queued();
    if let Some(body) = rest {
        answer.pump(body, S::reason).await;
    }
}

/// Hands over the head and what the body has without waiting; returns a body that has more.
fn respond<S, I>(answer: &Sending<I>, response: Response<S::Body>) -> Option<S::Body>
where
    S: Service,
    I: AsyncWrite + Unpin,
{
    let (head, body) = response.into_parts();
    let ended = body.is_end_stream();
    let head = Response::from_parts(head, ());
    if !answer.wire.core.state().respond(answer.number, &head, ended) || ended {
        return None;
    }
    answer.at_hand(body, S::reason)
}
