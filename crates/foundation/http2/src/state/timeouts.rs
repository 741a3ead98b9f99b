//! Time limits, checked at intervals so that no stream needs a timer.

use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, Role, State};
use crate::error::{Error, Reason, StreamError};
use crate::limits::{CROWDED_PROGRESS, CROWDED_STALL};

/// The state at the end of the last interval.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Complete frames and field blocks received.
    pub(super) complete: u64,
    incoming: StallDetector,
    outgoing: StallDetector,
    idle: StallDetector,
    shutdown: StallDetector,
}

/// A counter, and since when it has not changed.
#[derive(Debug, Default)]
struct StallDetector {
    count: u64,
    since: Option<Instant>,
}

impl StallDetector {
    /// True if `count` has not changed for `limit`; `due` is true while it should change.
    fn is_over(&mut self, count: u64, due: bool, limit: Duration, now: Instant) -> bool {
        if !due || self.count != count || self.since.is_none() {
            let since = due.then_some(now);
            *self = Self { count, since };
        }
        let since = self.since.map(|since| now.duration_since(since));
        since.is_some_and(|still| still >= limit)
    }
}

impl State {
    /// Interval for calls of [`Self::check_timeouts`].
    pub(crate) fn interval(&self) -> Duration {
        self.config.stall / 4
    }

    /// Whether to ping a silent peer.
    pub(crate) fn may_ping(&self) -> bool {
        self.config.ping_idle || !self.streams.is_empty()
    }

    /// Ends stalled streams.
    ///
    /// # Errors
    /// Why the connection must end.
    pub(crate) fn check_timeouts(&mut self, now: Instant) -> Result<(), Error> {
        let stall = self.config.stall;
        let begun = self.incomplete.is_begun();
        let complete = self.timers.complete;
        if self.timers.incoming.is_over(complete, begun, stall, now) {
            return Err(Error::IncompleteFrame(stall));
        }
        let (written, waits) = (self.output.written(), !self.output.is_empty());
        // Unread output of many responses keeps their rest in memory.
        let unread = match self.buffered.is_crowded() {
            true => stall.min(CROWDED_STALL),
            false => stall,
        };
        if self.timers.outgoing.is_over(written, waits, unread, now) {
            return Err(Error::WriteTimeout(unread));
        }
        let idle = self.role == Role::Server && self.phase == Phase::Open && self.streams.is_empty();
        let last = u64::from(self.last_id);
        if self.timers.idle.is_over(last, idle, self.config.idle, now) {
            self.shut_down();
        }
        // A silent peer has received our GOAWAY by now.
        let shutdown = self.phase == Phase::ShuttingDown;
        if self.timers.shutdown.is_over(0, shutdown, stall, now) {
            self.send_final_goaway();
        }
        self.check_streams(now);
        Ok(())
    }

    fn check_streams(&mut self, now: Instant) {
        let (stall, is_crowded) = (self.config.stall, self.buffered.is_crowded());
        let mut stalled = Vec::new();
        for (id, stream) in &mut self.streams {
            let is_in_the_way = is_crowded && !stream.send_queue.is_empty();
            let is_due = is_in_the_way || stream.is_due();
            let progress = &mut stream.progress;
            let mut goes_on = std::mem::take(&mut progress.since_check);
            if is_in_the_way {
                goes_on = progress.sent >= CROWDED_PROGRESS;
            }
            if goes_on || !is_due {
                progress.sent = 0;
                progress.stalled_since = is_due.then_some(now);
                continue;
            }
            let since = *progress.stalled_since.get_or_insert(now);
            let limit = if is_in_the_way {
                stall.min(CROWDED_STALL)
            } else {
                stall
            };
            if now.duration_since(since) >= limit {
                stalled.push((*id, limit));
            }
        }
        for (id, limit) in stalled {
            self.abort_stalled(id, limit);
        }
    }

    /// Ends a stream without progress for `limit`.
    fn abort_stalled(&mut self, id: u32, limit: Duration) {
        let error = StreamError::Stalled(limit);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if self.role == Role::Client || !stream.send_queue.is_empty() {
            return self.reset_with(id, Reason::CANCEL, error);
        }
        // The response can still report the error.
        self.fail_receiving(id, error);
    }
}
