//! What a connection knows: its streams, windows and frames on their way out. Nothing here waits or touches a socket.

mod open;
mod receive;
mod send;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::Request;

use crate::body::{Incoming, Received};
use crate::error::{Broken, Cut, Reason};
use crate::frame::PREFACE;
use crate::head::Known;
use crate::hpack::{Decoder, Encoder};
use crate::limits::{Budget, REQUESTS_PER_TURN, STREAMS_PER_FRAME};
use crate::out::Out;
use crate::queue::Piece;
use crate::settings::{Asked, Config, MAX_WINDOW, WINDOW};
use crate::stream::{Coming, Stream, keep};
use receive::Incomplete;
use watch::Watch;

/// Dynamic table of the peer's header compression, bytes: the protocol's own default.
const HEADER_TABLE: usize = 4096;
/// Streams in a row of which each is remembered when we reset it: what was under way for it is ignored.
const REMEMBERED: usize = 1024;

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Streams by number. The peer chooses the numbers, so they are hashed with a key of the connection's own.
type Streams = HashMap<u32, Stream, foldhash::fast::RandomState>;

/// A request and its stream.
pub(crate) struct Opened {
    pub(crate) stream: u32,
    pub(crate) request: Request<Incoming>,
}

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// We said that there will be an end, and wait to hear that the peer knows.
    Leaving,
    /// No new streams.
    Left,
}

pub(crate) struct State {
    role: Role,
    config: Config,
    asked: Asked,
    pub(crate) out: Out,
    streams: Streams,
    decoder: Decoder,
    encoder: Encoder,
    known: Known,
    incomplete: Incomplete,
    /// Requests that have not been handed over; their streams may be over.
    opened: VecDeque<(u32, Request<()>)>,
    load: Arc<Load>,
    /// Requests that wait for the server to allow more streams, by when they began to.
    waiting: BTreeMap<u64, Waker>,
    /// How many have waited.
    waited: u64,
    /// Bytes the peer may send on all streams, and bytes read since room was made for them.
    room: u32,
    taken: u32,
    /// Bytes of memory that wait with what has arrived and have no use: they count as bytes that were not read.
    spare: usize,
    /// What the fields of all streams are charged, bytes.
    header_memory: usize,
    /// Bytes we may send on all streams.
    window: i64,
    /// Streams that have something to send.
    line: VecDeque<u32>,
    /// Those of them that wait for nothing but the connection's window. They are visited when it opens.
    without_window: VecDeque<u32>,
    /// Bytes that wait in all streams.
    queued: usize,
    /// The highest stream that was begun: by the client, whoever that is.
    last: u32,
    phase: Phase,
    /// Streams we reset lately, each in a place that follows from its number; empty until there is one.
    reset: Vec<u32>,
    budget: Budget,
    /// Something came since this was last asked.
    heard: bool,
    watch: Watch,
    /// That of the connection's own task.
    pub(crate) waker: Option<Waker>,
    /// Streams that were looked at.
    #[cfg(test)]
    visited: usize,
}

/// How busy a connection is, for those who choose one of several and need no lock for it.
#[derive(Debug, Default)]
pub struct Load {
    /// Streams.
    pub(crate) open: AtomicUsize,
    /// No stream can be begun any more.
    pub(crate) closed: AtomicBool,
}

