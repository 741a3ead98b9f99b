//! Shutdown of a connection: RFC 9113 section 6.8.

use std::sync::atomic::Ordering;

use super::State;
use crate::error::{ConnectionError, Reason, StreamError};
use crate::settings::MAX_WINDOW;

/// Payload of the PING after the first GOAWAY.
pub(super) const SHUTDOWN_PING: [u8; 8] = *b"leaving.";

/// Phase of a connection's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The first GOAWAY, which names no last stream, was sent. The answer to the PING after it shows that
    /// the peer has received it.
    ShuttingDown,
    /// The last GOAWAY was sent or received: no new streams.
    Closing,
}

impl State {
    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.load.closed.store(phase == Phase::Closing, Ordering::Relaxed);
    }

    /// Starts a graceful shutdown with a first GOAWAY, so that the peer opens no new streams. Does not
    /// wait for a peer that has sent nothing yet.
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

    /// Sends the final GOAWAY. Requests received until now are answered; later ones are not.
    pub(crate) fn send_final_goaway(&mut self) {
        if self.phase == Phase::ShuttingDown {
            self.set_phase(Phase::Closing);
            self.output.go_away(self.last_id, Reason::NO_ERROR);
        }
    }

    /// Stops sending requests. The connection ends when the last one in flight completes.
    pub(crate) fn close(&mut self) {
        if self.phase != Phase::Closing {
            self.set_phase(Phase::Closing);
            self.output.go_away(0, Reason::NO_ERROR);
            self.wake_pending_open();
        }
        self.wake();
    }

    /// True if no work is left.
    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Closing && self.streams.is_empty() && self.output.is_empty()
    }

    /// True until the peer's preface was received.
    pub(crate) fn awaits_preface(&self) -> bool {
        self.incomplete.awaits_preface()
    }

    /// Sends the GOAWAY for a connection error.
    pub(crate) fn refuse(&mut self, error: ConnectionError) {
        self.output.go_away(self.last_id, error.reason);
    }

    /// Fails all streams: the connection is lost.
    pub(crate) fn disconnect(&mut self) {
        self.waker = None;
        for stream in self.streams.values_mut() {
            self.buffered.remove(stream.fail(StreamError::ConnectionClosed));
        }
        // No output will be written any more.
        self.buffered.written(u64::MAX);
        self.streams.retain(|_, stream| !stream.is_unused());
        self.count();
        self.set_phase(Phase::Closing);
        self.wake_pending_open();
    }
}
