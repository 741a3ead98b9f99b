//! Commits a finished step to the history, alone or with events that arrived since.

use prost::Message as _;

use crate::event::{Awaited, is_timer};
use crate::instance::{Additions, Instance};
use crate::origin::Arrival;
use crate::payload::Limit;
use crate::step::Outcome;
use crate::stored::Change;

impl Instance {
    /// Commits a step and returns the change to store. If storing fails, the instance must be read again.
    pub fn commit(&mut self, outcome: Outcome) -> Change {
        let (history, inbox) = self.absorb(outcome);
        self.change_from(history, inbox)
    }

    /// As [`Instance::commit`], with events that arrived before the step was stored: one change for both.
    pub fn commit_with(
        &mut self,
        outcome: Outcome,
        events: impl IntoIterator<Item = impl Into<Arrival>>,
        limit: Limit,
    ) -> Additions {
        let (history, inbox) = self.absorb(outcome);
        let (mut additions, replaced) = self.take_in(events, limit, None);
        additions.change = self.change_with(history, inbox, &replaced);
        additions
    }

    /// Applies a step. Returns the first entries of history and inbox that differ from the stored ones.
    fn absorb(&mut self, outcome: Outcome) -> (usize, usize) {
        if outcome.restarted {
            self.reset();
            self.receive(outcome.received);
        }
        let stored = self.stored();
        let history = stored.history.min(self.history.len());
        for event in &outcome.fresh {
            self.history.push(&event.encode_to_vec());
        }
        // The old facts are dropped first, so that settling need not copy what they share.
        self.facts = outcome.facts;
        self.facts.settle();
        let kept = outcome.inbox == self.inbox;
        self.inbox = outcome.inbox;
        // Fired timers are never stored in the inbox.
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
    /// Whether the step started exactly one activity and nothing else is in progress. The next event is then
    /// likely its result, so storing the step can wait for it. Not so if the step has effects visible from
    /// outside: children, messages or a custom status.
    #[must_use]
    pub fn awaits_its_only_activity(&self, instance: &Instance) -> bool {
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
