//! How streams begin and end.

use std::collections::hash_map::Entry;

use super::{Phase, Role, State};
use crate::error::{Reason, StreamError};
use crate::stream::{Handle, RecvEnd, RecvHead, Stream, StreamState};

/// Streams in a row of which each is remembered when we reset it: frames that were on their way are ignored.
const RESET_HISTORY: usize = 1024;

/// Streams that we reset lately, each in a place that follows from its identifier; without memory until there is one.
#[derive(Debug, Default)]
pub(super) struct ResetHistory(Vec<u32>);

impl ResetHistory {
    /// Clients have odd identifiers only.
    fn place(id: u32) -> usize {
        id as usize / 2 % RESET_HISTORY
    }

    pub(super) fn insert(&mut self, id: u32) {
        if self.0.is_empty() {
            self.0 = vec![0; RESET_HISTORY];
        }
        if let Some(place) = self.0.get_mut(Self::place(id)) {
            *place = id;
        }
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.0.get(Self::place(id)) == Some(&id)
    }
}

impl State {
    /// A stream with the windows that both sides begin with.
    pub(super) fn new_stream(&self, state: StreamState, recv_head: RecvHead) -> Stream {
        let (recv_window, send_window) = (self.config.stream_window, self.peer.initial_window_size);
        Stream::new(state, recv_head, recv_window, send_window)
    }

    pub(super) fn insert(&mut self, id: u32, stream: Stream) {
        self.streams.insert(id, stream);
        self.budget.credit_stream();
        self.count();
    }

    /// The application has dropped the receiving handle: what arrives counts as read.
    pub(crate) fn drop_receiver(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.receiver = Handle::Dropped;
        let dropped = stream.recv_queue.bytes();
        self.slack -= stream.recv_queue.slack();
        stream.recv_queue.clear();
        self.release_connection_capacity(usize::try_from(dropped).unwrap_or(usize::MAX));
        self.close_if_unused(id);
    }

    /// The application has dropped the sending handle.
    pub(crate) fn drop_sender(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sender = Handle::Dropped;
            self.close_if_unused(id);
        }
    }

    /// Nobody will ever see or answer a stream.
    pub(super) fn drop_handles(&mut self, id: u32) {
        self.drop_receiver(id);
        self.drop_sender(id);
    }

    /// Removes a stream that is closed, and resets one that goes on for nobody: a server that has answered needs no more
    /// of the request (RFC 9113 section 8.1), and a client whose response is not wanted need not be told.
    pub(super) fn close_if_unused(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let reason = match (self.role, stream.state) {
            (Role::Server, StreamState::HalfClosedLocal) => Reason::NO_ERROR,
            (Role::Client, state) if !state.is_closed() => Reason::CANCEL,
            _ => return self.remove_if_closed(id),
        };
        if !stream.receiver.is_held() {
            self.send_reset(id, reason, StreamError::Reset(reason));
            self.remove_if_closed(id);
        }
    }

    pub(super) fn remove_if_closed(&mut self, id: u32) {
        let Entry::Occupied(stream) = self.streams.entry(id) else {
            return;
        };
        if !stream.get().is_unused() {
            return;
        }
        let stream = stream.remove();
        self.header_memory -= stream.header_memory;
        self.end_growth(stream.recv_window_size);
        self.count();
        self.wake_pending_open();
        if self.phase == Phase::Closing && self.streams.is_empty() {
            self.wake();
        }
    }

    /// Resets a stream, for `reason`.
    pub(crate) fn reset(&mut self, id: u32, reason: Reason) {
        self.reset_with(id, reason, StreamError::Reset(reason));
    }

    /// Resets a stream, for `reason`. Whoever reads it gets `error`.
    pub(super) fn reset_with(&mut self, id: u32, reason: Reason, error: StreamError) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !stream.state.is_closed() {
            self.send_reset(id, reason, error);
        }
        self.remove_if_closed(id);
    }

    /// Ends both sides of a stream early, and sends RST_STREAM.
    fn send_reset(&mut self, id: u32, reason: Reason, error: StreamError) {
        self.fail_stream(id, error);
        self.output.rst_stream(id, reason);
        self.reset_history.insert(id);
        self.wake();
    }

    pub(super) fn fail_stream(&mut self, id: u32, error: StreamError) {
        if let Some(stream) = self.streams.get_mut(&id) {
            // A part of it may be on its way out.
            self.buffered.remove_at(stream.fail(error), self.output.end());
        }
    }

    /// Ends the peer's side of a stream early, and says nothing: the answer can still tell what is wrong.
    pub(super) fn fail_receiving(&mut self, id: u32, error: StreamError) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.state.close_recv(RecvEnd::Failed(error));
            stream.receiver.wake();
            self.reset_history.insert(id);
        }
    }

    /// Whether frames of a closed stream are those that were on their way when we reset it.
    pub(super) fn was_reset_locally(&self, id: u32) -> bool {
        self.role == Role::Client || self.reset_history.contains(id)
    }

    /// Answers a frame that is wrong by a reset of its stream, which may be none of ours.
    pub(super) fn refuse_frame(&mut self, id: u32, reason: Reason) {
        match self.streams.get(&id) {
            Some(stream) if !stream.state.is_closed() => self.reset(id, reason),
            // It is closed, whoever may still have a handle of it.
            _ => {
                self.output.rst_stream(id, reason);
                self.reset_history.insert(id);
            }
        }
    }

    /// Wakes as many requests as may open a stream; all, when none can be opened any more.
    pub(super) fn wake_pending_open(&mut self) {
        let more = match self.phase {
            Phase::Closing => usize::MAX,
            _ => (self.peer.max_concurrent_streams as usize).saturating_sub(self.streams.len()),
        };
        for _ in 0..more.min(self.pending_open.len()) {
            if let Some((_, waker)) = self.pending_open.pop_first() {
                waker.wake();
            }
        }
    }

    /// Whoever waited to open a stream as `ticket` does not any more. If it was its turn, the next has it.
    pub(crate) fn cancel_open(&mut self, ticket: u64) {
        if self.pending_open.remove(&ticket).is_none() {
            self.wake_pending_open();
        }
    }
}
