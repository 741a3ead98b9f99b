//! One stream: its state, received data, and output.

use std::task::Waker;

use http::Response;
use tokio::time::Instant;

use crate::boundary::Incoming;
use crate::error::StreamError;
use crate::queue::{Piece, Queue};

/// Stores a waker; does not clone one that is stored already.
pub(crate) fn keep(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// The state of an opened stream: RFC 9113 section 5.1.
///
/// An *idle* stream has no entry and an identifier above the last one opened
/// ([`is_idle`](crate::state::State::is_idle)). No stream is ever *reserved*: push is disabled. A closed
/// stream keeps its entry until both its handles are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Both sides may send.
    Open,
    /// We have sent END_STREAM; the peer may send.
    HalfClosedLocal,
    /// The peer's side has ended; we may send.
    HalfClosedRemote(RecvEnd),
    /// Neither side may send.
    Closed(RecvEnd),
}

/// How the peer's side of a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecvEnd {
    /// With END_STREAM: the message is complete.
    EndStream,
    /// Early; the reader gets this error after the received data.
    Failed(StreamError),
}

impl StreamState {
    /// True while frames of the peer are accepted.
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

    /// The peer's side has ended. The first cause is kept.
    pub(crate) fn close_recv(&mut self, end: RecvEnd) {
        *self = match *self {
            Self::Open => Self::HalfClosedRemote(end),
            Self::HalfClosedLocal => Self::Closed(end),
            over => over,
        };
    }
}

/// The head of the received message.
#[derive(Debug)]
pub(crate) enum RecvHead {
    /// Not received.
    Awaited,
    /// A response's head that the caller has not taken yet.
    Received(Response<()>),
    /// Taken by the application.
    Taken,
}

/// The application's handle of one direction of a stream.
#[derive(Debug)]
pub(crate) enum Handle {
    /// Held, or about to be; with the waker of a task that waits for this direction.
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

    /// Stores the waker of a waiting task.
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

/// Detects stalled streams: see [`STALL`](crate::limits::STALL).
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether the time without progress is limited.
    pub(crate) limited: bool,
    /// DATA was received or sent since the last check.
    pub(crate) since_check: bool,
    /// Bytes of DATA sent since the last sufficient progress, while memory is crowded.
    pub(crate) sent: usize,
    /// Start of the current stall.
    pub(crate) stalled_since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) state: StreamState,
    /// The application has the request. Always true for a client's streams.
    pub(crate) accepted: bool,
    /// Bytes charged to the connection for its header lists.
    pub(crate) header_memory: usize,
    pub(crate) progress: Progress,

    pub(crate) recv_head: RecvHead,
    pub(crate) recv_queue: Queue,
    /// Bytes of DATA the peer may send.
    pub(crate) recv_window: u32,
    /// Size of the receive window in bytes: the value of `recv_window` when everything received has been
    /// released.
    pub(crate) recv_window_size: u32,
    /// Bytes consumed but not yet returned by a WINDOW_UPDATE.
    pub(crate) released: u32,
    /// Remaining bytes by the head's `content-length`, if any.
    pub(crate) content_left: Option<u64>,
    pub(crate) receiver: Handle,

    /// Bytes of DATA we may send; negative after the peer has lowered SETTINGS_INITIAL_WINDOW_SIZE.
    pub(crate) send_window: i64,
    pub(crate) send_queue: Queue,
    /// Bytes in `send_queue`, also counted in the connection.
    pub(crate) buffered: usize,
    /// Bytes sent of the first piece of `send_queue`. The piece stays in memory as a whole, so they still
    /// count in the connection.
    pub(crate) front_sent: usize,
    /// END_STREAM was sent, or goes with the last piece of `send_queue`.
    pub(crate) end_queued: bool,
    /// It is in one of the connection's two send queues.
    pub(crate) is_scheduled: bool,
    pub(crate) sender: Handle,
}

impl Stream {
    /// A stream with these window sizes in bytes.
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

    /// True if both handles are dropped.
    pub(crate) fn is_unused(&self) -> bool {
        self.state.is_closed() && !self.receiver.is_held() && !self.sender.is_held()
    }

    /// True until the end of our message is queued.
    pub(crate) fn accepts_data(&self) -> bool {
        !self.end_queued && self.state.is_send_open()
    }

    /// Counts DATA towards `content-length`; false on a mismatch (RFC 9113 section 8.1.1).
    pub(crate) fn count_content(&mut self, bytes: u64, ended: bool) -> bool {
        let Some(left) = self.content_left else {
            return true;
        };
        self.content_left = left.checked_sub(bytes);
        self.content_left.is_some_and(|left| !ended || left == 0)
    }

    /// Notifies the reader; `ended` with END_STREAM. True if the stream may now be closed.
    pub(crate) fn received(&mut self, ended: bool) -> bool {
        if ended {
            self.state.close_recv(RecvEnd::EndStream);
        }
        self.receiver.wake();
        ended && self.state.is_closed()
    }

    /// Closes both sides. Returns the memory of its send queue in bytes.
    #[must_use]
    pub(crate) fn fail(&mut self, error: StreamError) -> usize {
        self.state.close_recv(RecvEnd::Failed(error));
        self.state.close_send();
        self.send_queue.clear();
        self.receiver.wake();
        self.sender.wake();
        std::mem::take(&mut self.buffered) + std::mem::take(&mut self.front_sent)
    }

    /// Takes the body if it was received completely and is at most one piece.
    pub(crate) fn take_complete(&mut self) -> Option<Incoming> {
        if self.state.recv_end() != Some(RecvEnd::EndStream) || !self.recv_queue.is_plain() {
            return None;
        }
        Some(match self.recv_queue.pop() {
            Some(Piece::Data(data)) => Incoming::Full(data),
            _ => Incoming::Empty,
        })
    }

    /// Bytes left to read, if the head declared a length.
    pub(crate) fn content_to_read(&self) -> Option<u64> {
        self.content_left.map(|left| left + self.recv_queue.bytes())
    }

    /// True if DATA is due: a reader waits for it, or output waits for a window.
    pub(crate) fn is_due(&self) -> bool {
        let head = !matches!(self.recv_head, RecvHead::Awaited);
        let reads = head && self.state.is_recv_open() && self.receiver.is_waiting();
        self.progress.limited && (reads && self.recv_queue.is_empty() || !self.send_queue.is_empty())
    }

    /// True if there is output and the stream's window allows it.
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
        // The first cause is kept.
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
