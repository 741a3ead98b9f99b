//! One stream: its state, what was received and not read yet, and what is to be sent.

use std::task::Waker;

use http::Response;
use tokio::time::Instant;

use crate::boundary::Incoming;
use crate::error::StreamError;
use crate::queue::{Piece, Queue};

/// Keeps a waker until it is used; one that is kept already is not cloned again.
pub(crate) fn keep(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// The state of a stream that was opened: RFC 9113 section 5.1.
///
/// A stream that is *idle* has no entry among the connection's streams and an identifier above the last that was
/// opened ([`is_idle`](crate::state::State::is_idle)). No stream is ever *reserved*: clients switch push off
/// and servers do not push. A closed stream keeps its entry until both its handles are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Both sides may send.
    Open,
    /// We have sent END_STREAM; the peer may send.
    HalfClosedLocal,
    /// The peer sends nothing more that counts; we may send.
    HalfClosedRemote(RecvEnd),
    /// Neither side may send.
    Closed(RecvEnd),
}

/// How the peer's side of a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecvEnd {
    /// With END_STREAM: the message is complete.
    EndStream,
    /// Early; whoever reads the message gets this error behind what was received.
    Failed(StreamError),
}

impl StreamState {
    /// True while the peer may send frames that count.
    pub(crate) fn is_recv_open(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedLocal)
    }

    /// True while we may send frames.
    pub(crate) fn is_send_open(self) -> bool {
        matches!(self, Self::Open | Self::HalfClosedRemote(_))
    }

    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// How the peer's side ended; `None` while it is open.
    pub(crate) fn recv_end(self) -> Option<RecvEnd> {
        match self {
            Self::Open | Self::HalfClosedLocal => None,
            Self::HalfClosedRemote(end) | Self::Closed(end) => Some(end),
        }
    }

    /// We have sent END_STREAM.
    pub(crate) fn close_send(&mut self) {
        *self = match *self {
            Self::Open | Self::HalfClosedLocal => Self::HalfClosedLocal,
            Self::HalfClosedRemote(end) | Self::Closed(end) => Self::Closed(end),
        };
    }

    /// The peer's side has ended. How it ended first stays.
    pub(crate) fn close_recv(&mut self, end: RecvEnd) {
        *self = match *self {
            Self::Open => Self::HalfClosedRemote(end),
            Self::HalfClosedLocal => Self::Closed(end),
            over => over,
        };
    }
}

/// The head of the message that is received.
#[derive(Debug)]
pub(crate) enum RecvHead {
    /// It has not come.
    Awaited,
    /// A response's, which the caller has not taken yet.
    Received(Response<()>),
    /// The application has it.
    Taken,
}

/// The application's handle of one direction of a stream.
#[derive(Debug)]
pub(crate) enum Handle {
    /// Somebody has it, or will; with the waker of a task that waits for this direction.
    Held(Option<Waker>),
    Dropped,
}

impl Handle {
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Held(Some(_)))
    }

    /// Keeps the waker of a task that waits.
    pub(crate) fn register(&mut self, waker: &Waker) {
        if let Self::Held(slot) = self {
            keep(slot, waker);
        }
    }

    pub(crate) fn wake(&mut self) {
        if let Self::Held(slot) = self
            && let Some(waker) = slot.take()
        {
            waker.wake();
        }
    }
}

/// What tells a stream that moves from one that is stalled: see [`STALL`](crate::limits::STALL).
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The time without progress is limited.
    pub(crate) limited: bool,
    /// DATA was received or sent since the last check.
    pub(crate) since_check: bool,
    /// Bytes of DATA that were sent since there was enough of it, while others need the room.
    pub(crate) sent: usize,
    /// Since when there was none, where some is due.
    pub(crate) stalled_since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) state: StreamState,
    /// The application has the request. A client's streams begin so.
    pub(crate) accepted: bool,
    /// What its fields are charged to the connection, bytes.
    pub(crate) header_memory: usize,
    pub(crate) progress: Progress,

    pub(crate) recv_head: RecvHead,
    pub(crate) recv_queue: Queue,
    /// Bytes of DATA the peer may send.
    pub(crate) recv_window: u32,
    /// The size of the receive window, bytes: what `recv_window` is when all that was received has been released.
    pub(crate) recv_window_size: u32,
    /// Bytes that were read, and not yet given back to the peer by a WINDOW_UPDATE.
    pub(crate) released: u32,
    /// Bytes of DATA to come by the head's `content-length`, where it has one.
    pub(crate) content_left: Option<u64>,
    pub(crate) receiver: Handle,

    /// Bytes of DATA we may send; below zero after the peer has lowered SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_window: i64,
    pub(crate) send_queue: Queue,
    /// Bytes in `send_queue`, counted in the connection's too.
    pub(crate) buffered: usize,
    /// Bytes of the first piece of `send_queue` that were sent. They stay in memory with the rest of it, and are counted in the
    /// connection's until then.
    pub(crate) front_sent: usize,
    /// END_STREAM goes with the last piece of `send_queue`, or was sent.
    pub(crate) end_queued: bool,
    /// It is in one of the connection's two queues of streams that have something to send.
    pub(crate) is_scheduled: bool,
    pub(crate) sender: Handle,
}

