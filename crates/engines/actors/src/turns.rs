//! The turns of one actor: one call at a time, in order of arrival. A call with the reentrancy id of the
//! running turn joins it. The turn ends with the last of its calls.

use std::collections::VecDeque;

/// A reentrancy id and the depth limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reentry<'a> {
    /// The id shared by the calls of a turn.
    pub id: &'a str,
    /// Maximum concurrent calls of one turn.
    pub depth: u32,
}

/// A call's position among the turns, used to leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    turn: u64,
    call: u64,
}

/// The turn has reached its reentrancy depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("maximum stack depth exceeded")]
pub struct TooDeep;

/// The result of [`Turns::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The call has a turn. It begins now or, if the flag is false, when its waiter is woken.
    Turn(Ticket, bool),
    /// The actor is being deactivated; the waiter is woken afterwards.
    Ends,
    /// The actor is not active here.
    Absent,
}

/// The running turn and the queue. `W` wakes a waiting call.
#[derive(Debug)]
pub struct Turns<W> {
    queue: VecDeque<Turn<W>>,
    next: u64,
    /// The last turn is taken: no further turn starts.
    is_ending: bool,
    /// Running calls must end.
    is_evicted: bool,
    /// Waiters for the end of the actor.
    waiting_for_end: Vec<W>,
}

#[derive(Debug)]
struct Turn<W> {
    number: u64,
    reentry: Option<Box<str>>,
    /// Calls that have not ended.
    calls: u32,
    /// Its calls that wait for the turn to begin.
    waiting: Vec<(u64, W)>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            next: 0,
            is_ending: false,
            is_evicted: false,
            waiting_for_end: Vec::new(),
        }
    }
}

impl<W> Turns<W> {
    /// Takes or joins a turn. `stays`: turns may start here. Otherwise, and while the actor is being
    /// deactivated, calls can only join. `waiter` is called if the call has to wait.
    ///
    /// # Errors
    /// [`TooDeep`] if the turn to join is full.
    pub fn enter(
        &mut self,
        reentry: Option<Reentry<'_>>,
        stays: bool,
        waiter: impl FnOnce() -> W,
    ) -> Result<Entry, TooDeep> {
        let call = self.next;
        self.next += 1;
        let joined = reentry.and_then(|reentry| {
            let mut turns = self.queue.iter().enumerate();
            let found = turns.find(|(_, turn)| turn.reentry.as_deref() == Some(reentry.id))?;
            Some((found.0, reentry.depth))
        });
        let index = match joined {
            Some((index, depth)) => {
                if self.queue[index].calls >= depth {
                    return Err(TooDeep);
                }
                index
            }
            None if self.is_ending || !stays => {
                self.waiting_for_end.push(waiter());
                return Ok(Entry::Ends);
            }
            None => {
                if reentry.is_some_and(|reentry| reentry.depth == 0) {
                    return Err(TooDeep);
                }
                self.queue.push_back(Turn {
                    number: call,
                    reentry: reentry.map(|reentry| reentry.id.into()),
                    calls: 0,
                    waiting: Vec::new(),
                });
                self.queue.len() - 1
            }
        };
        let turn = &mut self.queue[index];
        turn.calls += 1;
        let begins = index == 0;
        if !begins {
            turn.waiting.push((call, waiter()));
        }
        let ticket = Ticket {
            turn: turn.number,
            call,
        };
        Ok(Entry::Turn(ticket, begins))
    }

    /// Takes the last turn, which deactivates the actor. `None` if it is taken.
    pub(crate) fn last(&mut self, waiter: impl FnOnce() -> W) -> Option<(Ticket, bool)> {
        if self.is_ending {
            return None;
        }
        let Ok(Entry::Turn(ticket, begins)) = self.enter(None, true, waiter) else {
            return None;
        };
        self.is_ending = true;
        Some((ticket, begins))
    }

    /// Whether the last turn, which deactivates the actor, has begun.
    pub fn is_in_last(&self) -> bool {
        self.is_ending && self.queue.len() == 1
    }

