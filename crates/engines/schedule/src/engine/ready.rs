//! Fair queueing of due jobs, and quotas on triggers in flight.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::line::Line;
use super::{Key, LimitCounts, LimitScope, Name, Target};

/// A sequence number that orders queue entries and identifies one of them.
pub(super) type Sequence = u64;

/// Due jobs in one queue per namespace, with one sub-queue per app or actor type. Queues are served round
/// robin, so a burst in one does not block the others. Unanswered triggers do not block them either: a
/// queue may take a place only while it holds fewer than are free for it, so half of the places stay
/// available to the others. A queue may have limits of its own ([`Line`]).
///
/// Queues without limits, waiting or in-flight entries take no memory.
#[derive(Debug, Default)]
pub(super) struct Ready {
    namespaces: HashMap<Arc<str>, Namespace>,
    /// Namespaces with waiting jobs.
    turns: BTreeMap<Sequence, Arc<str>>,
    next: Sequence,
    /// Limits whose counts changed since [`Ready::take_limit_counts`].
    changed: HashSet<LimitScope>,
}

#[derive(Debug, Default)]
struct Namespace {
    lines: HashMap<Arc<Target>, Line>,
    /// Targets with waiting jobs.
    turns: BTreeMap<Sequence, Arc<Target>>,
    /// Its position among the waiting namespaces.
    turn: Option<Sequence>,
    /// Triggers in flight.
    held: usize,
}

impl Namespace {
    /// How many places one of its targets may hold if `free` places are unused; 0 if its namespace is at
    /// its limit.
    fn quota(&self, free: usize, alone: bool) -> usize {
        if alone {
            free
        } else {
            free.saturating_sub(self.held).div_ceil(2)
        }
    }

    /// The first waiting target below its quota and its limits.
    fn first(&self, quota: usize) -> Option<&Arc<Target>> {
        if quota == 0 {
            return None;
        }
        // Skips targets at their quota or limits: at most as many as there are places.
        self.turns.values().find(|target| {
            let line = self.lines.get(*target);
            line.is_some_and(|line| line.held() < quota && line.open().is_some())
        })
    }

    fn forget_idle(&mut self, target: &Target) {
        if self.lines.get(target).is_some_and(Line::is_idle) {
            self.lines.remove(target);
        }
    }
}

impl Ready {
    fn place(&mut self) -> Sequence {
        self.next += 1;
        self.next
    }

