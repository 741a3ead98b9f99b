//! Open streams of a connection, and their part in those of all connections.

use crate::settings::SharedLimit;

/// Streams that a connection may have whatever others have. Its part in the sum grows by as many at once, and shrinks by at least
/// half as many: each change is a write to memory that all connections share.
const STEP: usize = 8;

/// Why a call is refused where all connections together have too many.
pub const TOO_MANY_CALLS: &str =
    "too many calls in flight in this process: retry later (see OUTRIGGER_MEMORY_BUDGET)";

/// The part of one connection in the streams that all connections have open.
#[derive(Debug)]
pub struct OpenStreams {
    /// `None`: only this connection's own limit holds.
    shared: Option<&'static SharedLimit>,
    /// How many of them are counted there.
    counted: usize,
}

impl OpenStreams {
    /// Of a connection without streams.
    pub fn new(shared: Option<&'static SharedLimit>) -> Self {
        Self { shared, counted: 0 }
    }

    /// Whether a connection with so many streams may have one more.
    #[inline]
    pub fn has_room(&self, open: usize) -> bool {
        open < STEP || self.shared.is_none_or(|shared| shared.has_room(open, 1))
    }

    /// The connection has so many streams now.
    #[inline]
    pub fn count(&mut self, open: usize) {
        let is_due = open >= self.counted + STEP || open + STEP / 2 <= self.counted;
        if is_due && let Some(shared) = self.shared {
            let due = open - open % STEP;
            shared.recount(self.counted, due);
            self.counted = due;
        }
    }
}

impl Drop for OpenStreams {
    fn drop(&mut self) {
        self.count(0);
    }
}
