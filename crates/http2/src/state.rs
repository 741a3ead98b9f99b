//! What a connection knows: its streams, windows and frames on their way out. Nothing here waits or touches a socket.

mod open;
mod receive;
mod send;

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use http::Request;

use crate::body::{Incoming, Received};
use crate::error::{Broken, Cut, Reason};
use crate::frame::PREFACE;
use crate::head::Known;
use crate::hpack::{Decoder, Encoder};
use crate::out::Out;
use crate::settings::{Asked, Config, MAX_WINDOW, WINDOW};
use crate::stream::{Coming, Piece, Stream, keep};
use receive::Incomplete;

/// Dynamic table of the peer's header compression, bytes: the protocol's own default.
const HEADER_TABLE: usize = 4096;
/// Streams we reset lately: what was under way for them is ignored.
const REMEMBERED: usize = 1024;
/// What a peer may do at once that costs us more than it, and how much of it comes back in a second. An app whose calls
/// all run into their deadlines stays below; one that does nothing else does not.
const PATIENCE: (u32, u32) = (10_000, 2_000);

/// Which side of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Streams by number. Numbers are spread by a multiplication: they come from the peer, but it can choose no more than
/// some of a growing row of them.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2⁶⁴ divided by the golden ratio.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Streams = HashMap<u32, Stream, BuildHasherDefault<Spread>>;

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

/// Counts what a peer makes us do for nothing.
struct Patience {
    left: u32,
    since: Option<Instant>,
}

impl Patience {
    /// False when it has run out.
    fn take(&mut self) -> bool {
        let now = Instant::now();
        let seconds = self.since.map_or(0, |since| now.duration_since(since).as_secs());
        if seconds > 0 {
            let more = u32::try_from(seconds)
                .unwrap_or(u32::MAX)
                .saturating_mul(PATIENCE.1);
            self.left = self.left.saturating_add(more).min(PATIENCE.0);
        }
        if seconds > 0 || self.since.is_none() {
            self.since = Some(now);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
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
    /// Requests that have not been handed over.
    opened: Vec<(u32, Request<()>)>,
    load: Arc<Load>,
    /// Requests that wait for the server to allow more streams.
    waiting: Vec<Waker>,
    /// Bytes the peer may send on all streams, and bytes read since room was made for them.
    room: u32,
    taken: u32,
    /// Bytes we may send on all streams.
    window: i64,
    /// Streams that have something to send.
    line: VecDeque<u32>,
    /// The highest stream that was begun: by the client, whoever that is.
    last: u32,
    phase: Phase,
    reset: VecDeque<u32>,
    patience: Patience,
    /// Something came since this was last asked.
    heard: bool,
    /// That of the connection's own task.
    pub(crate) waker: Option<Waker>,
}

/// How busy a connection is, for those who choose one of several and need no lock for it.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Streams.
    pub(crate) open: AtomicUsize,
    /// No stream can be begun any more.
    pub(crate) closed: AtomicBool,
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
            opened: Vec::new(),
            load: Arc::default(),
            waiting: Vec::new(),
            room: config.connection_window.max(WINDOW),
            taken: 0,
            window: i64::from(WINDOW),
            line: VecDeque::new(),
            last: 0,
            phase: Phase::Open,
            reset: VecDeque::new(),
            patience: Patience {
                left: PATIENCE.0,
                since: None,
            },
            heard: false,
            waker: None,
        }
    }

    /// Moves the requests that have come to `to`. What has arrived whole comes with its body.
    pub(crate) fn take_opened(&mut self, core: &Arc<Core>, to: &mut Vec<Opened>) {
        let mut opened = std::mem::take(&mut self.opened);
        for (number, head) in opened.drain(..) {
            let Some(stream) = self.streams.get_mut(&number) else {
                continue;
            };
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
        self.opened = opened;
    }

    /// Makes room on the connection for what was read.
    fn give_back(&mut self, read: usize) {
        self.taken += u32::try_from(read).unwrap_or(u32::MAX);
        if self.taken >= self.config.connection_window / 2 {
            self.room += self.taken;
            self.out.window(0, self.taken);
            self.taken = 0;
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
        let mut dropped = 0;
        while let Some(piece) = stream.arrived.pop() {
            if let Piece::Data(data) = piece {
                dropped += data.len();
            }
        }
        self.give_back(dropped);
        self.settle(number);
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
        let most = self.config.send_buffer;
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
            stream.cut(Cut::Reset(reason));
            self.out.reset(number, reason);
            self.remember(number);
            self.wake();
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u32) {
        if !self.streams.get(&number).is_some_and(Stream::is_over) {
            return;
        }
        self.streams.remove(&number);
        self.count();
        self.wake_waiting();
        if self.phase == Phase::Left && self.streams.is_empty() {
            self.wake();
        }
    }

    fn insert(&mut self, number: u32, stream: Stream) {
        self.streams.insert(number, stream);
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
        if self.reset.len() == REMEMBERED {
            self.reset.pop_front();
        }
        self.reset.push_back(number);
    }

    /// Resets a stream, for `reason`.
    pub(crate) fn reset(&mut self, number: u32, reason: Reason) {
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if !stream.sent || stream.coming == Coming::More {
            stream.cut(Cut::Reset(reason));
            self.out.reset(number, reason);
            self.remember(number);
            self.wake();
        }
        self.forget(number);
    }

    /// Whether frames of a stream that is over are those that were on their way when we gave it up.
    fn gave_up(&self, number: u32) -> bool {
        self.role == Role::Client || self.reset.contains(&number)
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

    /// Counts what a peer makes us do for nothing.
    fn lose_patience(&mut self, what: &'static str) -> Result<(), Broken> {
        if self.patience.take() {
            Ok(())
        } else {
            Err(Broken::calm(what))
        }
    }

    /// Tells the connection's task that there is something to do.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }

    /// Tells all who wait to begin a stream: one alone may have given up meanwhile, and the turn be lost.
    fn wake_waiting(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// `waker` is that of the connection's task.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        keep(&mut self.waker, waker);
    }

    /// True when the peer has been heard of since this was last asked.
    pub(crate) fn was_heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    /// Begins to end: the peer is told that it should open no more streams.
    pub(crate) fn leave(&mut self) {
        if self.phase == Phase::Open {
            self.set_phase(Phase::Leaving);
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
            stream.cut(Cut::Connection);
        }
        self.streams.retain(|_, stream| !stream.is_over());
        self.count();
        self.set_phase(Phase::Left);
        self.wake_waiting();
    }
}

/// What our ping says when we leave, and when we want to know whether somebody is there.
const LEAVE: [u8; 8] = *b"leaving.";
/// See [`LEAVE`].
pub(crate) const THERE: [u8; 8] = *b"there???";
