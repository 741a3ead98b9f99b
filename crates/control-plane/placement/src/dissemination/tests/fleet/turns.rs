//! A model of turns, independent of the engine: request order, membership and depth; and calls made within a
//! turn.

use outrigger_actors::turns::{Entry, Reentry};

use super::calls::Stage;
use super::hosts::Wake;
use super::*;

/// Identity of a turn: its first call, and how often that was interrupted before.
pub(super) type Id = (usize, u32);

/// Maximum actors in a chain of calls.
const CHAIN: usize = 5;
/// How long a call waits for one that it made.
const CALLER_TIMEOUT: Duration = Duration::from_secs(6);

impl World {
    fn id(&self, call: usize) -> Id {
        let Call { made_in, cut, .. } = self.calls[call];
        made_in.unwrap_or((call, cut))
    }

    /// The calls that hold or await a turn of an actor at a host.
    fn inside(&self, host: usize, actor: u32) -> impl Iterator<Item = usize> {
        (0..self.calls.len()).filter(move |&call| {
            let call = &self.calls[call];
            call.ticket.is_some() && call.at == host && call.actor == actor
        })
    }

    /// A call requests its turn. `None` if that is too deep.
    pub(super) fn enter(&mut self, call: usize, stays: bool) -> Option<Entry> {
        let Call { actor, at, step, .. } = self.calls[call];
        let (id, now) = (self.id(call), self.now);
        let text = format!("{}.{}", id.0, id.1);
        let depth = self.depth.unwrap_or_default();
        let reentry = self.depth.map(|depth| Reentry { id: &text, depth });
        let mates: Vec<_> = self
            .inside(at, actor)
            .filter(|&other| reentry.is_some() && self.id(other) == id)
            .collect();
        let entered = self.hosts[at]
            .shard
            .enter(&actor.to_string(), reentry, stays, now, || Wake::Call(call, step));
        let room = mates.is_empty() || mates.len() < depth as usize;
        let Ok(entry) = entered else {
            assert!(
                !room,
                "call {call} of actor {actor} is refused at depth {}",
                mates.len()
            );
            self.counts.refused += 1;
            return None;
        };
        assert!(room, "call {call} of actor {actor} is deeper than {depth}");
        let Entry::Turn(ticket, begins) = entry else {
            assert!(
                mates.is_empty(),
                "call {call} of actor {actor} joins an existing turn"
            );
            return Some(entry);
        };
        let turn = match mates.first() {
            Some(&mate) => {
                self.counts.joined += 1;
                self.calls[mate].turn
            }
            None => {
                assert!(stays, "a turn of actor {actor} begins where it does not live");
                self.counts.turns += 1;
                self.counts.turns
            }
        };
        let waits = self.hosts[at].idle.contains_key(&actor)
            || self.inside(at, actor).any(|other| self.calls[other].turn < turn);
        assert_eq!(
            begins, !waits,
            "call {call} of actor {actor}: a turn waits for those ahead of it"
        );
        (self.calls[call].ticket, self.calls[call].turn) = (Some(ticket), turn);
        self.hosts[at].used.insert(actor, now);
        Some(entry)
    }

    /// Checks a call's begin: no earlier request is left, and all running calls of the actor belong to the
    /// same turn.
    pub(super) fn check_begins(&mut self, call: usize) {
        let Call { actor, at, turn, .. } = self.calls[call];
        let early = self
            .inside(at, actor)
            .find(|&other| self.calls[other].turn < turn);
        assert!(
            early.is_none(),
            "call {call} of actor {actor} is ahead of {early:?}"
        );
        let id = self.id(call);
        let is_other = |&other: &usize| {
            let running = &self.calls[other];
            let runs = running.stage == Stage::Runs && running.actor == actor;
            runs && other != call && (self.depth.is_none() || running.at != at || self.id(other) != id)
        };
        let other = (0..self.calls.len()).find(is_other);
        assert!(
            other.is_none(),
            "two turns of actor {actor} at a time: {call} and {other:?}"
        );
        let host = &mut self.hosts[at];
        let ends = host.idle.contains_key(&actor) || host.halting.contains(&actor);
        assert!(
            !ends,
            "call {call} of actor {actor} begins while the actor is ended"
        );
        host.used.insert(actor, self.now);
    }

    /// Checks that no turn is running when the app deactivates an actor.
    pub(super) fn check_ends(&self, host: usize, actor: u32) {
        let mut inside = self.inside(host, actor);
        let runs = inside.find(|&call| self.calls[call].stage == Stage::Runs);
        assert!(runs.is_none(), "actor {actor} ends in the turn of call {runs:?}");
    }

    /// The actor that a turn calls before it ends. Without reentrancy, or if its callers gave up, only actors
    /// that cannot cause a deadlock.
    pub(super) fn next_of_turn(&mut self, call: usize) -> Option<u32> {
        if self.calls[call].makes == 0 {
            return None;
        }
        self.calls[call].makes -= 1;
        let chain = self.calls[call].chain.clone();
        if self.depth.is_some() && self.random.random_bool(0.6) && self.is_waited_for(call) {
            return Some(chain[self.random.random_range(0..chain.len())]);
        }
        let above = chain.iter().max().map_or(0, |actor| actor + 1);
        (above < ACTORS).then(|| self.random.random_range(above..ACTORS))
    }

    /// Whether all calls in whose turns it was made still wait for it.
    fn is_waited_for(&self, call: usize) -> bool {
        let call_state = &self.calls[call];
        let Some((parent, step)) = call_state.parent else {
            return call_state.chain.len() == 1;
        };
        let above = &self.calls[parent];
        above.step == step && above.child == Some(call) && self.is_waited_for(parent)
    }

    /// A turn calls an actor and waits for the answer.
    pub(super) fn call_within(&mut self, parent: usize, actor: u32) {
        let number = self.calls.len();
        let (from, step) = (self.calls[parent].at, self.calls[parent].step);
        let mut call = Call::new(actor, from);
        call.made_in = Some(self.id(parent));
        call.is_long = true;
        call.parent = Some((parent, step));
        call.chain = self.calls[parent].chain.clone();
        call.chain.push(actor);
        if call.chain.len() < CHAIN && self.random.random_bool(0.5) {
            call.makes = 1;
        }
        self.calls.push(call);
        (self.calls[parent].child, self.calls[parent].is_long) = (Some(number), true);
        self.after(CALLER_TIMEOUT, Event::GiveUp(number));
        self.visit(number);
    }

    /// Completes a call and resumes its caller.
    pub(super) fn is_over(&mut self, call: usize) {
        self.tell_parent(call);
        if let Some(timer) = self.calls[call].timer {
            self.timer_ran(timer);
        }
    }

    pub(super) fn tell_parent(&mut self, call: usize) {
        let Some((parent, step)) = self.calls[call].parent.take() else {
            return;
        };
        let waiting = &mut self.calls[parent];
        if waiting.step == step && waiting.child == Some(call) {
            waiting.child = None;
            let length = Duration::from_micros(self.random.random_range(0..3000));
            self.after(length, Event::TurnEnds(parent, step));
        }
    }
}
