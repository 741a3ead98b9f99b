//! The active actors of one type, or a part of them: calls of different parts do not meet.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::turns::{Entry, Reentry, Ticket, TooDeep, Turns};

/// Looks for actors that are gone, and places for actors, that a shard may have beside those of its active ones.
const SPARE: usize = 64;

/// Active actors and their turns. An actor becomes active with its first call and stays so until it is deactivated.
///
/// Times are those since the sidecar began, so that they need little room.
#[derive(Debug)]
pub struct Shard<W> {
    actors: HashMap<Arc<str>, Actor<W>>,
    /// When to look whether an actor is idle. Every active actor is in it once, but those that were found busy; of those that
    /// are gone there are no more than of them.
    looks: BinaryHeap<Reverse<(u64, Arc<str>)>>,
    /// Milliseconds after its last turn began that an actor is idle.
    idle_after: u64,
}

/// An idle actor has next to nothing.
#[derive(Debug)]
struct Actor<W> {
    turns: Option<Box<Turns<W>>>,
    /// Milliseconds; when its last turn began.
    used: u64,
    /// It was busy when it was looked at: the end of its turns brings the next look.
    unwatched: bool,
}

impl<W> Shard<W> {
    /// Without actors; they are idle when no turn began for `idle_after`, and never where that is [`Duration::MAX`].
    pub fn new(idle_after: Duration) -> Self {
        Self {
            actors: HashMap::new(),
            looks: BinaryHeap::new(),
            idle_after: millis(idle_after),
        }
    }

    /// Takes a turn of an actor. One that `stays` is active from now on; otherwise it can only be waited for. See
    /// [`Turns::enter`].
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
        // Who is never idle is not looked at.
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

    /// Takes a turn of an active actor that nobody has or waits for; `None` where there is no such one.
    pub fn enter_free(&mut self, id: &str) -> Option<Ticket> {
        let actor = self.actors.get_mut(id)?;
        match actor.turns {
            None => Some(actor.turns.get_or_insert_default().first()),
            Some(_) => None,
        }
    }

    /// Ends a call; what comes back is to be woken.
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

    /// Ends the turn in which an actor was deactivated: unless others wait for it, it is not active any more.
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

    /// Ends the turn of an actor that was found idle and stays active: it is idle again when as much time has passed.
    pub fn keep_active(&mut self, id: &str, ticket: Ticket, now: Duration) -> Vec<W> {
        if let Some(actor) = self.actors.get_mut(id) {
            actor.used = millis(now);
        }
        self.leave(id, ticket, now)
    }

    /// Actors that come and go leave nothing behind for as long as one that stays is not idle.
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

    /// Takes the last turn of an active actor, in which it is to be deactivated; no turn begins behind it. `None` when
    /// it is not active, or its last turn is taken.
    pub fn last(&mut self, id: &str, waiter: impl FnOnce() -> W) -> Option<(Ticket, bool)> {
        let actor = self.actors.get_mut(id)?;
        actor.turns.get_or_insert_default().last(waiter)
    }

    /// The calls of an actor that run have to end.
    pub fn evict(&mut self, id: &str) {
        let turns = self.actors.get_mut(id).and_then(|actor| actor.turns.as_mut());
        if let Some(turns) = turns {
            turns.evict();
        }
    }

    /// Whether the calls of an actor that run have to end.
    pub fn is_evicted(&self, id: &str) -> bool {
        let turns = self.actors.get(id).and_then(|actor| actor.turns.as_ref());
        turns.is_some_and(|turns| turns.is_evicted())
    }

    /// Whether the last turn of an actor has begun, in which it is deactivated.
    pub fn is_in_last(&self, id: &str) -> bool {
        let turns = self.actors.get(id).and_then(|actor| actor.turns.as_ref());
        turns.is_some_and(|turns| turns.is_in_last())
    }

    /// The actors that are idle now, `most` of them: those first that have been for longest. Each has a turn, in which it is
    /// to be deactivated; until then its callers wait. The others stay as they are, for the next look, which is due at once.
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
                // It is of an earlier life of the actor.
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

    /// When to look for idle actors next.
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

    /// How many are active.
    pub fn len(&self) -> usize {
        self.actors.len()
    }

    /// Whether none is.
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

    /// Of an actor that stays.
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
    fn an_actor_that_moves_away_ends_once_and_does_not_begin_again() {
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

    /// Regression: they were told that it had ended when its turns were over, and had it begin elsewhere.
    #[test]
    fn who_waits_for_an_end_waits_also_where_the_last_turn_is_taken_late() {
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
    fn a_free_turn_is_one_that_nobody_has_or_waits_for() {
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
    fn who_has_no_turns_for_long_is_idle() {
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
    fn who_is_idle_and_is_not_taken_yet_takes_turns_as_before() {
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
        assert!(begins, "nobody ends it yet");
        shard.leave("c", ticket, at(15));
        let left = idle(&mut shard, at(16));
        assert_eq!(left.len(), 1, "c was used");
        assert_eq!(left[0].0, "d");
        assert_eq!(shard.next_look(), Some(at(25)));
    }

    #[test]
    fn who_is_idle_and_stays_is_idle_again_later() {
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
    fn who_is_never_idle_is_not_looked_at() {
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
    fn a_long_turn_is_not_idle_and_its_end_is_seen() {
        let mut shard = Shard::new(IDLE);
        let (ticket, _) = enter(&mut shard, "a", None, at(0), 0).unwrap();
        assert_eq!(idle(&mut shard, at(20)), []);
        assert_eq!(shard.next_look(), None);
        shard.leave("a", ticket, at(25));
        assert_eq!(shard.next_look(), Some(at(25)));
        assert_eq!(idle(&mut shard, at(25)).len(), 1);
    }

    #[test]
    fn a_call_that_comes_while_an_actor_is_deactivated_waits_and_makes_it_active_again() {
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
    fn refused_calls_leave_no_actor_behind() {
        let mut shard = Shard::new(IDLE);
        let none = Some(Reentry { id: "x", depth: 0 });
        assert!(enter(&mut shard, "a", none, at(0), 0).is_err());
        assert!(shard.is_empty());
    }

    proptest! {
        /// Actors that come and go in any order: every one that is left alone is found idle, no earlier than it is, and
        /// is looked at by one entry alone.
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
