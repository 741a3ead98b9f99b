//! The end of a connection: RFC 9113 section 6.8.

use std::sync::atomic::Ordering;

use super::State;
use crate::error::{ConnectionError, Reason, StreamError};
use crate::settings::MAX_WINDOW;

/// What our PING says that follows the first GOAWAY.
pub(super) const SHUTDOWN_PING: [u8; 8] = *b"leaving.";

/// How far a connection is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The first GOAWAY, which names no last stream, was sent; the answer to the PING behind it tells that the peer
    /// knows.
    ShuttingDown,
    /// The last GOAWAY was sent or received: no new streams.
    Closing,
}

impl State {
    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.load.closed.store(phase == Phase::Closing, Ordering::Relaxed);
    }

    /// Begins a graceful shutdown: the peer is told that it should open no more streams. One that has said nothing yet
    /// is not waited for.
    pub(crate) fn shut_down(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        self.set_phase(Phase::ShuttingDown);
        if self.awaits_preface() {
            self.send_final_goaway();
        } else {
            self.output.go_away(MAX_WINDOW, Reason::NO_ERROR);
            self.output.ping(SHUTDOWN_PING);
        }
    }

    /// The peer knows: what it opened until now is answered, and nothing else.
    pub(crate) fn send_final_goaway(&mut self) {
        if self.phase == Phase::ShuttingDown {
            self.set_phase(Phase::Closing);
            self.output.go_away(self.last_id, Reason::NO_ERROR);
        }
    }

    /// No more requests will be sent; the connection ends with the last of those that were.
    pub(crate) fn close(&mut self) {
        if self.phase != Phase::Closing {
            self.set_phase(Phase::Closing);
            self.output.go_away(0, Reason::NO_ERROR);
            self.wake_pending_open();
        }
        self.wake();
    }

    /// True when nothing is left to do.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Closing && self.streams.is_empty() && self.output.is_empty()
    }

    /// True until the peer has said that it speaks HTTP/2.
    pub(crate) fn awaits_preface(&self) -> bool {
        self.incomplete.awaits_preface()
    }

    /// The GOAWAY for a connection error.
    pub(crate) fn refuse(&mut self, error: ConnectionError) {
        self.output.go_away(self.last_id, error.reason);
    }

    /// The connection is gone: so are its streams.
    pub(crate) fn disconnect(&mut self) {
        self.waker = None;
        for stream in self.streams.values_mut() {
            self.buffered.remove(stream.fail(StreamError::ConnectionClosed));
        }
        // Nothing more is written.
        self.buffered.written(u64::MAX);
        self.streams.retain(|_, stream| !stream.is_unused());
        self.count();
        self.set_phase(Phase::Closing);
        self.wake_pending_open();
    }
}