    /// Marks running calls for cancellation: see [`Turns::is_evicted`].
    pub(crate) fn evict(&mut self) {
        self.is_evicted = true;
    }

    /// Whether running calls must end.
    pub fn is_evicted(&self) -> bool {
        self.is_evicted
    }

    /// Ends the actor unless calls are queued; returns the waiters for its end.
    pub(crate) fn ended(&mut self) -> Vec<W> {
        if self.queue.len() > 1 {
            return Vec::new();
        }
        (self.is_ending, self.is_evicted) = (false, false);
        std::mem::take(&mut self.waiting_for_end)
    }

    /// Takes the first turn of an actor that has none.
    pub(crate) fn first(&mut self) -> Ticket {
        let turn = self.next;
        self.next += 1;
        self.queue.push_back(Turn {
            number: turn,
            reentry: None,
            calls: 1,
            waiting: Vec::new(),
        });
        Ticket { turn, call: turn }
    }

    /// Ends a call, begun or not. Returns the waiters of the turn that begins.
    pub fn leave(&mut self, ticket: Ticket) -> Vec<W> {
        let Some(index) = self.queue.iter().position(|turn| turn.number == ticket.turn) else {
            return Vec::new();
        };
        let turn = &mut self.queue[index];
        turn.calls -= 1;
        turn.waiting.retain(|(call, _)| *call != ticket.call);
        if turn.calls > 0 {
            return Vec::new();
        }
        self.queue.remove(index);
        if index > 0 {
            return Vec::new();
        }
        let Some(first) = self.queue.front_mut() else {
            return Vec::new();
        };
        std::mem::take(&mut first.waiting)
            .into_iter()
            .map(|(_, waiter)| waiter)
            .collect()
    }

    /// Whether there is no turn, no queued call and no pending end.
    pub fn is_empty(&self) -> bool {
        // An end that was abandoned wakes no one.
        self.queue.is_empty() && (self.is_ending || self.waiting_for_end.is_empty())
    }

