//! The state of a connection: streams, windows, header compression, and queued output. Does no I/O and
//! never blocks.

mod buffered;
mod control;
mod headers;
mod lifecycle;
mod receive;
mod send;
mod shutdown;
mod timeouts;
mod windows;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::Request;

use crate::boundary::Incoming;
use crate::error::{ConnectionError, Reason, StreamError};
use crate::fields::UriCache;
use crate::frame::PREFACE;
use crate::hpack::{Decoder, Encoder};
use crate::limits::{Budget, REQUESTS_PER_TURN, STREAMS_PER_FRAME};
use crate::open_streams::OpenStreams;
use crate::queue::Piece;
use crate::recv_stream::RecvStream;
use crate::settings::{Config, INITIAL_WINDOW, PeerSettings};
use crate::stream::{Handle, RecvEnd, Stream, keep};
use crate::write_buffer::WriteBuffer;
use buffered::Buffered;
use lifecycle::ResetHistory;
use receive::Incomplete;
pub(crate) use shutdown::Phase;
use timeouts::Timers;
use windows::Growth;

/// Size of the peer's dynamic table in bytes: the protocol's default.
const HEADER_TABLE: usize = 4096;
/// Payload of the keep-alive PING.
pub(crate) const KEEP_ALIVE_PING: [u8; 8] = *b"there???";

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Streams by identifier. The peer chooses the identifiers, so each connection hashes them with a random
/// key.
type Streams = HashMap<u32, Stream, foldhash::fast::RandomState>;

/// A request and the identifier of its stream.
pub(crate) struct Accepted {
    pub(crate) stream: u32,
    pub(crate) request: Request<Incoming>,
}

pub(crate) struct State {
    role: Role,
    config: Config,
    peer: PeerSettings,
    pub(crate) output: WriteBuffer,
    streams: Streams,
    open_streams: OpenStreams,
    decoder: Decoder,
    encoder: Encoder,
    uris: UriCache,
    incomplete: Incomplete,
    /// Requests not yet dispatched to the application. Their streams may be closed.
    pending_accept: VecDeque<(u32, Request<()>)>,
    load: Arc<Load>,
    /// Requests that wait for the server to allow more streams, by ticket in order of arrival.
    pending_open: BTreeMap<u64, Waker>,
    last_ticket: u64,
    /// Bytes of DATA the peer may send on all streams.
    recv_window: u32,
    /// Bytes consumed but not yet returned by a WINDOW_UPDATE.
    released: u32,
    growth: Growth,
    /// Bytes allocated for received data but unused; they count as unread.
    slack: usize,
    /// Bytes charged for the header lists of all streams.
    header_memory: usize,
    /// Bytes of DATA we may send on all streams.
    send_window: i64,
    /// Streams that may send, in round-robin order.
    scheduled: VecDeque<u32>,
    /// Streams whose output waits only for the connection's window; visited when it opens.
    awaiting_window: VecDeque<u32>,
    /// Memory of the send queues of all streams, in bytes.
    buffered: Buffered,
    /// The highest identifier that the client has opened, whichever side this is.
    last_id: u32,
    phase: Phase,
    /// Recently reset streams.
    reset_history: ResetHistory,
    budget: Budget,
    timers: Timers,
    /// Waker of the connection's task.
    pub(crate) waker: Option<Waker>,
    /// Number of streams visited.
    #[cfg(test)]
    visited: usize,
}

/// Load of a connection, readable without a lock to choose among several connections.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Open streams.
    pub(crate) streams: AtomicUsize,
    /// No new streams can be opened.
    pub(crate) closed: AtomicBool,
}

/// A connection's state, shared by its task and its stream handles. The lock is never held across an await.
pub(crate) struct SharedState(Mutex<State>);

