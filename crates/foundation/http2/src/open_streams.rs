//! Open streams of a connection, and their share of the process-wide count.

use crate::settings::SharedLimit;

/// Streams that a connection may always have. The shared count is updated in steps of this size (half when
/// it shrinks), because each update writes to memory shared by all connections.
const STEP: usize = 8;

/// The error of a call that exceeds the process-wide limit on streams.
pub const TOO_MANY_CALLS: &str =
    "too many calls in flight in this process: retry later (see OUTRIGGER_MEMORY_BUDGET)";

/// A connection's share of the open streams of all connections.
#[derive(Debug)]
pub struct OpenStreams {
    /// `None`: only the connection's limit applies.
    shared: Option<&'static SharedLimit>,
    /// Streams counted in `shared`.
    counted: usize,
}

impl OpenStreams {
    /// For a connection without streams.
    pub fn new(shared: Option<&'static SharedLimit>) -> Self {
        Self { shared, counted: 0 }
    }

    /// Whether a connection with `open` streams may open another.
    #[inline]
    pub fn has_room(&self, open: usize) -> bool {
        open < STEP || self.shared.is_none_or(|shared| shared.has_room(open, 1))
    }

    /// Sets the number of open streams.
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