    /// Number of queued calls.
    pub fn waiting(&self) -> usize {
        self.queue.iter().map(|turn| turn.waiting.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn enter<W>(
        turns: &mut Turns<W>,
        reentry: Option<Reentry<'_>>,
        waiter: W,
    ) -> Result<(Ticket, bool), TooDeep> {
        match turns.enter(reentry, true, || waiter)? {
            Entry::Turn(ticket, begins) => Ok((ticket, begins)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_turn_follows_the_last() {
        let mut turns = Turns::default();
        let (first, _) = enter(&mut turns, reentry("a"), 1).unwrap();
        let (second, _) = enter(&mut turns, None, 2).unwrap();
        let (last, begins) = turns.last(|| 3).unwrap();
        assert!(!begins);
        assert_eq!(turns.last(|| 4), None, "once");
        assert_eq!(turns.enter(None, true, || 5), Ok(Entry::Ends));
        let (joined, begins) = enter(&mut turns, reentry("a"), 6).unwrap();
        assert!(begins, "reentrant calls join the running turn");
        turns.leave(joined);
        assert_eq!(turns.leave(first), [2], "queued calls are not rejected");
        assert!(!turns.is_in_last());
        assert_eq!(turns.leave(second), [3]);
        assert!(turns.is_in_last());
        assert_eq!(turns.ended(), [5]);
        assert_eq!(turns.leave(last), [0; 0]);
        assert!(enter(&mut turns, None, 7).unwrap().1, "a new life");
    }

    fn reentry(id: &str) -> Option<Reentry<'_>> {
        Some(Reentry { id, depth: 3 })
    }

    #[test]
    fn turns_run_in_order() {
        let mut turns = Turns::default();
        let (first, begins) = enter(&mut turns, None, 1).unwrap();
        assert!(begins);
        let (second, begins) = enter(&mut turns, None, 2).unwrap();
        assert!(!begins);
        let (third, _) = enter(&mut turns, None, 3).unwrap();
        assert_eq!(turns.waiting(), 2);
        assert_eq!(turns.leave(second), [0; 0], "gave up waiting");
        assert_eq!(turns.leave(first), [3]);
        assert_eq!(turns.leave(third), [0; 0]);
        assert!(turns.is_empty());
        assert_eq!(turns.leave(third), [0; 0], "a second end is none");
    }

    #[test]
    fn reentrant_calls_join_turn() {
        let mut turns = Turns::default();
        let (outer, _) = enter(&mut turns, reentry("a"), 1).unwrap();
        let (other, _) = enter(&mut turns, reentry("b"), 2).unwrap();
        let (inner, begins) = enter(&mut turns, reentry("a"), 3).unwrap();
        assert!(begins);
        let (joins, begins) = enter(&mut turns, reentry("b"), 4).unwrap();
        assert!(!begins, "its turn has not begun");
        assert_eq!(turns.leave(inner), [0; 0]);
        assert_eq!(turns.leave(outer), [2, 4]);
        assert_eq!(turns.leave(other), [0; 0]);
        assert!(!turns.is_empty());
        assert_eq!(turns.leave(joins), [0; 0]);
        assert!(turns.is_empty());
    }

    #[test]
    fn limits_turn_depth() {
        let mut turns = Turns::default();
        let tickets = [(); 3].map(|()| enter(&mut turns, reentry("a"), ()).unwrap().0);
        assert_eq!(enter(&mut turns, reentry("a"), ()), Err(TooDeep));
        turns.leave(tickets[1]);
        assert!(enter(&mut turns, reentry("a"), ()).is_ok());
        let none = Some(Reentry { id: "z", depth: 0 });
        assert_eq!(enter(&mut Turns::default(), none, ()), Err(TooDeep));
    }

    proptest! {
        /// Random calls: running calls share one turn, every queued call eventually runs, and turns begin in
        /// order of request.
        #[test]
        fn one_turn_at_a_time(steps in prop::collection::vec((0_u8..4, 0_usize..8), 1..200)) {
            let mut turns = Turns::default();
            let mut open: Vec<(Ticket, u64)> = Vec::new();
            let mut running: Vec<u64> = Vec::new();
            let mut last_turn = 0;
            let mut count = 0;
            let mut begin = |running: &mut Vec<u64>, open: &[(Ticket, u64)], calls: Vec<u64>| {
                for call in calls {
                    let turn = open.iter().find(|(_, c)| *c == call).unwrap().0.turn;
                    prop_assert!(turn >= last_turn, "turns begin in order");
                    last_turn = turn;
                    running.push(call);
                }
                let of = |call: &u64| open.iter().find(|(_, c)| c == call).unwrap().0.turn;
                let mut all: Vec<_> = running.iter().map(of).collect();
                all.dedup();
                prop_assert!(all.len() <= 1, "one turn runs: {all:?}");
                Ok(())
            };
            for (kind, pick) in steps {
                if kind == 0 && !open.is_empty() {
                    let (ticket, call) = open.remove(pick % open.len());
                    running.retain(|other| *other != call);
                    let woken = turns.leave(ticket);
                    begin(&mut running, &open, woken)?;
                } else {
                    count += 1;
                    let id = ["a", "b"][pick % 2];
                    let reentry = (kind > 1).then_some(Reentry { id, depth: u32::MAX });
                    let (ticket, begins) = enter(&mut turns, reentry, count).unwrap();
                    open.push((ticket, count));
                    if begins {
                        begin(&mut running, &open, vec![count])?;
                    }
                }
            }
            while !open.is_empty() {
                prop_assert!(!running.is_empty(), "a call always runs");
                let at = open.iter().position(|(_, call)| running.contains(call)).unwrap();
                let (ticket, call) = open.remove(at);
                running.retain(|other| *other != call);
                let woken = turns.leave(ticket);
                begin(&mut running, &open, woken)?;
            }
            prop_assert!(turns.is_empty());
        }
    }
}
