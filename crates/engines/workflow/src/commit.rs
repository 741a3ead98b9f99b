//! What becomes of a step that is over: it is taken into the history, alone or with what came after it.

use prost::Message as _;

use crate::event::{Awaited, is_timer};
use crate::instance::{Additions, Instance};
use crate::origin::Arrival;
use crate::payload::Limit;
use crate::step::Outcome;
use crate::stored::Change;

impl Instance {
    /// Takes a step into the history. What comes back has to be stored; who fails to store it has to read the instance
    /// anew.
    pub fn commit(&mut self, outcome: Outcome) -> Change {
        let (history, inbox) = self.absorb(outcome);
        self.change_from(history, inbox)
    }

    /// As [`Instance::commit`], and adds events that came while it was not stored: all of it is one change.
    pub fn commit_with(
        &mut self,
        outcome: Outcome,
        events: impl IntoIterator<Item = impl Into<Arrival>>,
        limit: Limit,
    ) -> Additions {
        let (history, inbox) = self.absorb(outcome);
        let (mut additions, replaced) = self.take_in(events, limit);
        additions.change = self.change_with(history, inbox, &replaced);
        additions
    }

    /// Takes a step in; from which entries on history and inbox are others than what is stored.
    fn absorb(&mut self, outcome: Outcome) -> (usize, usize) {
        if outcome.restarted {
            self.reset();
        }
        let stored = self.stored();
        let history = stored.history.min(self.history.len());
        for event in &outcome.fresh {
            self.history.push(&event.encode_to_vec());
        }
        // Nothing shares what the facts of before and after have in common once those of before are gone.
        self.facts = outcome.facts;
        self.facts.settle();
        let kept = outcome.inbox == self.inbox;
        self.inbox = outcome.inbox;
        // Timers that fired are in the inbox of no one.
        self.inbox.retain(|event| !is_timer(event));
        self.custom_status = outcome.custom_status;
        match (outcome.restarted, kept) {
            (true, _) => (0, 0),
            (false, true) => (history, stored.inbox.min(self.inbox.len())),
            (false, false) => (history, 0),
        }
    }
}

impl Outcome {
    /// Whether it began one activity and nothing else, and nothing else is under way: what comes next is likely to be its
    /// result. Children and messages to other instances can be seen, as a custom status can: who sees one asks for the other.
    #[must_use]
    pub fn awaits_what_it_began(&self, instance: &Instance) -> bool {
        let under_way = |awaited| self.facts.open(awaited).take(2).count();
        let ends_here = self.stalled.is_some() || self.wakes || self.runs_again || self.is_completed();
        self.tasks.len() == 1
            && self.messages.is_empty()
            && self.custom_status == instance.custom_status
            && under_way(Awaited::Task) + under_way(Awaited::Child) == 1
            && !ends_here
            && !self.facts.is_suspended
    }
}
