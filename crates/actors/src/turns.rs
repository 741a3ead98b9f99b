//! The turns of one actor: one call at a time, in the order in which they came. A call that belongs to a turn, because
//! it has its reentrancy id, joins it; the turn ends with the last of its calls.

use std::collections::VecDeque;

/// Who may join a turn, and how deep it may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reentry<'a> {
    /// The id that the calls of a turn share.
    pub id: &'a str,
    /// Calls of one turn at once, at most.
    pub depth: u32,
}

/// A call's place among the turns: the way to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    turn: u64,
    call: u64,
}

/// A turn has as many calls as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("maximum stack depth exceeded")]
pub struct TooDeep;

/// The turn that runs, and those that wait. `W` is what a call that waits is woken by.
#[derive(Debug)]
pub struct Turns<W> {
    queue: VecDeque<Turn<W>>,
    next: u64,
}

#[derive(Debug)]
struct Turn<W> {
    number: u64,
    reentry: Option<Box<str>>,
    /// Calls that have not ended.
    calls: u32,
    /// Those of them that wait for the turn to begin.
    waiting: Vec<(u64, W)>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            next: 0,
        }
    }
}

impl<W> Turns<W> {
    /// Takes a turn, or joins one. The flag says that the call may begin; `waiter` is asked for when it has to wait.
    ///
    /// # Errors
    /// [`TooDeep`] when the turn that it belongs to has no room.
    pub fn enter(
        &mut self,
        reentry: Option<Reentry<'_>>,
        waiter: impl FnOnce() -> W,
    ) -> Result<(Ticket, bool), TooDeep> {
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
        Ok((ticket, begins))
    }

    /// Takes a turn of its own, ahead of nobody: for an actor that has no turns.
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

    /// Ends a call, whether it had begun or not. What comes back is to be woken: the calls of the turn that begins.
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

    /// Whether nobody has a turn or waits for one.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many calls wait for their turn.
    pub fn waiting(&self) -> usize {
        self.queue.iter().map(|turn| turn.waiting.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reentry(id: &str) -> Option<Reentry<'_>> {
        Some(Reentry { id, depth: 3 })
    }

    #[test]
    fn turns_are_taken_in_order() {
        let mut turns = Turns::default();
        let (first, begins) = turns.enter(None, || 1).unwrap();
        assert!(begins);
        let (second, begins) = turns.enter(None, || 2).unwrap();
        assert!(!begins);
        let (third, _) = turns.enter(None, || 3).unwrap();
        assert_eq!(turns.waiting(), 2);
        assert_eq!(turns.leave(second), [0; 0], "gave up waiting");
        assert_eq!(turns.leave(first), [3]);
        assert_eq!(turns.leave(third), [0; 0]);
        assert!(turns.is_empty());
        assert_eq!(turns.leave(third), [0; 0], "a second end is none");
    }

    #[test]
    fn calls_with_the_id_of_a_turn_join_it() {
        let mut turns = Turns::default();
        let (outer, _) = turns.enter(reentry("a"), || 1).unwrap();
        let (other, _) = turns.enter(reentry("b"), || 2).unwrap();
        let (inner, begins) = turns.enter(reentry("a"), || 3).unwrap();
        assert!(begins);
        let (joins, begins) = turns.enter(reentry("b"), || 4).unwrap();
        assert!(!begins, "its turn has not begun");
        assert_eq!(turns.leave(inner), [0; 0]);
        assert_eq!(turns.leave(outer), [2, 4]);
        assert_eq!(turns.leave(other), [0; 0]);
        assert!(!turns.is_empty());
        assert_eq!(turns.leave(joins), [0; 0]);
        assert!(turns.is_empty());
    }

    #[test]
    fn a_turn_has_a_depth() {
        let mut turns = Turns::default();
        let tickets = [(); 3].map(|()| turns.enter(reentry("a"), || ()).unwrap().0);
        assert_eq!(turns.enter(reentry("a"), || ()), Err(TooDeep));
        turns.leave(tickets[1]);
        assert!(turns.enter(reentry("a"), || ()).is_ok());
        let none = Some(Reentry { id: "z", depth: 0 });
        assert_eq!(Turns::default().enter(none, || ()), Err(TooDeep));
    }

    proptest! {
        /// Whatever comes and goes: the calls that run share one turn, every call that waits runs in the end, and turns
        /// begin in the order in which they were asked for.
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
                    let (ticket, begins) = turns.enter(reentry, || count).unwrap();
                    open.push((ticket, count));
                    if begins {
                        begin(&mut running, &open, vec![count])?;
                    }
                }
            }
            while !open.is_empty() {
                prop_assert!(!running.is_empty(), "somebody always runs");
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