impl SharedState {
    pub(crate) fn new(config: &Config, role: Role) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::new(config, role))))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(config: &Config, role: Role) -> Self {
        let mut output = WriteBuffer::default();
        if role == Role::Client {
            output.tail().extend_from_slice(PREFACE);
        }
        config.announce(role == Role::Client, output.tail());
        Self {
            role,
            config: *config,
            peer: PeerSettings::default(),
            output,
            streams: Streams::default(),
            open_streams: OpenStreams::new(config.open_streams),
            decoder: Decoder::new(HEADER_TABLE),
            encoder: Encoder::new(),
            uris: UriCache::default(),
            incomplete: Incomplete::new(role),
            pending_accept: VecDeque::new(),
            load: Arc::default(),
            pending_open: BTreeMap::new(),
            last_ticket: 0,
            recv_window: config.connection_window.max(INITIAL_WINDOW),
            released: 0,
            growth: Growth::new(config.window_memory),
            slack: 0,
            header_memory: 0,
            send_window: i64::from(INITIAL_WINDOW),
            scheduled: VecDeque::new(),
            awaiting_window: VecDeque::new(),
            buffered: Buffered::new(config.unread_memory),
            last_id: 0,
            phase: Phase::Open,
            reset_history: ResetHistory::default(),
            budget: Budget::default(),
            timers: Timers::default(),
            waker: None,
            #[cfg(test)]
            visited: 0,
        }
    }

    /// Moves received requests to `to`, up to the limit of one turn. A completely received request includes
    /// its body. True if more remain.
    pub(crate) fn accept(&mut self, shared: &Arc<SharedState>, to: &mut Vec<Accepted>) -> bool {
        for _ in 0..REQUESTS_PER_TURN {
            let Some((id, head)) = self.pending_accept.pop_front() else {
                return false;
            };
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            if !stream.state.is_send_open() {
                // The stream was reset before the request was dispatched.
                self.drop_handles(id);
                continue;
            }
            stream.accepted = true;
            let body = match stream.take_complete() {
                Some(body) => {
                    stream.receiver = Handle::Dropped;
                    if let Incoming::Full(data) = &body {
                        self.release_connection_capacity(data.len());
                    }
                    body
                }
                None => RecvStream::new(Arc::clone(shared), id).incoming(stream.content_to_read()),
            };
            to.push(Accepted {
                stream: id,
                request: head.map(|()| body),
            });
        }
        !self.pending_accept.is_empty()
    }

    /// Starts a turn of the connection's task, whose waker is `waker`. True if requests remain from the
    /// last turn.
    pub(crate) fn begin_turn(&mut self, waker: &Waker) -> bool {
        keep(&mut self.waker, waker);
        !self.pending_accept.is_empty()
    }

    /// Takes the next received piece of a stream, or waits for it. DATA is returned to the windows.
    pub(crate) fn poll_piece(
        &mut self,
        id: u32,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Piece, StreamError>>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(None);
        };
        let slack = stream.recv_queue.slack();
        let Some(piece) = stream.recv_queue.pop() else {
            return match stream.state.recv_end() {
                None => {
                    stream.receiver.register(cx.waker());
                    Poll::Pending
                }
                // NO_ERROR: the rest of the message is not needed (RFC 9113 section 8.1).
                Some(RecvEnd::EndStream | RecvEnd::Failed(StreamError::Reset(Reason::NO_ERROR))) => {
                    Poll::Ready(None)
                }
                Some(RecvEnd::Failed(error)) => Poll::Ready(Some(Err(error))),
            };
        };
        self.slack -= slack - stream.recv_queue.slack();
        if let Piece::Data(data) = &piece {
            self.release_capacity(id, data.len());
        }
        Poll::Ready(Some(Ok(piece)))
    }

    pub(crate) fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        self.streams.get_mut(&id)
    }

    /// True for an idle stream: one never opened (RFC 9113 section 5.1).
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        id > self.last_id
    }

    /// True until the end of our message on the stream is queued.
    pub(crate) fn accepts_data(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(Stream::accepts_data)
    }

    /// Waits for capacity in a stream's send queue. Ready with `None` if the stream is closed for sending.
    pub(crate) fn poll_capacity(&mut self, id: u32, cx: &Context<'_>) -> Poll<Option<()>> {
        let most = if self.buffered.bytes() < self.config.send_buffers
            && self.buffered.has_room(self.config.send_buffer)
        {
            self.config.send_buffer
        } else {
            1
        };
        match self.streams.get(&id) {
            Some(stream) if stream.accepts_data() && stream.buffered < most => Poll::Ready(Some(())),
            _ => self.poll_reset(id, cx).map(|()| None),
        }
    }

    /// Waits until a stream is closed for sending.
    pub(crate) fn poll_reset(&mut self, id: u32, cx: &Context<'_>) -> Poll<()> {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.accepts_data()) else {
            return Poll::Ready(());
        };
        stream.sender.register(cx.waker());
        Poll::Pending
    }

    /// Charges an action that costs this side more than the peer.
    fn charge(&mut self, detail: &'static str) -> Result<(), ConnectionError> {
        within(self.budget.charge(1), detail)
    }

    /// Charges a frame without effect. Frames in proportion to streams and DATA are free.
    fn charge_idle_frame(&mut self, detail: &'static str) -> Result<(), ConnectionError> {
        within(self.budget.charge_frame(), detail)
    }

    /// Charges a frame that visits all streams.
    fn charge_all_streams(&mut self, detail: &'static str) -> Result<(), ConnectionError> {
        let streams = self.streams.len() / STREAMS_PER_FRAME;
        let cost = u32::try_from(streams).unwrap_or(u32::MAX).saturating_add(1);
        within(self.budget.charge(cost), detail)
    }

    /// Wakes the connection's task.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// A live view of the connection's load.
    pub(crate) fn load(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    fn count(&mut self) {
        self.open_streams.count(self.streams.len());
        self.load.streams.store(self.streams.len(), Ordering::Relaxed);
    }
}

fn within(budget: bool, detail: &'static str) -> Result<(), ConnectionError> {
    if budget {
        Ok(())
    } else {
        Err(ConnectionError::calm(detail))
    }
}

#[cfg(test)]
mod tests;
