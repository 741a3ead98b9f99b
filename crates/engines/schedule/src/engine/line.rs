//! The queue of one recipient's due jobs, with limits on its triggers in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::ready::Sequence;
use super::{Key, LimitCounts, LimitScope, Name, Target};

/// Due jobs in order of age.
type Queue = BTreeMap<Sequence, (Name, Option<Key>)>;

/// Due jobs of an app or actor type. Jobs whose key has a limit have a separate queue, so that a full
/// limit does not block other jobs.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Jobs whose key has no limit.
    due: Queue,
    /// Its position among the waiting targets.
    pub(super) turn: Option<Sequence>,
    /// Triggers in flight.
    held: usize,
    /// Triggers in flight by key.
    held_by: HashMap<Key, usize>,
    limits: Option<Box<Limits>>,
}

#[derive(Debug, Default)]
struct Limits {
    all: Option<Limit>,
    by_key: HashMap<Key, (Limit, Queue)>,
}

#[derive(Debug)]
struct Limit {
    most: usize,
    /// Jobs that became due while it was full.
    throttled: u64,
}

impl Line {
    /// Triggers in flight.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    fn held_of(&self, key: &Key) -> usize {
        self.held_by.get(key).copied().unwrap_or_default()
    }

    /// Whether jobs wait.
    pub(super) fn waits(&self) -> bool {
        !self.due.is_empty()
            || self
                .limits
                .as_ref()
                .is_some_and(|limits| limits.by_key.values().any(|(_, due)| !due.is_empty()))
    }

    /// Whether it can be forgotten.
    pub(super) fn is_idle(&self) -> bool {
        self.held == 0 && self.limits.is_none() && self.due.is_empty()
    }

    /// Queues a job.
    pub(super) fn push(&mut self, place: Sequence, key: Option<&Key>, name: Name) {
        let (held, waiting) = (self.held, self.waiting());
        let held_of = key.map_or(0, |key| self.held_of(key));
        if let Some(limits) = &mut self.limits {
            let of_key = key.and_then(|key| limits.by_key.get_mut(key));
            match (&mut limits.all, of_key) {
                (Some(all), _) if held + waiting >= all.most => all.throttled += 1,
                (_, Some((limit, due))) if held_of + due.len() >= limit.most => limit.throttled += 1,
                _ => {}
            }
        }
        self.queue(key).insert(place, (name, key.cloned()));
    }

    /// Takes the oldest job that no limit holds back.
    pub(super) fn pop(&mut self) -> Option<(Name, Option<Key>)> {
        let (place, key) = self.open()?;
        let key = key.cloned();
        self.queue(key.as_ref()).remove(&place)
    }

    /// The oldest job that no limit holds back: its place, and its key if that has a limit.
    pub(super) fn open(&self) -> Option<(Sequence, Option<&Key>)> {
        let oldest = |due: &Queue| due.first_key_value().map(|(place, _)| *place);
        let free = oldest(&self.due).map(|place| (place, None));
        let Some(limits) = &self.limits else {
            return free;
        };
        if limits.all.as_ref().is_some_and(|all| self.held >= all.most) {
            return None;
        }
        let with_room = limits
            .by_key
            .iter()
            .filter(|(key, (limit, _))| self.held_of(key) < limit.most);
        let limited = with_room.filter_map(|(key, (_, due))| Some((oldest(due)?, Some(key))));
        limited.chain(free).min_by_key(|(place, _)| *place)
    }

    /// Removes a job.
    pub(super) fn remove(&mut self, place: Sequence, key: Option<&Key>) {
        self.queue(key).remove(&place);
    }

    /// The queue of the jobs with this key.
    fn queue(&mut self, key: Option<&Key>) -> &mut Queue {
        let limited = self.limits.as_mut().zip(key);
        match limited.and_then(|(limits, key)| limits.by_key.get_mut(key)) {
            Some((_, due)) => due,
            None => &mut self.due,
        }
    }

    /// Counts a trigger in flight.
    pub(super) fn sent(&mut self, key: Option<&Key>) {
        self.held += 1;
        if let Some(key) = key {
            *self.held_by.entry(Arc::clone(key)).or_default() += 1;
        }
    }

    /// A trigger has ended.
    pub(super) fn ended(&mut self, key: Option<&Key>) {
        self.held = self.held.saturating_sub(1);
        if let Some(key) = key
            && let Some(held) = self.held_by.get_mut(key)
        {
            *held -= 1;
            if *held == 0 {
                self.held_by.remove(key);
            }
        }
    }

    /// Drops all waiting jobs, and adds the limits that this concerns.
    pub(super) fn forget_due(&mut self, target: &Arc<Target>, changed: &mut HashSet<LimitScope>) {
        self.turn = None;
        self.due.clear();
        self.note(target, None, changed);
        for (key, (_, due)) in self.limits.iter_mut().flat_map(|limits| &mut limits.by_key) {
            due.clear();
            changed.insert(LimitScope {
                target: Arc::clone(target),
                key: Some(Arc::clone(key)),
            });
        }
    }

    /// Sets or removes the limit of the whole queue, or of one key.
    pub(super) fn limit(&mut self, key: Option<&Key>, most: Option<usize>) {
        let mut limits = self.limits.take().unwrap_or_default();
        match (key, most) {
            (None, None) => limits.all = None,
            (None, Some(most)) => match &mut limits.all {
                Some(all) => all.most = most,
                all => *all = Some(Limit { most, throttled: 0 }),
            },
            (Some(key), None) => {
                let due = limits.by_key.remove(key).map(|(_, due)| due);
                self.due.extend(due.unwrap_or_default());
            }
            (Some(key), Some(most)) => {
                if let Some((limit, _)) = limits.by_key.get_mut(key) {
                    limit.most = most;
                } else {
                    let (due, other) = std::mem::take(&mut self.due)
                        .into_iter()
                        .partition(|(_, (_, of))| of.as_ref() == Some(key));
                    self.due = other;
                    let limit = Limit { most, throttled: 0 };
                    limits.by_key.insert(Arc::clone(key), (limit, due));
                }
            }
        }
        self.limits = (limits.all.is_some() || !limits.by_key.is_empty()).then_some(limits);
    }

    fn waiting(&self) -> usize {
        let limited = self.limits.iter().flat_map(|limits| limits.by_key.values());
        self.due.len() + limited.map(|(_, due)| due.len()).sum::<usize>()
    }

    /// The counts of a limit, if there is one.
    pub(super) fn counts(&self, key: Option<&Key>) -> Option<LimitCounts> {
        let limits = self.limits.as_ref()?;
        Some(match key {
            None => LimitCounts {
                in_flight: self.held,
                waiting: self.waiting(),
                throttled: limits.all.as_ref()?.throttled,
            },
            Some(key) => {
                let (limit, due) = limits.by_key.get(key)?;
                LimitCounts {
                    in_flight: self.held_of(key),
                    waiting: due.len(),
                    throttled: limit.throttled,
                }
            }
        })
    }

    /// Adds the limits that a change of a job with this key concerns.
    pub(super) fn note(&self, target: &Arc<Target>, key: Option<&Key>, changed: &mut HashSet<LimitScope>) {
        let Some(limits) = &self.limits else {
            return;
        };
        let all = limits.all.is_some().then_some(None);
        let keyed = key.filter(|key| limits.by_key.contains_key(*key));
        changed.extend(all.into_iter().chain(keyed.map(Some)).map(|key| LimitScope {
            target: Arc::clone(target),
            key: key.cloned(),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Arc::new(name.to_owned())
    }

    /// Takes what the limits allow; returns the names.
    fn send(line: &mut Line) -> String {
        let mut sent = String::new();
        while let Some((name, key)) = line.pop() {
            line.sent(key.as_ref());
            sent.push_str(&name);
        }
        sent
    }

    fn line(jobs: &[(&str, &str)]) -> Line {
        let mut line = Line::default();
        for (place, (name, of)) in (1..).zip(jobs) {
            line.push(place, Some(&key(of)), (*name).into());
        }
        line
    }

    #[test]
    fn full_key_does_not_block_others() {
        let mut line = line(&[]);
        line.limit(None, Some(3));
        line.limit(Some(&key("slow")), Some(1));
        for (place, name) in (1..).zip(["a", "b", "c"]) {
            line.push(place, Some(&key("slow")), name.into());
            line.push(place + 10, Some(&key("fast")), name.to_uppercase().into());
        }
        assert_eq!(send(&mut line), "aAB");
        let counts = |line: &Line, key: Option<&Key>| {
            let counts = line.counts(key).unwrap();
            (counts.in_flight, counts.waiting, counts.throttled)
        };
        assert_eq!(counts(&line, None), (3, 3, 3));
        assert_eq!(counts(&line, Some(&key("slow"))), (1, 2, 1));
        line.ended(Some(&key("fast")));
        assert_eq!(send(&mut line), "C", "the other key is full");
        line.ended(Some(&key("slow")));
        assert_eq!(send(&mut line), "b", "the oldest with room");
        line.ended(Some(&key("fast")));
        assert_eq!(send(&mut line), "");
        assert!(line.waits());
    }

    #[test]
    fn new_and_removed_limits_keep_order() {
        let mut line = line(&[("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")]);
        line.limit(Some(&key("x")), Some(1));
        assert_eq!(send(&mut line), "abd");
        line.push(8, Some(&key("x")), "e".into());
        line.push(9, Some(&key("y")), "f".into());
        line.limit(Some(&key("x")), None);
        assert!(line.counts(Some(&key("x"))).is_none());
        assert_eq!(send(&mut line), "cef");
        // Triggers from before a limit count.
        line.limit(Some(&key("x")), Some(3));
        line.push(10, Some(&key("x")), "g".into());
        assert_eq!(send(&mut line), "");
        line.ended(Some(&key("x")));
        assert_eq!(send(&mut line), "g");
    }

    #[test]
    fn finds_jobs_to_remove() {
        let mut line = line(&[("a", "x"), ("b", "y")]);
        line.limit(Some(&key("x")), Some(1));
        line.remove(1, Some(&key("x")));
        line.remove(2, Some(&key("y")));
        assert!(!line.waits() && !line.is_idle());
        line.limit(Some(&key("x")), None);
        assert!(line.is_idle());
    }
}
