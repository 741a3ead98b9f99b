//! The calls of a connection: what stops half-way is given up, and a connection without any ends.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{AbortHandle, Abortable};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use outrigger_accept::budget::{self, OpenStreams, SharedLimit, TOO_MANY_CALLS};
use outrigger_grpc::fields::{FLAT, Nested, TooManyFields};
use outrigger_grpc::messages::{MessageTimeout, Messages, RequestKind};
use outrigger_grpc::unfinished::{Bounds, TooMuchUnfinished, Unfinished, UnfinishedMemory};
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;

use super::{LOG, SEND_BUFFER};

/// Time until the first call of a connection.
const FIRST_CALL: Duration = Duration::from_secs(20);
/// Time without a call, after the first, after which a connection ends in order.
const IDLE: Duration = Duration::from_secs(600);
/// Time in which a client reads nothing of an answer to a single request.
const UNREAD: Duration = Duration::from_secs(300);
/// Between two looks at the answers that nobody reads.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes of requests that a connection has begun and not ended.
const UNFINISHED: usize = 64 << 20;
/// The same, of all connections of a process.
const MAX_UNFINISHED: usize = 512 << 20;

/// What all connections of the process have begun and not ended.
static UNFINISHED_MEMORY: UnfinishedMemory = UnfinishedMemory::new();

const WATCH_JOBS: &str = "/dapr.proto.scheduler.v1.Scheduler/WatchJobs";

/// The methods of the control plane that take a stream of messages, and so may be silent for as long as they like.
const CLIENT_STREAMING: [&str; 2] = ["/dapr.proto.placement.v1.Placement/ReportDaprStatus", WATCH_JOBS];

/// The first message of [`WATCH_JOBS`]: what the sidecar takes is in a message of its own.
static WATCH: Nested = Nested::of(&[(1, &FLAT)]);

/// What the method at this path is called with.
fn request_kind(path: &str) -> RequestKind {
    match CLIENT_STREAMING.contains(&path) {
        true => RequestKind::Streaming,
        false => RequestKind::Unary,
    }
}

/// A transaction of etcd's API: steps may be transactions.
static TXN: Nested = Nested::of(&[(2, &STEP), (3, &STEP)]);
static STEP: Nested = Nested::of(&[(4, &TXN)]);

/// Where messages of the method at this path can have many fields, besides at the top.
fn nested(path: &str) -> &'static Nested {
    match path {
        WATCH_JOBS => &WATCH,
        "/etcdserverpb.KV/Txn" => &TXN,
        _ => &FLAT,
    }
}

/// The calls of a connection.
#[derive(Debug)]
pub(super) struct Calls {
    state: Mutex<State>,
    unfinished: Arc<Unfinished>,
}

#[derive(Debug)]
struct State {
    /// Calls that are served.
    open: usize,
    /// Their part in those of all connections.
    open_streams: OpenStreams,
    /// Since when there is none, and how long that may last.
    idle: (Instant, Duration),
    /// The answers that were taken from when the client last made room for more, by the numbers of their calls.
    waiting: HashMap<u64, Waiting>,
    next: u64,
}

/// An answer that waits for its client.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Gives the call up: HTTP/2 asks for no more of an answer before there is room, so that its body cannot end it.
    call: Option<AbortHandle>,
}

tokio::task_local! {
    /// Gives up the call that is served.
    static SERVED: AbortHandle;
}

/// Runs the calls of connections so that each can be given up: its stream is reset then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served;

impl<F> Executor<F> for Served
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        let (handle, registration) = AbortHandle::new_pair();
        // Its owner is the connection, which ends after its calls; where it is cut, the call's stream is reset.
        tokio::spawn(SERVED.scope(handle, Abortable::new(call, registration)));
    }
}

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("without a call")]
    NoCall,
    #[error("that has had no calls for too long")]
    Idle,
    #[error("whose client reads none of its answers")]
    Unread,
}

impl Calls {
    pub(super) fn new() -> Arc<Self> {
        Self::within(&budget::CALLS)
    }

