//! One stream: what has arrived and was not read, and what is to be sent and has no room yet.

use std::task::Waker;

use http::Response;
use tokio::time::Instant;

use crate::body::Incoming;
use crate::error::Cut;
use crate::queue::{Piece, Queue};

/// Keeps a waker until it is used; one that is kept already is not cloned again.
pub(crate) fn keep(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// What may still come from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coming {
    More,
    Ended,
    Cut(Cut),
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) coming: Coming,
    /// The head of an answer that nobody has seen yet.
    pub(crate) head: Option<Response<()>>,
    /// The head of what the peer sends has come.
    pub(crate) begun: bool,
    pub(crate) arrived: Queue,
    /// Bytes the peer may send.
    pub(crate) room: u32,
    /// Bytes read since room was made for them.
    pub(crate) taken: u32,
    /// Bytes to come, where the head told.
    pub(crate) left: Option<u64>,
    /// Somebody reads, or will.
    pub(crate) read: bool,
    pub(crate) reader: Option<Waker>,

    /// Bytes we may send; below zero after the peer has lowered its settings.
    pub(crate) window: i64,
    pub(crate) queue: Queue,
    /// Bytes in `queue`, counted in the connection's too.
    pub(crate) queued: usize,
    /// The last piece of `queue`, or what was sent before, ends our side.
    pub(crate) ends: bool,
    /// Nothing more will be sent: our side has ended, or the stream was reset.
    pub(crate) sent: bool,
    /// It is among those who have something to send, or among those who wait for the connection's window.
    pub(crate) in_line: bool,
    /// Somebody answers.
    pub(crate) answered: bool,
    pub(crate) writer: Option<Waker>,

    /// The request has been handed over.
    pub(crate) seen: bool,
    /// What its fields are charged to the connection, bytes.
    pub(crate) header_memory: usize,
    /// Silence is limited.
    pub(crate) watched: bool,
    /// Bytes have come or left since this was last asked.
    pub(crate) moved: bool,
    /// Since when nothing has moved that should.
    pub(crate) stalled: Option<Instant>,
}

impl Stream {
    pub(crate) fn new(room: u32, window: u32) -> Self {
        Self {
            coming: Coming::More,
            head: None,
            begun: false,
            arrived: Queue::default(),
            room,
            taken: 0,
            left: None,
            read: true,
            reader: None,
            window: i64::from(window),
            queue: Queue::default(),
            queued: 0,
            ends: false,
            sent: false,
            in_line: false,
            answered: true,
            writer: None,
            seen: false,
            header_memory: 0,
            watched: false,
            moved: false,
            stalled: None,
        }
    }

    /// True when nobody can learn or do anything about it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.sent && self.coming != Coming::More && !self.read && !self.answered
    }

    /// Counts bytes that have come; false when they contradict what the head told.
    pub(crate) fn count(&mut self, bytes: u64, ended: bool) -> bool {
        let Some(left) = self.left else { return true };
        self.left = left.checked_sub(bytes);
        self.left.is_some_and(|left| !ended || left == 0)
    }

    /// Tells the reader about news; `ended` by the last. True when that may be the end of the stream.
    pub(crate) fn has_come(&mut self, ended: bool) -> bool {
        if ended {
            self.coming = Coming::Ended;
        }
        self.wake_reader();
        ended && self.sent
    }

    /// Ends both sides at once. Returns how many bytes were queued.
    #[must_use]
    pub(crate) fn cut(&mut self, why: Cut) -> usize {
        if self.coming == Coming::More {
            self.coming = Coming::Cut(why);
        }
        self.queue.clear();
        self.sent = true;
        self.wake_reader();
        self.wake_writer();
        std::mem::take(&mut self.queued)
    }

    /// Takes the body when all of it is here, in one piece or none.
    pub(crate) fn take_whole(&mut self) -> Option<Incoming> {
        if self.coming != Coming::Ended || !self.arrived.is_plain() {
            return None;
        }
        Some(match self.arrived.pop() {
            Some(Piece::Data(data)) => Incoming::Whole(data),
            _ => Incoming::Empty,
        })
    }

    /// Bytes that are to be read, where the head told.
    pub(crate) fn expected(&self) -> Option<u64> {
        self.left.map(|left| left + self.arrived.bytes())
    }

    pub(crate) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(crate) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// True when bytes are due: somebody waits to read them, or to have them sent.
    pub(crate) fn is_due(&self) -> bool {
        let reads = self.begun && self.coming == Coming::More && self.reader.is_some();
        self.watched && (reads && self.arrived.is_empty() || !self.queue.is_empty())
    }

    /// True when there is something to send and room for it in the peer's window.
    pub(crate) fn can_send(&self) -> bool {
        !self.queue.is_empty() && (self.window > 0 || self.queued == 0)
    }
}
