//! The shared store, and randomness.

use super::*;

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(super) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    pub(super) fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

impl Store {
    pub(super) fn put(&mut self, name: &Name, mut stored: Stored) {
        self.revision += 1;
        stored.revision = self.revision;
        self.counters.remove(name);
        self.jobs.insert(name.clone(), stored.clone());
        self.events.push((self.revision, name.clone(), Some(stored)));
    }

    pub(super) fn delete(&mut self, name: &Name) {
        self.revision += 1;
        self.counters.remove(name);
        if self.jobs.remove(name).is_some() {
            self.events.push((self.revision, name.clone(), None));
        }
    }

    pub(super) fn expire(&mut self, now: u64) {
        self.leases.retain(|_, ends| *ends > now);
        let leases = &self.leases;
        self.entries.retain(|_, entry| leases.contains_key(&entry.lease));
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.entries.values().map(|stored| stored.entry.clone()).collect()
    }
}
