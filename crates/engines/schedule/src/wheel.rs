//! A hierarchical timing wheel: insertion, removal and expiry cost the same for ten entries and for a
//! million.

/// Slots per level; each slot spans all slots of the level below.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
/// With millisecond resolution the levels span more than two years. Later entries wait in the last slot and
/// are reinserted from there.
const LEVELS: usize = 6;
const SPAN: u64 = 1 << (SLOT_BITS * LEVELS as u32);
/// Maximum distance of an entry: one slot less than a full round, so that a slot never holds two rounds.
const FARTHEST: u64 = SPAN - SPAN / SLOTS as u64 - 1;

/// An entry's position, for its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    at: u32,
    generation: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    due: u64,
    next: u32,
    previous: u32,
    generation: u32,
    /// Level and slot; unused in the free list.
    slot: u16,
    value: Option<T>,
}

/// Values by due time in milliseconds.
#[derive(Debug)]
pub struct Wheel<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    heads: Box<[[u32; SLOTS]; LEVELS]>,
    /// Occupied slots per level, as a bit set.
    occupied: [u64; LEVELS],
    now: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// An empty wheel at `now`, in milliseconds since any epoch.
    pub fn new(now: u64) -> Self {
        Self {
            nodes: Vec::new(),
            free: NONE,
            heads: Box::new([[NONE; SLOTS]; LEVELS]),
            occupied: [0; LEVELS],
            now,
            len: 0,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value. The next [`Wheel::advance`] returns it if it is already due.
    ///
    /// # Panics
    /// With four billion entries.
    pub fn insert(&mut self, due: u64, value: T) -> Handle {
        let at = if self.free == NONE {
            let at = u32::try_from(self.nodes.len()).ok().filter(|at| *at != NONE);
            self.nodes.push(Node {
                due,
                next: NONE,
                previous: NONE,
                generation: 0,
                slot: 0,
                value: None,
            });
            // Four billion entries exceed the memory of any supported machine.
            at.expect("fewer than 2^32 entries")
        } else {
            let at = self.free;
            self.free = self.nodes[at as usize].next;
            at
        };
        let node = &mut self.nodes[at as usize];
        node.due = due;
        node.value = Some(value);
        let generation = node.generation;
        self.link(at);
        self.len += 1;
        Handle { at, generation }
    }

    /// Removes a value; `None` if it came due or was already removed.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let node = self.nodes.get(handle.at as usize)?;
        if node.generation != handle.generation || node.value.is_none() {
            return None;
        }
        self.unlink(handle.at);
        self.release(handle.at)
    }

    /// Advances to `now` and passes every due value to `is_due`, in order of milliseconds.
    pub fn advance(&mut self, now: u64, mut is_due: impl FnMut(T)) {
        while let Some((level, slot, start)) = self.first() {
            if start > now {
                break;
            }
            self.now = self.now.max(start);
            let mut at = self.take(level, slot);
            while at != NONE {
                let next = self.nodes[at as usize].next;
                if level == 0 || self.nodes[at as usize].due <= self.now {
                    if let Some(value) = self.release(at) {
                        is_due(value);
                    }
                } else {
                    self.link(at);
                }
                at = next;
            }
        }
        self.now = self.now.max(now);
    }

    /// Moves back to an earlier `now` after a clock change; due times are compared with the new time.
    pub fn rewind(&mut self, now: u64) {
        self.now = now;
        self.heads.fill([NONE; SLOTS]);
        self.occupied = [0; LEVELS];
        for at in 0..self.nodes.len() {
            if self.nodes[at].value.is_some() {
                // The number of nodes fits into a u32.
                self.link(at as u32);
            }
        }
    }

    /// The current time of the wheel: the latest time it was advanced to since the last rewind.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// When to call [`Wheel::advance`] next: nothing is due before, and possibly nothing at that time
    /// either.
    pub fn next(&self) -> Option<u64> {
        self.first().map(|(_, _, start)| start)
    }

    /// The first occupied slot: its level, its number, and its first millisecond.
    fn first(&self) -> Option<(usize, usize, u64)> {
        for level in 0..LEVELS {
            let occupied = self.occupied[level];
            if occupied == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let current = (self.now >> shift) & (SLOTS as u64 - 1);
            // Slots from the current one on, then those of the next round.
            let ahead = occupied.rotate_right(current as u32).trailing_zeros();
            let slot = (current as usize + ahead as usize) % SLOTS;
            let round = self.now >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
            let wrapped = if current + u64::from(ahead) >= SLOTS as u64 {
                1_u64 << (shift + SLOT_BITS)
            } else {
                0
            };
            let start = round + wrapped + ((slot as u64) << shift);
            // A slot whose span has started must be sorted now.
            return Some((level, slot, start.max(self.now)));
        }
        None
    }

    /// Inserts a node into the slot of its time.
    fn link(&mut self, at: u32) {
        // Late entries count as due now; distant ones as due in the last slot.
        let due = self.nodes[at as usize]
            .due
            .clamp(self.now, self.now.saturating_add(FARTHEST));
        let differing = (self.now ^ due) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        // Across a multiple of the whole span, even near times differ in the highest bits.
        let level = level.min(LEVELS - 1);
        let slot = ((due >> (SLOT_BITS * level as u32)) & (SLOTS as u64 - 1)) as usize;
        let head = self.heads[level][slot];
        let node = &mut self.nodes[at as usize];
        node.slot = (level * SLOTS + slot) as u16;
        node.previous = NONE;
        node.next = head;
        if head != NONE {
            self.nodes[head as usize].previous = at;
        }
        self.heads[level][slot] = at;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, at: u32) {
        let Node {
            next, previous, slot, ..
        } = self.nodes[at as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous == NONE {
            let (level, slot) = (slot as usize / SLOTS, slot as usize % SLOTS);
            self.heads[level][slot] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.nodes[previous as usize].next = next;
        }
    }

    /// Empties a slot and returns its linked nodes.
    fn take(&mut self, level: usize, slot: usize) -> u32 {
        self.occupied[level] &= !(1 << slot);
        std::mem::replace(&mut self.heads[level][slot], NONE)
    }

    /// Returns a node to the free list.
    fn release(&mut self, at: u32) -> Option<T> {
        let free = self.free;
        let node = &mut self.nodes[at as usize];
        node.generation = node.generation.wrapping_add(1);
        node.next = free;
        self.free = at;
        self.len -= 1;
        node.value.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A simple reference implementation.
    #[derive(Default)]
    struct Plain(BTreeMap<(u64, u32), ()>);

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let far = prop_oneof![0_u64..200, 0_u64..100_000, 0_u64..(1 << 38)];
        prop_oneof![
            4 => far.prop_map(Step::Insert),
            1 => (0_usize..64).prop_map(Step::Remove),
            3 => prop_oneof![0_u64..100, 0_u64..100_000, 0_u64..(1 << 37)].prop_map(Step::Advance),
        ]
    }

    proptest! {
        #[test]
        fn matches_sorted_map(start in any::<u32>(), steps in prop::collection::vec(step(), 0..80)) {
            let mut now = u64::from(start) * 1000;
            let mut wheel = Wheel::new(now);
            let mut plain = Plain::default();
            let mut handles = Vec::new();
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Insert(after) => {
                        handles.push((wheel.insert(now + after, number), now + after, number));
                        plain.0.insert((now + after, number), ());
                        number += 1;
                    }
                    Step::Remove(at) if !handles.is_empty() => {
                        let (handle, due, value) = handles.swap_remove(at % handles.len());
                        let expected = plain.0.remove(&(due, value)).map(|()| value);
                        prop_assert_eq!(wheel.remove(handle), expected);
                    }
                    Step::Remove(_) => {}
                    Step::Advance(by) => {
                        now += by;
                        let mut due = Vec::new();
                        wheel.advance(now, |value| due.push(value));
                        let later = plain.0.split_off(&(now + 1, 0));
                        let mut expected: Vec<u32> = std::mem::replace(&mut plain.0, later).into_keys().map(|(_, v)| v).collect();
                        due.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(due, expected);
                    }
                }
                prop_assert_eq!(wheel.len(), plain.0.len());
                let first = plain.0.keys().next().map(|(due, _)| *due);
                match (wheel.next(), first) {
                    (Some(next), Some(first)) => prop_assert!(next <= first.max(now), "{} after {}", next, first),
                    (next, first) => prop_assert_eq!(next.is_some(), first.is_some()),
                }
            }
        }
    }

    #[test]
    fn returns_milliseconds_in_order() {
        let mut wheel = Wheel::new(1_000_000);
        for due in [1_000_500_u64, 1_000_001, 1_200_000, 1_000_064, 1_000_063] {
            wheel.insert(due, due);
        }
        let mut seen = Vec::new();
        wheel.advance(2_000_000, |due| seen.push(due));
        assert_eq!(seen, [1_000_001, 1_000_063, 1_000_064, 1_000_500, 1_200_000]);
    }

    #[test]
    fn rewinds_with_clock() {
        let mut wheel = Wheel::new(1_000_000);
        wheel.insert(1_000_100, "kept");
        wheel.advance(1_000_050, |_| panic!("nothing is due"));
        wheel.rewind(500_000);
        wheel.insert(500_010, "new");
        let taken = wheel.insert(600_000, "taken out");
        let mut seen = Vec::new();
        wheel.advance(500_010, |value| seen.push(value));
        assert_eq!(seen, ["new"]);
        assert_eq!(wheel.remove(taken), Some("taken out"));
        wheel.advance(1_000_099, |value| seen.push(value));
        assert_eq!((seen.as_slice(), wheel.len()), (["new"].as_slice(), 1));
        wheel.advance(1_000_100, |value| seen.push(value));
        assert_eq!(seen, ["new", "kept"]);
    }

    #[test]
    fn entries_are_small() {
        assert!(size_of::<Node<u32>>() <= 32);
    }
}