    /// Counts the calls in flight there.
    fn within(calls: &'static SharedLimit) -> Arc<Self> {
        let bounds = Bounds {
            connection: UNFINISHED,
            process: MAX_UNFINISHED,
        };
        Arc::new(Self {
            state: Mutex::new(State {
                open: 0,
                open_streams: OpenStreams::new(Some(calls)),
                idle: (Instant::now(), FIRST_CALL),
                waiting: HashMap::new(),
                next: 0,
            }),
            unfinished: Unfinished::new(bounds, &UNFINISHED_MEMORY),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call begins.
    ///
    /// # Errors
    /// All connections have too many.
    pub(super) fn begin(self: &Arc<Self>, path: &str) -> Result<Call, Status> {
        let mut state = self.state();
        let open = state.open;
        if !state.open_streams.has_room(open) {
            return Err(Status::resource_exhausted(TOO_MANY_CALLS));
        }
        state.set_open(open + 1);
        state.next += 1;
        Ok(Call {
            calls: Arc::clone(self),
            number: state.next,
            kind: request_kind(path),
            nested: nested(path),
        })
    }

    /// Ends when the connection should.
    pub(super) async fn close_reason(&self) -> CloseReason {
        loop {
            let now = Instant::now();
            let next = {
                let mut state = self.state();
                if !state.give_up(now) {
                    return CloseReason::Unread;
                }
                let (since, limit) = state.idle;
                match state.open {
                    0 if now.duration_since(since) < limit => since + limit,
                    0 if limit == FIRST_CALL => return CloseReason::NoCall,
                    0 => return CloseReason::Idle,
                    _ => now + POLL_INTERVAL,
                }
            };
            sleep_until(next).await;
        }
    }
}

impl State {
    fn set_open(&mut self, open: usize) {
        self.open = open;
        self.open_streams.count(open);
    }

    /// Gives up the calls whose clients do not read their answers. Not if there are no others: nobody needs the connection
    /// then, and its end frees all.
    fn give_up(&mut self, now: Instant) -> bool {
        let is_read = |waiting: &Waiting| now.duration_since(waiting.since) < UNREAD;
        let unread = self.waiting.values().filter(|waiting| !is_read(waiting)).count();
        if unread > 0 && unread == self.open {
            return false;
        }
        let mut all_given_up = true;
        self.waiting.retain(|_, waiting| {
            let keep = is_read(waiting);
            if !keep {
                match &waiting.call {
                    Some(call) => call.abort(),
                    None => all_given_up = false,
                }
            }
            keep
        });
        if unread > 0 {
            tracing::debug!(target: LOG, "gave up {unread} calls whose client does not read the answer");
        }
        all_given_up
    }
}

/// A call that is served. Its end is that of its answer.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    number: u64,
    kind: RequestKind,
    nested: &'static Nested,
}

impl Call {
    /// What the service reads of the request.
    pub(super) fn request(&self, body: Incoming) -> Body {
        let held = Arc::clone(&self.calls.unfinished).begin();
        Body::new(RequestBody(
            Messages::new(body, self.kind)
                .counting(self.nested)
                .held_in(Some(held)),
        ))
    }

    /// What the client is sent.
    pub(super) fn answer(self, body: Body) -> Body {
        Body::new(Answer {
            body,
            call: self,
            rest: Bytes::new(),
        })
    }

    /// A piece of the answer was taken, and is on its way as soon as the client makes room for it.
    fn handed_out(&self) {
        if self.kind == RequestKind::Unary {
            let waiting = Waiting {
                since: Instant::now(),
                call: SERVED.try_with(AbortHandle::clone).ok(),
            };
            self.calls.state().waiting.insert(self.number, waiting);
        }
    }

    /// The client has room.
    fn asked(&self) {
        if self.kind == RequestKind::Unary {
            self.calls.state().waiting.remove(&self.number);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        state.waiting.remove(&self.number);
        let open = state.open - 1;
        state.set_open(open);
        if state.open == 0 {
            state.idle = (Instant::now(), IDLE);
        }
    }
}

/// What is wrong with a request, as a status.
struct RequestBody(Messages<Incoming>);

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => Some(Err(if error.is::<MessageTimeout>() {
                Status::deadline_exceeded(error.to_string())
            } else if error.is::<TooManyFields>() || error.is::<TooMuchUnfinished>() {
                Status::resource_exhausted(error.to_string())
            } else {
                Status::from_error(error)
            })),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// The body of an answer, in pieces: it is asked for the next but one when the client has made room for the last. In one
/// piece all of it would be taken at once, and wait for a client that does not read where nobody sees it.
struct Answer {
    body: Body,
    call: Call,
    /// Of a message that has begun.
    rest: Bytes,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.call.asked();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
        let length = self.rest.len().min(SEND_BUFFER);
        let piece = self.rest.split_to(length);
        self.call.handed_out();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest.is_empty() {
            true => self.body.size_hint(),
            false => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
