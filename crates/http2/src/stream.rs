//! One stream: what has arrived and was not read, and what is to be sent and has no room yet.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::body::Incoming;
use crate::error::Cut;

/// Keeps a waker until it is used; one that is kept already is not cloned again.
pub(crate) fn keep(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// A part of a message behind its head.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// A queue whose first piece needs no allocation: most messages have one.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    first: Option<Piece>,
    rest: VecDeque<Piece>,
}

impl Pieces {
    pub(crate) fn push(&mut self, piece: Piece) {
        if self.first.is_none() && self.rest.is_empty() {
            self.first = Some(piece);
        } else {
            self.rest.push_back(piece);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Piece> {
        self.first.take().or_else(|| self.rest.pop_front())
    }

    /// Puts back what was taken.
    pub(crate) fn unpop(&mut self, piece: Piece) {
        if let Some(second) = self.first.replace(piece) {
            self.rest.push_front(second);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_empty()
    }

    /// True when it is one piece of data, or nothing.
    pub(crate) fn is_plain(&self) -> bool {
        self.rest.is_empty() && !matches!(self.first, Some(Piece::Trailers(_)))
    }

    fn bytes(&self) -> u64 {
        let pieces = self.first.iter().chain(&self.rest);
        let bytes = pieces.map(|piece| match piece {
            Piece::Data(data) => data.len() as u64,
            Piece::Trailers(_) => 0,
        });
        bytes.sum()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
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
    pub(crate) arrived: Pieces,
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
    pub(crate) queue: Pieces,
    /// Bytes in `queue`.
    pub(crate) queued: usize,
    /// The last piece of `queue`, or what was sent before, ends our side.
    pub(crate) ends: bool,
    /// Nothing more will be sent: our side has ended, or the stream was reset.
    pub(crate) sent: bool,
    /// It is in the connection's line of those who have something to send.
    pub(crate) in_line: bool,
    /// Somebody answers.
    pub(crate) answered: bool,
    pub(crate) writer: Option<Waker>,
}

impl Stream {
    pub(crate) fn new(room: u32, window: u32) -> Self {
        Self {
            coming: Coming::More,
            head: None,
            begun: false,
            arrived: Pieces::default(),
            room,
            taken: 0,
            left: None,
            read: true,
            reader: None,
            window: i64::from(window),
            queue: Pieces::default(),
            queued: 0,
            ends: false,
            sent: false,
            in_line: false,
            answered: true,
            writer: None,
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

    /// Ends both sides at once.
    pub(crate) fn cut(&mut self, why: Cut) {
        if self.coming == Coming::More {
            self.coming = Coming::Cut(why);
        }
        self.queue.clear();
        self.queued = 0;
        self.sent = true;
        self.wake_reader();
        self.wake_writer();
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

    /// True when there is something to send and room for it in the peer's window.
    pub(crate) fn can_send(&self) -> bool {
        !self.queue.is_empty() && (self.window > 0 || self.queued == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Piece {
        Piece::Data(Bytes::from_static(text.as_bytes()))
    }

    fn text(piece: Option<Piece>) -> String {
        match piece {
            Some(Piece::Data(data)) => String::from_utf8(data.to_vec()).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn pieces_leave_in_the_order_they_came() {
        let mut pieces = Pieces::default();
        assert!(pieces.is_plain() && pieces.is_empty());
        pieces.push(data("a"));
        assert!(pieces.is_plain());
        pieces.push(data("b"));
        assert!(!pieces.is_plain());
        assert_eq!(text(pieces.pop()), "a");
        pieces.push(data("c"));
        let next = pieces.pop().unwrap();
        pieces.unpop(next);
        for expected in ["b", "c", "None"] {
            assert_eq!(text(pieces.pop()), expected);
        }
    }
}
