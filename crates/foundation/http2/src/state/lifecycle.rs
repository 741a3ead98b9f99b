//! Start and end of streams.

use std::collections::hash_map::Entry;

use super::{Phase, Role, State};
use crate::error::{Reason, StreamError};
use crate::stream::{Handle, RecvEnd, RecvHead, Stream, StreamState};

/// Slots for recently reset streams, so that their frames in flight are ignored.
const RESET_HISTORY: usize = 1024;

/// Recently reset streams, in slots by identifier. Takes no memory before the first reset.
#[derive(Debug, Default)]
pub(super) struct ResetHistory(Vec<u32>);

impl ResetHistory {
    /// Client streams have odd identifiers.
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
    /// A stream with the initial windows of both sides.
    pub(super) fn new_stream(&self, state: StreamState, recv_head: RecvHead) -> Stream {
        let (recv_window, send_window) = (self.config.stream_window, self.peer.initial_window_size);
        Stream::new(state, recv_head, recv_window, send_window)
    }

    pub(super) fn insert(&mut self, id: u32, stream: Stream) {
        self.streams.insert(id, stream);
        self.budget.credit_stream();
        self.count();
    }

    /// The application dropped the receiving handle: received data counts as read.
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

    /// The application dropped the sending handle.
    pub(crate) fn drop_sender(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sender = Handle::Dropped;
            self.close_if_unused(id);
        }
    }

    /// Drops both handles of a stream that the application has not seen.
    pub(super) fn drop_handles(&mut self, id: u32) {
        self.drop_receiver(id);
        self.drop_sender(id);
    }

    /// Removes a closed stream, and resets an open one without handles. A server that has responded does
    /// not need the rest of the request (RFC 9113 section 8.1); a client drops an unwanted response with
    /// CANCEL.
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

    /// Resets a stream with `reason`.
    pub(crate) fn reset(&mut self, id: u32, reason: Reason) {
        self.reset_with(id, reason, StreamError::Reset(reason));
    }

    /// Resets a stream with `reason`. Its reader gets `error`.
    pub(super) fn reset_with(&mut self, id: u32, reason: Reason, error: StreamError) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !stream.state.is_closed() {
            self.send_reset(id, reason, error);
        }
        self.remove_if_closed(id);
    }

    /// Closes both sides of a stream early and sends RST_STREAM.
    fn send_reset(&mut self, id: u32, reason: Reason, error: StreamError) {
        self.fail_stream(id, error);
        self.output.rst_stream(id, reason);
        self.reset_history.insert(id);
        self.wake();
    }

    pub(super) fn fail_stream(&mut self, id: u32, error: StreamError) {
        if let Some(stream) = self.streams.get_mut(&id) {
            // A part of the output may be in the write buffer.
            self.buffered.remove_at(stream.fail(error), self.output.end());
        }
    }

    /// Closes the peer's side of a stream early without a reset, so that the response can still report the
    /// error.
    pub(super) fn fail_receiving(&mut self, id: u32, error: StreamError) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.state.close_recv(RecvEnd::Failed(error));
            stream.receiver.wake();
            self.reset_history.insert(id);
        }
    }

    /// Whether we reset a closed stream, so that frames for it may have been in flight.
    pub(super) fn was_reset_locally(&self, id: u32) -> bool {
        self.role == Role::Client || self.reset_history.contains(id)
    }

    /// Answers an invalid frame by resetting its stream, which may be unknown.
    pub(super) fn refuse_frame(&mut self, id: u32, reason: Reason) {
        match self.streams.get(&id) {
            Some(stream) if !stream.state.is_closed() => self.reset(id, reason),
            // Closed, although handles may remain.
            _ => {
                self.output.rst_stream(id, reason);
                self.reset_history.insert(id);
            }
        }
    }

    /// Wakes the requests that may now open a stream; all of them if none can be opened.
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

    /// Gives up the ticket of a waiting request. If it was next, wakes the request after it.
    pub(crate) fn cancel_open(&mut self, ticket: u64) {
        if self.pending_open.remove(&ticket).is_none() {
            self.wake_pending_open();
        }
    }
}