    pub(super) fn push(&mut self, target: &Arc<Target>, key: Option<&Key>, name: Name) -> Sequence {
        let place = self.place();
        let namespace = self.namespaces.entry(Arc::clone(target.namespace())).or_default();
        let line = namespace.lines.entry(Arc::clone(target)).or_default();
        line.push(place, key, name);
        line.note(target, key, &mut self.changed);
        if line.turn.is_none() {
            line.turn = Some(place);
            namespace.turns.insert(place, Arc::clone(target));
        }
        if namespace.turn.is_none() {
            namespace.turn = Some(place);
            self.turns.insert(place, Arc::clone(target.namespace()));
        }
        place
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The next job that may take one of `free` places. `alone`: all hosts are of one namespace, whose
    /// targets share all places.
    pub(super) fn pop(&mut self, free: usize, alone: bool) -> Option<Name> {
        if free == 0 {
            return None;
        }
        let (name, target) = self.turns.values().find_map(|name| {
            let namespace = self.namespaces.get(name)?;
            let target = namespace.first(namespace.quota(free, alone))?;
            Some((Arc::clone(name), Arc::clone(target)))
        })?;
        let again = self.place();
        let namespace = self.namespaces.get_mut(&name)?;
        let line = namespace.lines.get_mut(&target)?;
        let (job, key) = line.pop()?;
        line.note(&target, key.as_ref(), &mut self.changed);
        // Moves to the end of the round if more jobs wait.
        if let Some(turn) = line.turn.take() {
            namespace.turns.remove(&turn);
        }
        if line.waits() {
            line.turn = Some(again);
            namespace.turns.insert(again, Arc::clone(&target));
        }
        if let Some(turn) = namespace.turn.take() {
            self.turns.remove(&turn);
        }
        if !namespace.turns.is_empty() {
            namespace.turn = Some(again);
            self.turns.insert(again, Arc::clone(&name));
        }
        namespace.forget_idle(&target);
        self.forget_idle(&name);
        Some(job)
    }

    /// Removes the entry with this sequence number.
    pub(super) fn remove(&mut self, target: &Arc<Target>, key: Option<&Key>, place: Sequence) {
        let Some(namespace) = self.namespaces.get_mut(target.namespace()) else {
            return;
        };
        let Some(line) = namespace.lines.get_mut(target) else {
            return;
        };
        line.remove(place, key);
        line.note(target, key, &mut self.changed);
        if !line.waits()
            && let Some(turn) = line.turn.take()
        {
            namespace.turns.remove(&turn);
        }
        if namespace.turns.is_empty()
            && let Some(turn) = namespace.turn.take()
        {
            self.turns.remove(&turn);
        }
        namespace.forget_idle(target);
        self.forget_idle(target.namespace());
    }

    /// Counts a trigger in flight for this target and key.
    pub(super) fn sent(&mut self, target: &Arc<Target>, key: Option<&Key>) {
        let namespace = self.namespaces.entry(Arc::clone(target.namespace())).or_default();
        namespace.held += 1;
        let line = namespace.lines.entry(Arc::clone(target)).or_default();
        line.sent(key);
        line.note(target, key, &mut self.changed);
    }

    /// A trigger of this target and key has ended.
    pub(super) fn ended(&mut self, target: &Arc<Target>, key: Option<&Key>) {
        let Some(namespace) = self.namespaces.get_mut(target.namespace()) else {
            return;
        };
        if let Some(line) = namespace.lines.get_mut(target) {
            namespace.held = namespace.held.saturating_sub(1);
            line.ended(key);
            line.note(target, key, &mut self.changed);
        }
        namespace.forget_idle(target);
        self.forget_idle(target.namespace());
    }

    /// Drops all waiting entries, but keeps the counts of triggers in flight.
    pub(super) fn forget_due(&mut self) {
        self.turns.clear();
        self.namespaces.retain(|_, namespace| {
            namespace.turns.clear();
            namespace.turn = None;
            namespace.lines.retain(|target, line| {
                line.forget_due(target, &mut self.changed);
                !line.is_idle()
            });
            !namespace.lines.is_empty()
        });
    }

    /// Sets or removes a limit on the triggers in flight of a target, or of one key of it.
    pub(super) fn limit(&mut self, scope: &LimitScope, most: Option<usize>) {
        let LimitScope { target, key } = scope;
        let namespace = self.namespaces.entry(Arc::clone(target.namespace())).or_default();
        let line = namespace.lines.entry(Arc::clone(target)).or_default();
        line.limit(key.as_ref(), most);
        self.changed.insert(scope.clone());
        namespace.forget_idle(target);
        self.forget_idle(target.namespace());
    }

    /// The limits whose counts changed since the last call; without counts, the limit was removed.
    pub(super) fn take_limit_counts(&mut self) -> Vec<(LimitScope, Option<LimitCounts>)> {
        let changed: Vec<_> = self.changed.drain().collect();
        let counts = changed.into_iter().map(|scope| {
            let namespace = self.namespaces.get(scope.target.namespace());
            let line = namespace.and_then(|namespace| namespace.lines.get(&scope.target));
            let counts = line.and_then(|line| line.counts(scope.key.as_ref()));
            (scope, counts)
        });
        counts.collect()
    }

    fn forget_idle(&mut self, name: &Arc<str>) {
        if self
            .namespaces
            .get(name)
            .is_some_and(|namespace| namespace.lines.is_empty())
        {
            self.namespaces.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(namespace: &str, id: &str) -> Arc<Target> {
        Arc::new(Target::App {
            namespace: namespace.into(),
            id: id.into(),
        })
    }

    /// Sends everything the places allow; returns the recipients in order.
    fn send(ready: &mut Ready, places: usize, held: &mut usize, alone: bool) -> Vec<String> {
        let mut sent = Vec::new();
        while *held < places
            && let Some(name) = ready.pop(places - *held, alone)
        {
            let (namespace, id) = name.split_once('/').unwrap();
            ready.sent(&target(namespace, id), None);
            *held += 1;
            sent.push(name.to_string());
        }
        sent
    }

    fn herd(ready: &mut Ready, namespace: &str, id: &str, jobs: usize) {
        for _ in 0..jobs {
            ready.push(&target(namespace, id), None, format!("{namespace}/{id}").into());
        }
    }

    #[test]
    fn unanswered_burst_takes_half_of_free_places() {
        let (mut ready, mut held) = (Ready::default(), 0);
        let shares = [1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1];
        for (at, expected) in shares.into_iter().enumerate() {
            herd(&mut ready, "ns", &at.to_string(), 3000);
            let sent = send(&mut ready, 2048, &mut held, true);
            assert_eq!(sent.len(), expected, "number {at}");
        }
    }

    #[test]
    fn apps_share_namespace_half() {
        let (mut ready, mut held) = (Ready::default(), 0);
        for (namespace, id, expected) in [
            ("a", "1", 4),
            ("a", "2", 2),
            ("a", "3", 1),
            ("a", "4", 1),
            ("a", "5", 0),
            ("b", "1", 2),
            ("b", "2", 1),
        ] {
            herd(&mut ready, namespace, id, 100);
            let sent = send(&mut ready, 16, &mut held, false);
            assert_eq!(sent.len(), expected, "{namespace}/{id}");
        }
    }

    #[test]
    fn queues_take_turns_and_answers_free_places() {
        let (mut ready, mut held) = (Ready::default(), 0);
        herd(&mut ready, "ns", "a", 3);
        herd(&mut ready, "ns", "b", 3);
        assert_eq!(send(&mut ready, 3, &mut held, true), ["ns/a", "ns/b"]);
        herd(&mut ready, "other", "c", 2);
        // One place is free, and every target of the first namespace holds one.
        assert_eq!(send(&mut ready, 3, &mut held, false), ["other/c"]);
        ready.ended(&target("ns", "a"), None);
        held -= 1;
        assert_eq!(send(&mut ready, 3, &mut held, false), [""; 0]);
        ready.ended(&target("ns", "b"), None);
        held -= 1;
        assert_eq!(send(&mut ready, 3, &mut held, false), ["ns/a"]);
    }

    #[test]
    fn idle_queues_take_no_memory() {
        let mut ready = Ready::default();
        for id in 0..100 {
            let target = target("ns", &id.to_string());
            let place = ready.push(&target, None, "taken out".into());
            ready.push(&target, None, "sent".into());
            ready.remove(&target, None, place);
            assert_eq!(ready.pop(100, true).as_deref(), Some("sent"));
            ready.sent(&target, None);
            ready.push(&target, None, "forgotten".into());
            ready.forget_due();
            assert!(ready.is_empty() && ready.namespaces.len() == 1);
            ready.ended(&target, None);
            assert!(ready.namespaces.is_empty());
        }
    }
}
