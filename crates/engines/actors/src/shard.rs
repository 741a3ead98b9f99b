//! The active actors of one type, or of one shard of the type.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::turns::{Entry, Reentry, Ticket, TooDeep, Turns};

/// Spare capacity of a shard: stale idle checks and unused slots.
const SPARE: usize = 64;

/// Active actors and their turns. An actor becomes active with its first call and stays active until it is
/// deactivated.
///
/// Times count from the start of the sidecar, to save memory.
#[derive(Debug)]
pub struct Shard<W> {
    actors: HashMap<Arc<str>, Actor<W>>,
    /// Idle checks by due time. Each active actor has one entry, except actors that were busy when checked.
    /// At most as many entries again belong to actors that are gone.
    looks: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    /// Idle timeout in milliseconds, from the start of the last turn.
    idle_after: u64,
}

/// Kept small: an idle actor costs little memory.
#[derive(Debug)]
struct Actor<W> {
    turns: Option<Box<Turns<W>>>,
    /// Start of its last turn, milliseconds.
    used: u64,
    /// Busy when last checked: the end of its turns schedules the next check.
    unwatched: bool,
}

impl<W> Shard<W> {
    /// An empty shard. Actors become idle `idle_after` their last turn began; [`Duration::MAX`] disables idle
    /// detection.
    pub fn new(idle_after: Duration) -> Self {
        Self {
            actors: HashMap::new(),
            looks: BinaryHeap::new(),
            idle_after: millis(idle_after),
        }
    }

    /// Takes a turn of an actor. If `stays`, the actor becomes active; otherwise the caller can only wait for
    /// its end. See [`Turns::enter`].
    ///
    /// # Errors
    /// [`TooDeep`].
    pub fn enter(
        &mut self,
        id: &str,
        reentry: Option<Reentry<'_>>,
        stays: bool,
        now: Duration,
        waiter: impl FnOnce() -> W,
    ) -> Result<Entry, TooDeep> {
        let now = millis(now);
        if let Some(actor) = self.actors.get_mut(id) {
            actor.used = now;
            return actor.turns.get_or_insert_default().enter(reentry, stays, waiter);
        }
        if !stays {
            return Ok(Entry::Absent);
        }
        let mut turns = Box::<Turns<W>>::default();
        let entered = turns.enter(reentry, stays, waiter)?;
        let id: Arc<str> = id.into();
        // No idle check without an idle timeout.
        if self.idle_after != u64::MAX {
            self.looks
                .push(Reverse((now.saturating_add(self.idle_after), Arc::clone(&id))));
        }
        let actor = Actor {
            turns: Some(turns),
            used: now,
            unwatched: false,
        };
        self.actors.insert(id, actor);
        Ok(entered)
    }

    /// Takes a turn of an active actor whose queue is empty.
    pub fn enter_free(&mut self, id: &str) -> Option<Ticket> {
        let actor = self.actors.get_mut(id)?;
        match actor.turns {
            None => Some(actor.turns.get_or_insert_default().first()),
            Some(_) => None,
        }
    }

    /// Ends a call; returns the waiters to wake.
    pub fn leave(&mut self, id: &str, ticket: Ticket, now: Duration) -> Vec<W> {
        let now = millis(now);
        let Some(actor) = self.actors.get_mut(id) else {
            return Vec::new();
        };
        let Some(turns) = &mut actor.turns else {
            return Vec::new();
        };
        let woken = turns.leave(ticket);
        if turns.is_empty() {
            actor.turns = None;
            if std::mem::take(&mut actor.unwatched) {
                let due = actor.used.saturating_add(self.idle_after).max(now);
                if let Some((id, _)) = self.actors.get_key_value(id) {
                    self.looks.push(Reverse((due, Arc::clone(id))));
                }
            }
        } else if !woken.is_empty() {
            actor.used = now;
        }
        woken
    }

    /// Ends the turn that deactivated an actor. The actor stays active if calls are queued.
    pub fn deactivated(&mut self, id: &str, ticket: Ticket, now: Duration) -> Vec<W> {
        let turns = self.actors.get_mut(id).and_then(|actor| actor.turns.as_mut());
        let mut ended = turns.map(|turns| turns.ended()).unwrap_or_default();
        let woken = self.leave(id, ticket, now);
        if self.actors.get(id).is_some_and(|actor| actor.turns.is_none()) {
            self.actors.remove(id);
            self.tidy();
        }
        ended.extend(woken);
        ended
    }

