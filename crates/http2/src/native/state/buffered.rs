//! Bytes of bodies that wait in the send queues of a connection, and their part in those of all connections.

use crate::settings::UnreadMemory;

/// Bytes by which the sum of all connections follows one of them: each change costs all of them.
const STEP: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Buffered {
    bytes: usize,
    /// `None`: only this connection's own limits hold.
    memory: Option<&'static UnreadMemory>,
    /// What of `bytes` is counted there.
    counted: usize,
}

impl Buffered {
    pub(super) fn new(memory: Option<&'static UnreadMemory>) -> Self {
        Self {
            bytes: 0,
            memory,
            counted: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// False where all connections together hold too much, and this one has its share of it. What is not counted has room.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.bytes + more < STEP || self.memory.is_none_or(|memory| memory.has_room(self.bytes, more))
    }

    /// As [`Self::has_room`] for the next piece of a stream, which can wait.
    pub(super) fn has_room_soon(&self) -> bool {
        self.counted == 0 || self.has_room(STEP)
    }

    pub(super) fn add(&mut self, more: usize) {
        self.bytes += more;
        self.count();
    }

    pub(super) fn remove(&mut self, fewer: usize) {
        self.bytes -= fewer;
        self.count();
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

    #[test]
    fn who_holds_much_makes_room_for_who_holds_little() {
        let memory: &'static UnreadMemory = Box::leak(Box::new(UnreadMemory::new(8 * STEP)));
        let [mut large, mut other] = [(), ()].map(|()| Buffered::new(Some(memory)));
        large.add(7 * STEP);
        assert!(large.has_room(STEP) && !large.has_room(STEP + 1));
        other.add(STEP);
        assert_eq!(memory.bytes(), 8 * STEP);
        assert!(!large.has_room(1) && !large.has_room_soon());
        assert!(
            other.has_room(3 * STEP) && !other.has_room(3 * STEP + 1),
            "its half"
        );
        large.remove(7 * STEP);
        assert!(large.has_room_soon() && other.has_room(7 * STEP));
        other.add(4 * STEP);
        large.add(9 * STEP);
        let mut third = Buffered::new(Some(memory));
        third.add(2 * STEP);
        assert!(
            third.has_room(0) && !Buffered::new(Some(memory)).has_room(STEP),
            "twice the limit"
        );
        assert!(
            Buffered::new(Some(memory)).has_room(STEP - 1),
            "it is not counted"
        );
        third.remove(2 * STEP);
        large.remove(9 * STEP);
        other.remove(4 * STEP);
        large.add(STEP - 1);
        assert_eq!(memory.bytes(), STEP);
        drop(other);
        assert_eq!(memory.bytes(), 0);
    }
}
