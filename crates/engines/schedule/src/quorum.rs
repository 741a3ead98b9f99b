//! Agreement of a group of schedulers on its members.
//!
//! Each member has an entry in the store, bound to a lease, that lists the members it has seen. Members
//! become active once all entries list the current members; each then has its shard ([`crate::shard`]).
//! Before a member updates its entry it releases its jobs and stores their progress, so no member starts
//! with a job that another still holds.
//!
//! Dapr's entries contain only the number of members, which does not change if one leaves and another
//! joins: a member that has not noticed yet appears to agree. Outrigger's entries therefore also contain
//! the sum of the members' random numbers.

use crate::shard::Shard;

/// The entry of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The member's ID.
    pub id: String,
    /// A random number of the process that wrote it.
    pub uid: u64,
    /// The members that it has seen.
    pub seen: GroupMembers,
}

/// The members of a group, as summarized in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMembers {
    /// Number of members.
    pub total: u64,
    /// The sum of their `uid` modulo 2^64. Absent in entries of Dapr's schedulers.
    pub uids: Option<u64>,
}

impl GroupMembers {
    /// Summarizes these members.
    pub fn of(uids: impl IntoIterator<Item = u64>) -> Self {
        let (mut total, mut sum) = (0, 0_u64);
        for uid in uids {
            total += 1;
            sum = sum.wrapping_add(uid);
        }
        Self {
            total,
            uids: Some(sum),
        }
    }

    /// Whether these are the members `all`, as far as the entry states.
    fn agrees(&self, all: &Self) -> bool {
        self.total == all.total && (self.uids.is_none() || self.uids == all.uids)
    }
}

/// The meaning of the entries for one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// It has no entry and must write one.
    Absent,
    /// Another process has its ID: wait until that is gone.
    Taken,
    /// Its entry is outdated: release its jobs and write these members.
    Outdated(GroupMembers),
    /// Other members have not seen all members yet: wait for them.
    Disagreed,
    /// All agree: it has this shard.
    Agreed(Shard),
}

/// Interprets the entries for the process `uid` of the member `id`.
pub fn view(id: &str, uid: u64, entries: &[Entry]) -> View {
    let Some(own) = entries.iter().find(|entry| entry.id == id) else {
        return View::Absent;
    };
    if own.uid != uid {
        return View::Taken;
    }
    let all = GroupMembers::of(entries.iter().map(|entry| entry.uid));
    if own.seen != all {
        return View::Outdated(all);
    }
    if !entries.iter().all(|entry| entry.seen.agrees(&all)) {
        return View::Disagreed;
    }
    match Shard::of(id, entries.iter().map(|entry| entry.id.as_str())) {
        Some(shard) => View::Agreed(shard),
        None => View::Absent,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(id: &str, uid: u64, seen: &[u64]) -> Entry {
        Entry {
            id: id.to_owned(),
            uid,
            seen: GroupMembers::of(seen.iter().copied()),
        }
    }

    #[test]
    fn interprets_entries() {
        assert_eq!(view("a", 1, &[]), View::Absent);
        assert_eq!(view("a", 1, &[entry("a", 2, &[2])]), View::Taken);
        assert_eq!(view("a", 1, &[entry("a", 1, &[1])]), View::Agreed(Shard::ALL));
        let joined = [entry("a", 1, &[1]), entry("b", 2, &[1, 2])];
        assert_eq!(
            view("a", 1, &joined),
            View::Outdated(GroupMembers {
                total: 2,
                uids: Some(3)
            })
        );
        assert_eq!(view("b", 2, &joined), View::Disagreed);
        let agreed = [entry("b", 2, &[1, 2]), entry("a", 1, &[2, 1])];
        assert_eq!(
            view("a", 1, &agreed),
            View::Agreed(Shard::of("a", ["a", "b"]).unwrap())
        );
        assert_eq!(
            view("b", 2, &agreed),
            View::Agreed(Shard::of("b", ["a", "b"]).unwrap())
        );
    }

    #[test]
    fn equal_count_is_not_equal_membership() {
        // b has not yet seen that c has joined and a has left.
        let changed = [entry("b", 2, &[1, 2]), entry("c", 3, &[2, 3])];
        assert_eq!(view("c", 3, &changed), View::Disagreed);
        assert!(matches!(view("b", 2, &changed), View::Outdated(_)));
    }

    #[test]
    fn dapr_entries_agree_by_count() {
        let mut dapr = entry("b", 2, &[]);
        dapr.seen = GroupMembers { total: 2, uids: None };
        let own = entry("a", 1, &[1, 2]);
        assert!(matches!(
            view("a", 1, &[own.clone(), dapr.clone()]),
            View::Agreed(_)
        ));
        dapr.seen.total = 1;
        assert_eq!(view("a", 1, &[own, dapr]), View::Disagreed);
    }

    /// Members that check the store from time to time and act on it.
    #[derive(Debug, Clone)]
    enum Step {
        Join(usize),
        Leave(usize),
        Look(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => (0_usize..4).prop_map(Step::Join),
            1 => (0_usize..4).prop_map(Step::Leave),
            4 => (0_usize..4).prop_map(Step::Look),
        ]
    }

    #[derive(Default)]
    struct Group {
        entries: Vec<Entry>,
        /// The shard of each process.
        places: [Option<Shard>; 4],
        /// Number of processes started.
        processes: u64,
    }

    impl Group {
        fn at(&self, at: usize) -> Option<&Entry> {
            let id = at.to_string();
            self.entries.iter().find(|entry| entry.id == id)
        }

        /// A process checks the entries and acts on them.
        fn look(&mut self, at: usize) {
            let Some(uid) = self.at(at).map(|entry| entry.uid) else {
                return;
            };
            let id = at.to_string();
            match view(&id, uid, &self.entries) {
                View::Absent | View::Taken => unreachable!("it has an entry"),
                View::Outdated(seen) => {
                    self.places[at] = None;
                    let own = self.entries.iter_mut().find(|entry| entry.id == id).unwrap();
                    own.seen = seen;
                }
                View::Disagreed => self.places[at] = None,
                View::Agreed(shard) => self.places[at] = Some(shard),
            }
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Join(at) if self.at(at).is_none() => {
                    self.processes += 1;
                    let uids = self.entries.iter().map(|entry| entry.uid);
                    let seen = GroupMembers::of(uids.chain([self.processes]));
                    self.entries.push(Entry {
                        id: at.to_string(),
                        uid: self.processes,
                        seen,
                    });
                }
                Step::Join(_) => {}
                // Its lease ends, and it has noticed that before.
                Step::Leave(at) => {
                    self.places[at] = None;
                    self.entries.retain(|entry| entry.id != at.to_string());
                }
                Step::Look(at) => self.look(at),
            }
        }

        fn owners(&self, partition: u64) -> usize {
            let places = self.places.iter().flatten();
            places.filter(|shard| shard.owns(partition)).count()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn jobs_have_at_most_one_owner(steps in prop::collection::vec(step(), 0..60)) {
            let mut group = Group::default();
            for step in &steps {
                group.step(step);
                for partition in 0..12 {
                    let owners = group.owners(partition);
                    prop_assert!(owners <= 1, "{partition} has {owners} owners");
                }
            }
            // Without changes, all get a shard, and each job has an owner.
            for at in (0..4).chain(0..4) {
                group.look(at);
            }
            for partition in 0..12 {
                prop_assert_eq!(group.owners(partition), usize::from(!group.entries.is_empty()));
            }
        }
    }
}