    /// Ends the turn of an idle actor that stays active; the idle timeout restarts.
    pub fn keep_active(&mut self, id: &str, ticket: Ticket, now: Duration) -> Vec<W> {
        if let Some(actor) = self.actors.get_mut(id) {
            actor.used = millis(now);
        }
        self.leave(id, ticket, now)
    }

    /// Drops stale idle checks and excess capacity, so that actors that come and go leave no memory behind.
    fn tidy(&mut self) {
        let Self { actors, looks, .. } = self;
        if looks.len() > 2 * actors.len() + SPARE {
            looks.retain(|Reverse((_, id))| {
                actors
                    .get_key_value(id)
                    .is_some_and(|(known, _)| Arc::ptr_eq(known, id))
            });
        }
        if looks.capacity() > 4 * (looks.len() + SPARE) {
            looks.shrink_to(2 * looks.len());
        }
        if actors.capacity() > 4 * (actors.len() + SPARE) {
            actors.shrink_to(2 * actors.len());
        }
    }

    /// Takes the last turn of an active actor, which deactivates it; no turn starts after it. `None` if the
    /// actor is not active or its last turn is taken.
    pub fn last(&mut self, id: &str, waiter: impl FnOnce() -> W) -> Option<(Ticket, bool)> {
        let actor = self.actors.get_mut(id)?;
        actor.turns.get_or_insert_default().last(waiter)
    }

    /// Marks the running calls of an actor for cancellation.
    pub fn evict(&mut self, id: &str) {
        let turns = self.actors.get_mut(id).and_then(|actor| actor.turns.as_mut());
        if let Some(turns) = turns {
            turns.evict();
        }
    }

    /// Whether the running calls of an actor must end.
    pub fn is_evicted(&self, id: &str) -> bool {
        let turns = self.actors.get(id).and_then(|actor| actor.turns.as_ref());
        turns.is_some_and(|turns| turns.is_evicted())
    }

    /// Whether the last turn of an actor, which deactivates it, has begun.
    pub fn is_in_last(&self, id: &str) -> bool {
        let turns = self.actors.get(id).and_then(|actor| actor.turns.as_ref());
        turns.is_some_and(|turns| turns.is_in_last())
    }

    /// Takes up to `most` idle actors, longest idle first. Each is returned with a turn in which to
    /// deactivate it; its callers wait. The next check of the remaining ones is due at once.
    pub fn take_idle(&mut self, now: Duration, most: usize) -> Vec<(Arc<str>, Ticket)> {
        let now = millis(now);
        let mut idle = Vec::new();
        while idle.len() < most
            && let Some(Reverse((due, _))) = self.looks.peek()
            && *due <= now
        {
            let Some(Reverse((_, id))) = self.looks.pop() else {
                break;
            };
            let known = self.actors.get_key_value(&id);
            if !known.is_some_and(|(known, _)| Arc::ptr_eq(known, &id)) {
                // Stale entry of an earlier activation.
                continue;
            }
            let Some(actor) = self.actors.get_mut(&id) else {
                continue;
            };
            let idle_at = actor.used.saturating_add(self.idle_after);
            if actor.turns.is_some() {
                actor.unwatched = true;
            } else if idle_at > now {
                self.looks.push(Reverse((idle_at, id)));
            } else {
                actor.unwatched = true;
                let ticket = actor.turns.get_or_insert_default().first();
                idle.push((id, ticket));
            }
        }
        idle
    }

    /// When the next idle check is due.
    pub fn next_look(&self) -> Option<Duration> {
        let Reverse((due, _)) = self.looks.peek()?;
        Some(Duration::from_millis(*due))
    }

    /// Whether an actor is active.
    pub fn is_active(&self, id: &str) -> bool {
        self.actors.contains_key(id)
    }

    /// The ids of all active actors.
    pub fn ids(&self) -> Vec<Arc<str>> {
        self.actors.keys().cloned().collect()
    }

    /// Number of active actors.
    pub fn len(&self) -> usize {
        self.actors.len()
    }

