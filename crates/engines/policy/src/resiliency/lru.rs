//! A bounded LRU map with text keys.

use std::collections::HashMap;
use std::sync::Arc;

/// No slot.
const NONE: usize = usize::MAX;

/// All operations take constant time.
#[derive(Debug)]
pub(super) struct Lru<V> {
    capacity: usize,
    index: HashMap<Arc<str>, usize>,
    slots: Vec<Slot<V>>,
    newest: usize,
    oldest: usize,
}

#[derive(Debug)]
struct Slot<V> {
    key: Arc<str>,
    value: V,
    newer: usize,
    older: usize,
}

impl<V> Lru<V> {
    /// `capacity` must be at least 1.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            index: HashMap::new(),
            slots: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Keys and values, least recently used first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        let slot = |index: usize| self.slots.get(index);
        std::iter::successors(slot(self.oldest), move |known| slot(known.newer))
            .map(|slot| (&slot.key, &slot.value))
    }

    /// The value of `key`, without marking it as used.
    pub(super) fn peek(&self, key: &str) -> Option<&V> {
        let slot = self.slots.get(*self.index.get(key)?)?;
        Some(&slot.value)
    }

    /// Maximum number of entries.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The value of `key`, created if absent; marks it as most recently used.
    pub(super) fn get_or_insert_with(&mut self, key: &str, make: impl FnOnce() -> V) -> &mut V {
        let slot = match self.index.get(key).copied() {
            Some(slot) => {
                self.unlink(slot);
                slot
            }
            None => self.claim(key.into(), make()),
        };
        self.link_newest(slot);
        &mut self.slots[slot].value
    }

    /// An unlinked slot for the new entry: a fresh one, or that of the evicted entry.
    fn claim(&mut self, key: Arc<str>, value: V) -> usize {
        let entry = Slot {
            key: Arc::clone(&key),
            value,
            newer: NONE,
            older: NONE,
        };
        let slot = if self.slots.len() < self.capacity {
            self.slots.push(entry);
            self.slots.len() - 1
        } else {
            let oldest = self.oldest;
            self.unlink(oldest);
            self.index.remove(&self.slots[oldest].key);
            self.slots[oldest] = entry;
            oldest
        };
        self.index.insert(key, slot);
        slot
    }

    fn unlink(&mut self, slot: usize) {
        let (newer, older) = (self.slots[slot].newer, self.slots[slot].older);
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: usize) {
        self.slots[slot].newer = NONE;
        self.slots[slot].older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn evicts_least_recently_used() {
        let mut lru = Lru::new(2);
        lru.get_or_insert_with("a", || 1);
        lru.get_or_insert_with("b", || 2);
        lru.get_or_insert_with("a", || 10);
        lru.get_or_insert_with("c", || 3);
        assert_eq!(*lru.get_or_insert_with("a", || 10), 1);
        assert_eq!(*lru.get_or_insert_with("b", || 20), 20);
    }

    proptest! {
        #[test]
        fn lru_agrees_with_list(capacity in 1usize..5, keys in proptest::collection::vec(0u8..8, 0..64)) {
            let mut lru = Lru::new(capacity);
            let mut model: Vec<(u8, usize)> = Vec::new();
            for (step, key) in keys.into_iter().enumerate() {
                let entry = match model.iter().position(|(known, _)| *known == key) {
                    Some(index) => model.remove(index),
                    None => (key, step),
                };
                model.push(entry);
                if model.len() > capacity {
                    model.remove(0);
                }
                prop_assert_eq!(*lru.get_or_insert_with(&key.to_string(), || step), entry.1);
                prop_assert_eq!(lru.slots.len(), model.len());
            }
        }
    }
}
