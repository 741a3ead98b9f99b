//! Open streams of a connection, and their part in those of all connections.

use crate::settings::SharedLimit;

/// Streams by which the sum of all connections follows one of them: each change costs all of them. A connection may have fewer
/// whatever others do.
const STEP: usize = 4;

#[derive(Debug)]
pub(super) struct OpenStreams {
    /// `None`: only this connection's own limit holds.
    shared: Option<&'static SharedLimit>,
    /// How many of them are counted there.
    counted: usize,
}

impl OpenStreams {
    pub(super) fn new(shared: Option<&'static SharedLimit>) -> Self {
        Self { shared, counted: 0 }
    }

    /// Whether a connection with so many streams may have one more.
    #[inline]
    pub(super) fn has_room(&self, open: usize) -> bool {
        open + 1 < STEP || self.shared.is_none_or(|shared| shared.has_room(open, 1))
    }

    /// The connection has so many streams now.
    #[inline]
    pub(super) fn count(&mut self, open: usize) {
        let due = open - open % STEP;
        if due != self.counted
            && let Some(shared) = self.shared
        {
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
