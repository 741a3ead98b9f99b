//! What should move and does not. It is looked for at intervals, so that no stream needs a timer.

use std::time::Duration;

use tokio::time::Instant;

use super::{Phase, Role, State};
use crate::error::{Cut, Ended, Reason};
use crate::stream::Coming;

/// What was seen at the end of the last interval.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Frames and lists of fields that have come whole.
    pub(super) whole: u64,
    incoming: Still,
    outgoing: Still,
    idle: Still,
    leaving: Still,
}

/// A count, and since when it is known to be the same.
#[derive(Debug, Default)]
struct Still {
    count: u64,
    since: Option<Instant>,
}

impl Still {
    /// True when `count` has been the same for `limit`; `due` while it should change.
    fn is_over(&mut self, count: u64, due: bool, limit: Duration, now: Instant) -> bool {
        if !due || self.count != count {
            let since = due.then_some(now);
            *self = Self { count, since };
        }
        let since = self.since.map(|since| now.duration_since(since));
        since.is_some_and(|still| still >= limit)
    }
}

impl State {
    /// How long to wait before [`Self::look_around`] is of use, where nothing else asks for it.
    pub(crate) fn interval(&self) -> Duration {
        self.config.stall / 4
    }

    /// Whether a silent peer is asked if it is there.
    pub(crate) fn may_ping(&self) -> bool {
        self.config.ping_idle || !self.streams.is_empty()
    }

    /// Ends what has not moved for too long.
    ///
    /// # Errors
    /// Why the connection must end.
    pub(crate) fn look_around(&mut self, now: Instant) -> Result<(), Ended> {
        let stall = self.config.stall;
        let begun = self.incomplete.is_begun();
        let whole = self.watch.whole;
        if self.watch.incoming.is_over(whole, begun, stall, now) {
            return Err(Ended::Unfinished(stall));
        }
        let (written, waits) = (self.out.written(), !self.out.is_empty());
        if self.watch.outgoing.is_over(written, waits, stall, now) {
            return Err(Ended::Unread(stall));
        }
        let idle = self.role == Role::Server && self.phase == Phase::Open && self.streams.is_empty();
        let last = u64::from(self.last);
        if self.watch.idle.is_over(last, idle, self.config.idle, now) {
            self.leave();
        }
        // One that does not answer our ping knows by now.
        let leaving = self.phase == Phase::Leaving;
        if self.watch.leaving.is_over(0, leaving, stall, now) {
            self.leave_now();
        }
        self.look_at_streams(now);
        Ok(())
    }

    fn look_at_streams(&mut self, now: Instant) {
        let mut stalled = Vec::new();
        for (number, stream) in &mut self.streams {
            if std::mem::take(&mut stream.moved) || !stream.is_due() {
                stream.stalled = stream.is_due().then_some(now);
                continue;
            }
            let since = *stream.stalled.get_or_insert(now);
            if now.duration_since(since) >= self.config.stall {
                stalled.push(*number);
            }
        }
        for number in stalled {
            self.give_up(number);
        }
    }

    /// Gives up a stream on which nothing moves.
    fn give_up(&mut self, number: u32) {
        let why = Cut::Stalled(self.config.stall);
        let Some(stream) = self.streams.get_mut(&number) else {
            return;
        };
        if self.role == Role::Client || !stream.queue.is_empty() {
            return self.reset_as(number, Reason::CANCEL, why);
        }
        // The answer can still say what is wrong.
        stream.coming = Coming::Cut(why);
        stream.wake_reader();
        self.remember(number);
    }
}