impl Stream {
    /// One whose windows have these sizes, in bytes.
    pub(crate) fn new(state: StreamState, recv_head: RecvHead, recv_window: u32, send_window: u32) -> Self {
        Self {
            state,
            accepted: false,
            header_memory: 0,
            progress: Progress::default(),
            recv_head,
            recv_queue: Queue::default(),
            recv_window,
            recv_window_size: recv_window,
            released: 0,
            content_left: None,
            receiver: Handle::Held(None),
            send_window: i64::from(send_window),
            send_queue: Queue::default(),
            buffered: 0,
            front_sent: 0,
            end_queued: false,
            is_scheduled: false,
            sender: Handle::Held(None),
        }
    }

    /// True when nobody can learn or do anything about it any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.is_closed() && !self.receiver.is_held() && !self.sender.is_held()
    }

    /// True while the message that we send has no end.
    pub(crate) fn accepts_data(&self) -> bool {
        !self.end_queued && self.state.is_send_open()
    }

    /// Counts DATA towards `content-length`; false when the two contradict each other (RFC 9113 section 8.1.1).
    pub(crate) fn count_content(&mut self, bytes: u64, ended: bool) -> bool {
        let Some(left) = self.content_left else {
            return true;
        };
        self.content_left = left.checked_sub(bytes);
        self.content_left.is_some_and(|left| !ended || left == 0)
    }

    /// Tells the reader that something was received; `ended` with END_STREAM. True when that may be the end of the
    /// stream.
    pub(crate) fn received(&mut self, ended: bool) -> bool {
        if ended {
            self.state.close_recv(RecvEnd::EndStream);
        }
        self.receiver.wake();
        ended && self.state.is_closed()
    }

    /// Ends both sides at once. Returns how many bytes of memory its send queue had.
    #[must_use]
    pub(crate) fn fail(&mut self, error: StreamError) -> usize {
        self.state.close_recv(RecvEnd::Failed(error));
        self.state.close_send();
        self.send_queue.clear();
        self.receiver.wake();
        self.sender.wake();
        std::mem::take(&mut self.buffered) + std::mem::take(&mut self.front_sent)
    }

    /// Takes the body when all of it was received, in one piece or none.
    pub(crate) fn take_complete(&mut self) -> Option<Incoming> {
        if self.state.recv_end() != Some(RecvEnd::EndStream) || !self.recv_queue.is_plain() {
            return None;
        }
        Some(match self.recv_queue.pop() {
            Some(Piece::Data(data)) => Incoming::Full(data),
            _ => Incoming::Empty,
        })
    }

    /// Bytes that are to be read, where the head told.
    pub(crate) fn content_to_read(&self) -> Option<u64> {
        self.content_left.map(|left| left + self.recv_queue.bytes())
    }

    /// True when DATA is due: somebody waits to read it, or to have it sent.
    pub(crate) fn is_due(&self) -> bool {
        let head = !matches!(self.recv_head, RecvHead::Awaited);
        let reads = head && self.state.is_recv_open() && self.receiver.is_waiting();
        self.progress.limited && (reads && self.recv_queue.is_empty() || !self.send_queue.is_empty())
    }

    /// True when there is something to send and the stream's window lets it out.
    pub(crate) fn can_send(&self) -> bool {
        !self.send_queue.is_empty() && (self.send_window > 0 || self.buffered == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;

    #[test]
    fn sides_close_independently() {
        let failed = RecvEnd::Failed(StreamError::Reset(Reason::CANCEL));
        let mut state = StreamState::Open;
        state.close_send();
        assert_eq!(state, StreamState::HalfClosedLocal);
        assert!(state.is_recv_open() && !state.is_send_open());
        state.close_recv(RecvEnd::EndStream);
        assert_eq!(state, StreamState::Closed(RecvEnd::EndStream));
        // How it ended first stays.
        state.close_recv(failed);
        assert_eq!(state.recv_end(), Some(RecvEnd::EndStream));

        let mut state = StreamState::Open;
        state.close_recv(failed);
        assert_eq!(state, StreamState::HalfClosedRemote(failed));
        assert!(state.is_send_open() && !state.is_recv_open());
        state.close_send();
        assert_eq!(state, StreamState::Closed(failed));
    }
}