    /// Whether no actor is active.
    pub fn is_empty(&self) -> bool {
        self.actors.is_empty()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn enter(
        shard: &mut Shard<u32>,
        id: &str,
        reentry: Option<Reentry<'_>>,
        now: Duration,
        waiter: u32,
    ) -> Result<(Ticket, bool), TooDeep> {
        match shard.enter(id, reentry, true, now, || waiter)? {
            Entry::Turn(ticket, begins) => Ok((ticket, begins)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn moved_actor_ends_once() {
        let mut shard = Shard::new(IDLE);
        assert_eq!(shard.enter("a", None, false, at(0), || 0), Ok(Entry::Absent));
        let (running, _) = enter(&mut shard, "a", None, at(0), 1).unwrap();
        assert_eq!(shard.enter("a", None, false, at(0), || 2), Ok(Entry::Ends));
        let (last, begins) = shard.last("a", || 3).unwrap();
        assert!(!begins && shard.last("a", || 4).is_none());
        assert_eq!(shard.enter("a", None, true, at(0), || 5), Ok(Entry::Ends));
        shard.evict("a");
        assert!(shard.is_evicted("a") && !shard.is_evicted("b"));
        assert_eq!(shard.leave("a", running, at(1)), [3]);
        assert_eq!(shard.deactivated("a", last, at(1)), [2, 5]);
        assert!(shard.is_empty() && shard.last("a", || 6).is_none());
    }

    /// Regression: waiters were woken when the turns were over but before the last turn was taken, and
    /// started the actor elsewhere.
    #[test]
    fn waiter_waits_for_late_last_turn() {
        let mut shard = Shard::new(IDLE);
        let (running, _) = enter(&mut shard, "a", None, at(0), 1).unwrap();
        shard.evict("a");
        assert_eq!(shard.enter("a", None, false, at(0), || 2), Ok(Entry::Ends));
        assert_eq!(shard.leave("a", running, at(1)), [0; 0]);
        assert!(shard.is_evicted("a"));
        let (last, begins) = shard.last("a", || 3).unwrap();
        assert!(begins);
        assert_eq!(shard.deactivated("a", last, at(1)), [2]);
        assert!(shard.is_empty());
    }

    #[test]
    fn free_turn_requires_empty_queue() {
        let mut shard = Shard::new(IDLE);
        assert!(shard.enter_free("a").is_none(), "it is not active");
        let entry = shard.enter("a", None, true, at(0), || 1).unwrap();
        let Entry::Turn(ticket, true) = entry else {
            panic!("{entry:?}")
        };
        assert!(shard.enter_free("a").is_none());
        assert!(shard.leave("a", ticket, at(0)).is_empty());
        let free = shard.enter_free("a").unwrap();
        assert!(shard.enter_free("a").is_none());
        assert!(shard.deactivated("a", free, at(0)).is_empty());
        assert!(!shard.is_active("a"));
    }

    fn idle(shard: &mut Shard<u32>, now: Duration) -> Vec<(String, Ticket)> {
        let idle = shard.take_idle(now, usize::MAX).into_iter();
        idle.map(|(id, ticket)| (id.to_string(), ticket)).collect()
    }

    #[test]
    fn actor_without_turns_becomes_idle() {
        let mut shard = Shard::new(IDLE);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        shard.leave("a", ticket, at(1));
        assert_eq!(shard.next_look(), Some(at(10)));
        let (ticket, _) = enter(&mut shard, "a", None, at(4), 0).unwrap();
        shard.leave("a", ticket, at(4));
        assert_eq!(idle(&mut shard, at(10)), []);
        assert_eq!(shard.next_look(), Some(at(14)));
        let mut found = idle(&mut shard, at(14));
        assert_eq!(found.len(), 1);
        let (id, ticket) = found.remove(0);
        assert!(shard.is_active(&id), "until it is deactivated");
        assert_eq!(idle(&mut shard, at(30)), [], "once");
        assert_eq!(shard.deactivated(&id, ticket, at(30)), [0; 0]);
        assert!(shard.is_empty());
        assert_eq!(idle(&mut shard, at(99)), []);
        assert_eq!(shard.next_look(), None);
    }

    #[test]
    fn idle_actor_still_takes_turns() {
        let mut shard = Shard::new(IDLE);
        for (number, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let began = at(number as u64);
            let (ticket, _) = enter(&mut shard, id, None, began, 0).unwrap();
            shard.leave(id, ticket, began);
        }
        assert_eq!(shard.take_idle(at(15), 0), []);
        let taken = shard.take_idle(at(15), 2);
        let ids: Vec<_> = taken.iter().map(|(id, _)| &**id).collect();
        assert_eq!(ids, ["a", "b"], "the longest first");
        assert!(shard.next_look() <= Some(at(15)), "there are more");
        let (_, begins) = enter(&mut shard, "a", None, at(15), 1).unwrap();
        assert!(!begins, "it is being ended");
        let (ticket, begins) = enter(&mut shard, "c", None, at(15), 2).unwrap();
        assert!(begins, "not being ended yet");
        shard.leave("c", ticket, at(15));
        let left = idle(&mut shard, at(16));
        assert_eq!(left.len(), 1, "c was used");
        assert_eq!(left[0].0, "d");
        assert_eq!(shard.next_look(), Some(at(25)));
    }

    #[test]
    fn kept_actor_becomes_idle_again() {
        let mut shard = Shard::new(IDLE);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        shard.leave("a", ticket, at(0));
        let (id, ticket) = idle(&mut shard, at(12)).remove(0);
        assert_eq!(shard.keep_active(&id, ticket, at(12)), [0; 0]);
        assert!(shard.is_active("a"));
        assert_eq!(shard.next_look(), Some(at(22)));
        assert_eq!(idle(&mut shard, at(21)), []);
        assert_eq!(idle(&mut shard, at(22)).len(), 1);
    }

    #[test]
    fn skips_idle_checks_without_timeout() {
        let mut shard = Shard::new(Duration::MAX);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        shard.leave("a", ticket, at(1));
        assert_eq!(shard.next_look(), None);
        assert!(shard.is_active("a"));
        let (ticket, _) = enter(&mut shard, "a", None, at(2), 0).unwrap();
        shard.deactivated("a", ticket, at(3));
        assert!(shard.is_empty());
    }

    #[test]
    fn long_turn_delays_idle_check() {
        let mut shard = Shard::new(IDLE);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        assert_eq!(idle(&mut shard, at(20)), []);
        assert_eq!(shard.next_look(), None);
        shard.leave("a", ticket, at(25));
        assert_eq!(shard.next_look(), Some(at(25)));
        assert_eq!(idle(&mut shard, at(25)).len(), 1);
    }

    #[test]
    fn call_during_deactivation_reactivates_actor() {
        let mut shard = Shard::new(IDLE);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        shard.leave("a", ticket, at(0));
        let (_, ending) = idle(&mut shard, at(10)).remove(0);
        let (ticket, begins) = enter(&mut shard, "a", None, at(11), 7).unwrap();
        assert!(!begins);
        assert_eq!(shard.deactivated("a", ending, at(12)), [7]);
        assert!(shard.is_active("a"));
        shard.leave("a", ticket, at(13));
        assert_eq!(idle(&mut shard, at(21)), []);
        assert_eq!(idle(&mut shard, at(23)).len(), 1);
    }

    #[test]
    fn rejected_calls_leave_no_actor() {
        let mut shard = Shard::new(IDLE);
        let none = Some(Reentry { id: "x", depth: 0 });
        assert!(enter(&mut shard, "a", none, at(0), 0).is_err());
        assert!(shard.is_empty());
    }

    proptest! {
        /// Random activations: each actor left alone is found idle, not too early, and has exactly one idle
        /// check.
        #[test]
        fn idle_actors_are_found_once(steps in prop::collection::vec((0_usize..3, 0_u64..8), 1..100)) {
            let mut shard = Shard::new(IDLE);
            let (mut now, mut used) = (0, HashMap::new());
            for (actor, pause) in steps {
                now += pause;
                let id = ["a", "b", "c"][actor];
                let (ticket, begins) = enter(&mut shard, id, None, at(now), 0_u32).unwrap();
                prop_assert!(begins);
                used.insert(id.to_owned(), now);
                shard.leave(id, ticket, at(now));
                for (id, ticket) in idle(&mut shard, at(now)) {
                    prop_assert!(used[&id] + 10 <= now);
                    used.remove(&id);
                    shard.deactivated(&id, ticket, at(now));
                }
                prop_assert_eq!(shard.len(), used.len());
                let late = used.values().filter(|used| **used + 10 <= now).count();
                prop_assert_eq!(late, 0, "all that are idle are found");
            }
            for (id, ticket) in idle(&mut shard, at(now + 10)) {
                shard.deactivated(&id, ticket, at(now + 10));
            }
            prop_assert!(shard.is_empty());
        }
    }
}
