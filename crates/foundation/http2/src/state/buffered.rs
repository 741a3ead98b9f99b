//! Bytes in the send queues of a connection, and their share of the process-wide total.

use std::collections::VecDeque;

use crate::settings::SharedLimit;

/// Granularity of updates to the shared total: each one contends with all connections.
const STEP: usize = 64 * 1024;
/// Bytes that a connection may always hold.
const FREE: usize = 256 * 1024;

#[derive(Debug)]
pub(super) struct Buffered {
    bytes: usize,
    /// `None`: only the connection's limits apply.
    memory: Option<&'static SharedLimit>,
    /// The part of `bytes` counted in `memory`.
    counted: usize,
    /// Memory of pieces that left a send queue but stay alive until the connection has written up to the
    /// given position.
    leaving: VecDeque<(u64, usize)>,
}

impl Buffered {
    pub(super) fn new(memory: Option<&'static SharedLimit>) -> Self {
        Self {
            bytes: 0,
            memory,
            counted: 0,
            leaving: VecDeque::new(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// False if all connections together hold too much, and `more` would exceed both this connection's
    /// share and the fixed allowance.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let has_room = |memory: &SharedLimit| memory.has_room(self.bytes, more);
        self.bytes + more <= FREE || self.memory.is_none_or(has_room)
    }

    /// Whether memory is so short that stalled readers must make room.
    pub(super) fn is_crowded(&self) -> bool {
        self.counted > 0 && self.memory.is_some_and(SharedLimit::is_crowded)
    }

    pub(super) fn add(&mut self, more: usize) {
        self.bytes += more;
        self.count();
    }

    pub(super) fn remove(&mut self, fewer: usize) {
        self.bytes -= fewer;
        self.count();
    }

    /// Like [`Self::remove`], but only after the connection has written up to `end`. Small amounts are
    /// removed at once.
    pub(super) fn remove_at(&mut self, fewer: usize, end: u64) {
        if fewer < STEP {
            self.remove(fewer);
        } else {
            self.leaving.push_back((end, fewer));
        }
    }

    /// The connection has written `written` bytes in total.
    pub(super) fn written(&mut self, written: u64) {
        while let Some((_, fewer)) = self.leaving.pop_front_if(|(end, _)| *end <= written) {
            self.remove(fewer);
        }
    }

    fn count(&mut self) {
        let Some(memory) = self.memory else { return };
        let due = self.bytes - self.bytes % STEP;
        if due != self.counted {
            memory.recount(self.counted, due);
            self.counted = due;
        }
    }
}

impl Drop for Buffered {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            memory.recount(self.counted, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 8 * FREE;

    fn memory() -> &'static SharedLimit {
        Box::leak(Box::new(SharedLimit::new(LIMIT)))
    }

    #[test]
    fn large_holders_make_room() {
        let memory = memory();
        let [mut large, mut other] = [(), ()].map(|()| Buffered::new(Some(memory)));
        large.add(7 * FREE);
        assert!(large.has_room(FREE) && !large.has_room(FREE + 1));
        other.add(FREE);
        assert_eq!(memory.held(), LIMIT);
        assert!(!large.has_room(1));
        assert!(
            other.has_room(3 * FREE) && !other.has_room(3 * FREE + 1),
            "its half"
        );
        large.remove(7 * FREE);
        assert!(large.has_room(1) && other.has_room(7 * FREE));
    }

    #[test]
    fn hard_limit_leaves_allowance() {
        let memory = memory();
        let [mut large, mut other, empty] = [(), (), ()].map(|()| Buffered::new(Some(memory)));
        large.add(2 * LIMIT - 2 * FREE);
        other.add(2 * FREE);
        assert!(!other.has_room(1) && other.is_crowded());
        assert!(empty.has_room(FREE) && !empty.has_room(FREE + 1) && !empty.is_crowded());
        drop(large);
        assert!(other.has_room(1) && !other.is_crowded());
    }

    #[test]
    fn large_pieces_count_until_written() {
        let mut buffered = Buffered::new(None);
        buffered.add(3 * STEP);
        buffered.remove_at(STEP - 1, 100);
        assert_eq!(buffered.bytes(), 2 * STEP + 1);
        buffered.remove_at(STEP, 100);
        buffered.remove_at(STEP, 200);
        for (written, held) in [(99, 2 * STEP), (100, STEP), (200, 0)] {
            buffered.written(written);
            assert_eq!(buffered.bytes(), held + 1);
        }
    }

    #[test]
    fn total_updates_in_steps() {
        let memory = memory();
        let mut buffered = Buffered::new(Some(memory));
        buffered.add(STEP - 1);
        assert_eq!(memory.held(), 0);
        buffered.add(STEP);
        assert_eq!(memory.held(), STEP);
        buffered.remove(STEP);
        assert_eq!(memory.held(), 0);
        buffered.add(3 * STEP);
        drop(buffered);
        assert_eq!(memory.held(), 0);
    }
}
