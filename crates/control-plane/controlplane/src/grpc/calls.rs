//! The calls of a connection. Stalled calls are aborted, and idle connections are closed.

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

/// Deadline of the first call on a connection.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Idle time after which a connection is closed gracefully.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a client may leave the response to a single request unread.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval of checks for unread responses.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum bytes of incomplete requests per connection.
const MAX_UNFINISHED_PER_CONNECTION: usize = 64 << 20;
/// Maximum bytes of incomplete requests of the process.
const MAX_UNFINISHED: usize = 512 << 20;

/// Incomplete requests of all connections.
static UNFINISHED_MEMORY: UnfinishedMemory = UnfinishedMemory::new();

const WATCH_JOBS: &str = "/dapr.proto.scheduler.v1.Scheduler/WatchJobs";

/// The control plane methods with client streaming, which may be silent for any time.
const CLIENT_STREAMING: [&str; 2] = ["/dapr.proto.placement.v1.Placement/ReportDaprStatus", WATCH_JOBS];

/// The first message of [`WATCH_JOBS`], which has a nested message with the sidecar's targets.
static WATCH: Nested = Nested::of(&[(1, &FLAT)]);

/// The kind of request of the method at this path.
fn request_kind(path: &str) -> RequestKind {
    match CLIENT_STREAMING.contains(&path) {
        true => RequestKind::Streaming,
        false => RequestKind::Unary,
    }
}

/// A transaction of etcd's API, whose operations may be transactions.
static TXN: Nested = Nested::of(&[(2, &STEP), (3, &STEP)]);
static STEP: Nested = Nested::of(&[(4, &TXN)]);

/// Where the messages of the method at this path may have many fields, other than at the top level.
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
    /// Number of calls in flight.
    open: usize,
    /// Their share of the limit over all connections.
    open_streams: OpenStreams,
    /// Start of the idle time and its maximum.
    idle: (Instant, Duration),
    /// Responses by call number, with the time when the client last made room for more.
    waiting: HashMap<u64, Waiting>,
    next: u64,
}

/// A response that waits for its client.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Aborts the call. The body cannot end it, because HTTP/2 does not poll a body before there is room.
    call: Option<AbortHandle>,
}

tokio::task_local! {
    /// Aborts the current call.
    static SERVED: AbortHandle;
}

/// Runs each call of a connection so that it can be aborted, which resets its stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served;

impl<F> Executor<F> for Served
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, call: F) {
        let (handle, registration) = AbortHandle::new_pair();
        // Owned by the connection, which ends after its calls; aborting it resets the call's stream.
        tokio::spawn(SERVED.scope(handle, Abortable::new(call, registration)));
    }
}

/// Why a connection is closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("without a call")]
    NoCall,
    #[error("that was idle for too long")]
    Idle,
    #[error("whose client does not read its responses")]
    Unread,
}

impl Calls {
    pub(super) fn new() -> Arc<Self> {
        Self::within(&budget::CALLS)
    }

    /// Counts calls in flight against `calls`.
    fn within(calls: &'static SharedLimit) -> Arc<Self> {
        let bounds = Bounds {
            connection: MAX_UNFINISHED_PER_CONNECTION,
            process: MAX_UNFINISHED,
        };
        Arc::new(Self {
            state: Mutex::new(State {
                open: 0,
                open_streams: OpenStreams::new(Some(calls)),
                idle: (Instant::now(), FIRST_CALL_TIMEOUT),
                waiting: HashMap::new(),
                next: 0,
            }),
            unfinished: Unfinished::new(bounds, &UNFINISHED_MEMORY),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call.
    ///
    /// # Errors
    /// If all connections together have too many calls.
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

    /// Resolves when the connection should be closed.
    pub(super) async fn close_reason(&self) -> CloseReason {
        loop {
            let now = Instant::now();
            let next = {
                let mut state = self.state();
                if !state.abort_unread(now) {
                    return CloseReason::Unread;
                }
                let (since, limit) = state.idle;
                match state.open {
                    0 if now.duration_since(since) < limit => since + limit,
                    0 if limit == FIRST_CALL_TIMEOUT => return CloseReason::NoCall,
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

    /// Aborts the calls whose clients do not read their responses. Returns false if the connection must be
    /// closed instead: it has no other calls, or a call cannot be aborted.
    fn abort_unread(&mut self, now: Instant) -> bool {
        let is_read = |waiting: &Waiting| now.duration_since(waiting.since) < UNREAD_TIMEOUT;
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
            tracing::debug!(target: LOG, "aborted {unread} calls with unread responses");
        }
        all_given_up
    }
}

/// A call in flight, until the end of its response.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    number: u64,
    kind: RequestKind,
    nested: &'static Nested,
}

impl Call {
    /// Wraps the request body for the service.
    pub(super) fn request(&self, body: Incoming) -> Body {
        let held = Arc::clone(&self.calls.unfinished).begin();
        Body::new(RequestBody(
            Messages::new(body, self.kind)
                .counting(self.nested)
                .held_in(Some(held)),
        ))
    }

    /// Wraps the response body for the client.
    pub(super) fn answer(self, body: Body) -> Body {
        Body::new(Answer {
            body,
            call: self,
            rest: Bytes::new(),
        })
    }

    /// A piece of the response was taken; it is sent once the client makes room.
    fn handed_out(&self) {
        if self.kind == RequestKind::Unary {
            let waiting = Waiting {
                since: Instant::now(),
                call: SERVED.try_with(AbortHandle::clone).ok(),
            };
            self.calls.state().waiting.insert(self.number, waiting);
        }
    }

    /// The client has room for more.
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
            state.idle = (Instant::now(), IDLE_TIMEOUT);
        }
    }
}

/// Maps errors of a request body to statuses.
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

/// The body of a response, split into pieces. A piece is polled only after the client has made room for the
/// previous one, so an unread response can be detected. A body in one piece would be buffered whole.
struct Answer {
    body: Body,
    call: Call,
    /// Rest of a message that has begun.
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