impl Load {
    /// Requests that are not over: their answers have not been sent, or read, to the end.
    pub fn streams(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// A connection's state, shared by its task and whoever answers its streams.
pub(crate) struct Core(Mutex<State>);

impl Core {
    pub(crate) fn new(config: &Config, role: Role) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::new(config, role))))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(config: &Config, role: Role) -> Self {
        let mut out = Out::default();
        if role == Role::Client {
            out.tail().extend_from_slice(PREFACE);
        }
        config.announce(role == Role::Client, out.tail());
        Self {
            role,
            config: *config,
            asked: Asked::default(),
            out,
            streams: Streams::default(),
            decoder: Decoder::new(HEADER_TABLE),
            encoder: Encoder::new(),
            known: Known::default(),
            incomplete: Incomplete::new(role),
            opened: VecDeque::new(),
            load: Arc::default(),
            waiting: BTreeMap::new(),
            waited: 0,
            room: config.connection_window.max(WINDOW),
            taken: 0,
            spare: 0,
            header_memory: 0,
            window: i64::from(WINDOW),
            line: VecDeque::new(),
            without_window: VecDeque::new(),
            queued: 0,
            last: 0,
            phase: Phase::Open,
            reset: Vec::new(),
            budget: Budget::default(),
            heard: false,
            watch: Watch::default(),
            waker: None,
            #[cfg(test)]
            visited: 0,
        }
    }

    /// Moves requests that have come to `to`, as many as one turn takes. What has arrived whole comes with its body.
    /// True when there are more.
    pub(crate) fn take_opened(&mut self, core: &Arc<Core>, to: &mut Vec<Opened>) -> bool {
        for _ in 0..REQUESTS_PER_TURN {
            let Some((number, head)) = self.opened.pop_front() else {
                return false;
            };
            let Some(stream) = self.streams.get_mut(&number) else {
                continue;
            };
            if stream.sent {
                // It was reset meanwhile: nobody has to hear of it.
                self.abandon(number);
                continue;
            }
            stream.seen = true;
            let body = match stream.take_whole() {
                Some(body) => {
                    stream.read = false;
                    if let Incoming::Whole(data) = &body {
                        self.give_back(data.len());
                    }
                    body
                }
                None => Received::new(Arc::clone(core), number).later(stream.expected()),
            };
            to.push(Opened {
                stream: number,
                request: head.map(|()| body),
            });
        }
        !self.opened.is_empty()
    }

    /// Begins a turn of the connection's task, whose waker is `waker`. True when requests wait since the last one.
    pub(crate) fn begin_turn(&mut self, waker: &Waker) -> bool {
        keep(&mut self.waker, waker);
        !self.opened.is_empty()
    }

    /// Makes room on the connection for what was read.
    fn give_back(&mut self, read: usize) {
        self.taken += u32::try_from(read).unwrap_or(u32::MAX);
        let spare = u32::try_from(self.spare).unwrap_or(u32::MAX);
        let free = self.taken.saturating_sub(spare);
        if free >= self.config.connection_window / 2 {
            self.room += free;
            self.out.window(0, free);
            self.taken -= free;
            self.wake();
        }
    }

    /// Makes room on a stream, and on the connection, for what was read of it.
    pub(crate) fn read(&mut self, number: u32, read: usize) {
        let read = u32::try_from(read).unwrap_or(u32::MAX);
        self.give_back(read as usize);
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.taken += read;
        if stream.coming == Coming::More && stream.taken >= self.config.stream_window / 2 {
            stream.room += stream.taken;
            self.out.window(number, stream.taken);
            stream.taken = 0;
            self.wake();
        }
    }

    /// Nobody reads a stream any more: what arrives for it counts as read.
    pub(crate) fn unread(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        stream.read = false;
        stream.reader = None;
        let dropped = stream.arrived.bytes();
        self.spare -= stream.arrived.spare();
        stream.arrived.clear();
        self.give_back(usize::try_from(dropped).unwrap_or(usize::MAX));
        self.settle(number);
    }

    /// Takes the next piece of what has arrived on a stream, or waits for it. Data makes room for more.
    pub(crate) fn poll_arrived(&mut self, number: u32, cx: &Context<'_>) -> Poll<Option<Result<Piece, Cut>>> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Poll::Ready(None);
        };
        let spare = stream.arrived.spare();
        let Some(piece) = stream.arrived.pop() else {
            return match stream.coming {
                Coming::More => {
                    keep(&mut stream.reader, cx.waker());
                    Poll::Pending
                }
                // RFC 9113 section 8.1: no more of this message is needed.
                Coming::Ended | Coming::Cut(Cut::Reset(Reason::NO_ERROR)) => Poll::Ready(None),
                Coming::Cut(why) => Poll::Ready(Some(Err(why))),
            };
        };
        self.spare -= spare - stream.arrived.spare();
        if let Piece::Data(data) = &piece {
            self.read(number, data.len());
        }
        Poll::Ready(Some(Ok(piece)))
    }

    pub(crate) fn stream(&mut self, number: u32) -> Option<&mut Stream> {
        self.streams.get_mut(&number)
    }

    /// True while an answer to a stream has no end.
    pub(crate) fn takes_more(&self, number: u32) -> bool {
        self.streams
            .get(&number)
            .is_some_and(|stream| !stream.ends && !stream.sent)
    }

    /// Waits until a stream's queue has room; with `room` false, for its end only. Ready with `None` when it takes no
    /// more.
    pub(crate) fn poll_room(&mut self, number: u32, cx: &Context<'_>, room: bool) -> Poll<Option<()>> {
        let most = if self.queued < self.config.send_buffers {
            self.config.send_buffer
        } else {
            1
        };
        let Some(stream) = self.streams.get_mut(&number).filter(|s| !s.ends && !s.sent) else {
            return Poll::Ready(None);
        };
        if room && stream.queued < most {
            return Poll::Ready(Some(()));
        }
        keep(&mut stream.writer, cx.waker());
        Poll::Pending
    }

    /// Nobody answers a stream any more.
    pub(crate) fn answered(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.answered = false;
            stream.writer = None;
            self.settle(number);
        }
    }

    /// Forgets a stream that is over, and ends one that goes on for nobody: a server that has answered needs no more of
    /// the request (RFC 9113 section 8.1), and a client whose answer is not wanted need not be told.
    fn settle(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        let comes = stream.coming == Coming::More;
        let reason = match self.role {
            Role::Server if stream.sent && comes => Reason::NO_ERROR,
            Role::Client if !stream.sent || comes => Reason::CANCEL,
            _ => return self.forget(number),
        };
        if !stream.read {
            self.end(number, reason, Cut::Reset(reason));
            self.forget(number);
        }
    }

    /// Nobody will ever see or answer a stream.
    fn abandon(&mut self, number: u32) {
        self.unread(number);
        self.answered(number);
    }

    fn forget(&mut self, number: u32) {
        let Entry::Occupied(stream) = self.streams.entry(number) else {
            return;
        };
        if !stream.get().is_over() {
            return;
        }
        self.header_memory -= stream.remove().header_memory;
        self.count();
        self.wake_waiting();
        if self.phase == Phase::Left && self.streams.is_empty() {
            self.wake();
        }
    }

    fn insert(&mut self, number: u32, stream: Stream) {
        self.streams.insert(number, stream);
        self.budget.begun();
        self.count();
    }

    fn count(&self) {
        self.load.open.store(self.streams.len(), Ordering::Relaxed);
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.load.closed.store(phase == Phase::Left, Ordering::Relaxed);
    }

    fn remember(&mut self, number: u32) {
        if self.reset.is_empty() {
            self.reset = vec![0; REMEMBERED];
        }
        if let Some(place) = self.reset.get_mut(place(number)) {
            *place = number;
        }
    }

    /// Resets a stream, for `reason`.
    pub(crate) fn reset(&mut self, number: u32, reason: Reason) {
        self.reset_as(number, reason, Cut::Reset(reason));
    }

    /// Resets a stream, for `reason`. Whoever reads it is told `why`.
    fn reset_as(&mut self, number: u32, reason: Reason, why: Cut) {
        let Some(stream) = self.streams.get(&number) else {
            return;
        };
        if !stream.sent || stream.coming == Coming::More {
            self.end(number, reason, why);
        }
        self.forget(number);
    }

    /// Ends both sides of a stream before their time.
    fn end(&mut self, number: u32, reason: Reason, why: Cut) {
        self.cut_stream(number, why);
        self.out.reset(number, reason);
        self.remember(number);
        self.wake();
    }

    fn cut_stream(&mut self, number: u32, why: Cut) {
        if let Some(stream) = self.streams.get_mut(&number) {
            self.queued -= stream.cut(why);
        }
    }

    /// Whether frames of a stream that is over are those that were on their way when we gave it up.
    fn gave_up(&self, number: u32) -> bool {
        self.role == Role::Client || self.reset.get(place(number)) == Some(&number)
    }

    /// Tells the peer that a frame of a stream, which may be none of ours, is wrong.
    fn refuse_frame(&mut self, number: u32, reason: Reason) {
        match self.streams.get(&number) {
            Some(stream) if !stream.sent || stream.coming == Coming::More => self.reset(number, reason),
            // It is over, whoever may still have it.
            _ => {
                self.out.reset(number, reason);
                self.remember(number);
            }
        }
    }

    /// Charges what costs us more than the peer.
    fn charge(&mut self, what: &'static str) -> Result<(), Broken> {
        paid(self.budget.take(1), what)
    }

    /// Charges a frame that had no effect. As many as go with streams and data are free.
    fn charge_idle_frame(&mut self, what: &'static str) -> Result<(), Broken> {
        paid(self.budget.take_one(), what)
    }

    /// Charges a frame for which all streams are looked at.
    fn charge_for_all(&mut self, what: &'static str) -> Result<(), Broken> {
        let streams = self.streams.len() / STREAMS_PER_FRAME;
        let cost = u32::try_from(streams).unwrap_or(u32::MAX).saturating_add(1);
        paid(self.budget.take(cost), what)
    }

    /// Tells the connection's task that there is something to do.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Tells as many as there is room for that they may begin a stream; all, when nobody may any more.
    fn wake_waiting(&mut self) {
        let room = match self.phase {
            Phase::Left => usize::MAX,
            _ => (self.asked.streams as usize).saturating_sub(self.streams.len()),
        };
        for _ in 0..room.min(self.waiting.len()) {
            if let Some((_, waker)) = self.waiting.pop_first() {
                waker.wake();
            }
        }
    }

    /// Whoever waited to begin a stream as `ticket` does not any more. If it was its turn, the next has it.
    pub(crate) fn stop_waiting(&mut self, ticket: u64) {
        if self.waiting.remove(&ticket).is_none() {
            self.wake_waiting();
        }
    }

    /// True when the peer has been heard of since this was last asked.
    pub(crate) fn was_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Begins to end: the peer is told that it should open no more streams. One that has said nothing yet is not waited
    /// for.
    pub(crate) fn leave(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        self.set_phase(Phase::Leaving);
        if self.awaits_preface() {
            self.leave_now();
        } else {
            self.out.go_away(MAX_WINDOW, Reason::NO_ERROR);
            self.out.ping(LEAVE);
        }
    }

    /// The peer knows: what it opened until now is answered, and nothing else.
    fn leave_now(&mut self) {
        if self.phase == Phase::Leaving {
            self.set_phase(Phase::Left);
            self.out.go_away(self.last, Reason::NO_ERROR);
        }
    }

    /// No more requests will be sent; the connection ends with the last of those that were.
    pub(crate) fn finish(&mut self) {
        if self.phase != Phase::Left {
            self.set_phase(Phase::Left);
            self.out.go_away(0, Reason::NO_ERROR);
            self.wake_waiting();
        }
        self.wake();
    }

    /// How busy the connection is; it follows.
    pub(crate) fn load(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    /// True when nothing is left to do.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Left && self.streams.is_empty() && self.out.is_empty()
    }

    /// True until the client has said that it speaks HTTP/2.
    pub(crate) fn awaits_preface(&self) -> bool {
        self.incomplete.awaits_preface()
    }

    /// The last word to a peer that broke the protocol.
    pub(crate) fn refuse(&mut self, broken: Broken) {
        self.out.go_away(self.last, broken.reason);
    }

    /// The connection is gone: so are its streams.
    pub(crate) fn cut(&mut self) {
        self.waker = None;
        for stream in self.streams.values_mut() {
            self.queued -= stream.cut(Cut::Connection);
        }
        self.streams.retain(|_, stream| !stream.is_over());
        self.count();
        self.set_phase(Phase::Left);
        self.wake_waiting();
    }
}

/// Where a stream that was reset is remembered. Clients have odd numbers only.
fn place(number: u32) -> usize {
    number as usize / 2 % REMEMBERED
}

fn paid(paid: bool, what: &'static str) -> Result<(), Broken> {
    if paid { Ok(()) } else { Err(Broken::calm(what)) }
}

/// What our ping says when we leave, and when we want to know whether somebody is there.
const LEAVE: [u8; 8] = *b"leaving.";
/// See [`LEAVE`].
pub(crate) const THERE: [u8; 8] = *b"there???";
