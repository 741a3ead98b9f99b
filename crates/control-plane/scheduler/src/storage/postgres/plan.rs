//! Combines transactions that share one transaction of the server: which of them commit, and their net
//! writes.

use std::collections::{HashMap, HashSet};

use crate::storage::pair::Range;
use crate::storage::shared::backend::{Condition, Write};

/// Revisions at which a key was created and last written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) created: i64,
    pub(super) modified: i64,
}

/// The net effect on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyWrite {
    Put {
        value: Vec<u8>,
        lease: Option<i64>,
        /// Deleted before in the same transaction, so the key counts as new.
        anew: bool,
    },
    Delete,
}

/// The net writes of transactions that share one transaction of the server.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The state of the keys in conditions, including planned writes.
    known: HashMap<Vec<u8>, Written>,
    pub(super) keys: HashMap<Vec<u8>, KeyWrite>,
    /// Further keys to delete, before any put.
    pub(super) ranges: Vec<Range>,
    leases: HashSet<i64>,
}

impl Plan {
    /// `known` is the stored state of the keys in conditions, `leases` the live leases.
    pub(super) fn new(known: HashMap<Vec<u8>, Written>, leases: HashSet<i64>) -> Self {
        Self {
            known,
            leases,
            ..Self::default()
        }
    }

    /// Adds a transaction at this revision. `None` if one of its leases has ended, `false` if a condition
    /// does not hold.
    pub(super) fn add(&mut self, revision: i64, conditions: &[Condition], writes: &[Write]) -> Option<bool> {
        if !conditions.iter().all(|condition| self.holds(condition)) {
            return Some(false);
        }
        let ended = |write: &Write| matches!(write, Write::Put { lease: Some(lease), .. } if !self.leases.contains(lease));
        if writes.iter().any(ended) {
            return None;
        }
        for write in writes {
            match write {
                Write::Put { key, value, lease } => self.put(revision, key, value, *lease),
                Write::Delete(range) => match range.only() {
                    Some(key) => self.delete(key.to_vec()),
                    None => self.delete_range(range),
                },
            }
        }
        Some(true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Modified(key, at) => self.known.get(key).map_or(0, |written| written.modified) == *at,
            Condition::Created(key, at) => self.known.get(key).map_or(0, |written| written.created) == *at,
        }
    }

    fn put(&mut self, revision: i64, key: &[u8], value: &[u8], lease: Option<i64>) {
        let gone = |range: &Range| range.has(key);
        let anew = match self.keys.get(key) {
            Some(KeyWrite::Delete) => true,
            Some(KeyWrite::Put { anew, .. }) => *anew,
            None => self.ranges.iter().any(gone),
        };
        let written = self.known.entry(key.to_vec()).or_insert(Written {
            created: revision,
            modified: revision,
        });
        written.modified = revision;
        let last = KeyWrite::Put {
            value: value.to_vec(),
            lease,
            anew,
        };
        self.keys.insert(key.to_vec(), last);
    }

    fn delete(&mut self, key: Vec<u8>) {
        self.known.remove(&key);
        self.keys.insert(key, KeyWrite::Delete);
    }

    fn delete_range(&mut self, range: &Range) {
        self.known.retain(|key, _| !range.has(key));
        for (key, last) in &mut self.keys {
            if range.has(key) {
                *last = KeyWrite::Delete;
            }
        }
        self.ranges.push(range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> Write {
        Write::Put {
            key: key.into(),
            value: value.into(),
            lease: None,
        }
    }

    fn last(value: &str, anew: bool) -> KeyWrite {
        KeyWrite::Put {
            value: value.into(),
            lease: None,
            anew,
        }
    }

    fn plan() -> Plan {
        let written = Written {
            created: 3,
            modified: 5,
        };
        Plan::new(HashMap::from([(b"a".to_vec(), written)]), HashSet::from([7]))
    }

    #[test]
    fn conditions_see_earlier_writes() {
        let mut plan = plan();
        let modified = |at| [Condition::Modified(b"a".to_vec(), at)];
        assert_eq!(plan.add(9, &modified(4), &[put("a", "no")]), Some(false));
        assert!(plan.is_empty());
        assert_eq!(plan.add(9, &modified(5), &[put("a", "1")]), Some(true));
        assert_eq!(plan.add(9, &modified(5), &[put("a", "2")]), Some(false));
        let created = [Condition::Created(b"a".to_vec(), 3)];
        assert_eq!(plan.add(9, &created, &[put("b", "3")]), Some(true));
        assert_eq!(plan.keys[b"a".as_slice()], last("1", false));
        let absent = [Condition::Modified(b"b".to_vec(), 0)];
        assert_eq!(plan.add(9, &absent, &[put("b", "4")]), Some(false));
        assert_eq!(plan.keys[b"b".as_slice()], last("3", false));
    }

    #[test]
    fn last_write_of_key_wins() {
        let mut plan = plan();
        let one = Write::Delete(Range::one("a"));
        assert_eq!(plan.add(9, &[], &[one]), Some(true));
        assert_eq!(plan.keys[b"a".as_slice()], KeyWrite::Delete);
        let absent = [Condition::Modified(b"a".to_vec(), 0)];
        assert_eq!(plan.add(9, &absent, &[put("a", "1"), put("ab", "2")]), Some(true));
        assert_eq!(plan.keys[b"a".as_slice()], last("1", true));
        assert_eq!(plan.keys[b"ab".as_slice()], last("2", false));
        let prefix = Write::Delete(Range::prefix("a"));
        assert_eq!(plan.add(9, &[], &[prefix]), Some(true));
        assert_eq!(plan.add(9, &[], &[put("ac", "3")]), Some(true));
        assert_eq!(plan.keys[b"ab".as_slice()], KeyWrite::Delete);
        assert_eq!(plan.keys[b"ac".as_slice()], last("3", true));
        assert_eq!(plan.ranges, [Range::prefix("a")]);
    }

    #[test]
    fn refuses_keys_of_ended_lease() {
        let mut plan = plan();
        let with = |lease| Write::Put {
            key: b"k".to_vec(),
            value: Vec::new(),
            lease: Some(lease),
        };
        assert_eq!(plan.add(9, &[], &[with(8)]), None);
        assert_eq!(plan.add(9, &[], &[with(7)]), Some(true));
    }
}
