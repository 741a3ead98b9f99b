//! Group commit: a step that started a single activity waits briefly for its result, and both are stored in
//! one transaction. The result then needs no reminder.
//!
//! A crash before the commit loses nothing. The events of the step are still in the inbox and its reminder is
//! not acknowledged, so any sidecar repeats the step. Effects are sent only for stored steps, and senders are
//! answered only once their events are stored.

use std::time::Duration;

use outrigger_workflow::event::ends;
use outrigger_workflow::{Additions, Outcome};
use tokio::time::Instant;
use tonic::Status;

use super::events::answer;
use super::inbox::{Batch, Decoded};
use super::state::Held;
use super::store::Loaded;
use crate::workflow::error::is_state_changed;

/// How long a finished step waits for its result. It delays no other call: a call that wants the turn, or any
/// event, ends the wait. Readers of the store see the step this much later.
const RESULT_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum time that one reminder runs an instance step after step: it delays the reminder's acknowledgement
/// and a move of the actor.
const MAX_RUN_TIME: Duration = Duration::from_secs(1);

/// The time budget and purpose of a run.
pub(crate) struct RunBudget {
    began: Instant,
    /// A timer's reminder triggered the run: if redelivered, it does not run the next generation.
    of_timer: bool,
}

impl RunBudget {
    pub(crate) fn new(of_timer: bool) -> Self {
        Self {
            began: Instant::now(),
            of_timer,
        }
    }
}

impl Held<'_> {
    /// Waits for events to store together with the step; `None` if the step is to be stored alone.
    pub(crate) async fn await_results(
        &self,
        loaded: &Loaded,
        outcome: &Outcome,
        budget: &RunBudget,
    ) -> Option<Batch> {
        let is_news = outcome.facts().status() != loaded.instance.status();
        let waits = outcome.awaits_its_only_activity(&loaded.instance)
            && !self.entry.stores_alone
            // A result is verified against the stored step.
            && !self.all.engine.signs()
            && budget.began.elapsed() < MAX_RUN_TIME
            // A client may be waiting to see that it runs.
            && !(is_news && self.all.watchers.has(self.id));
        if !waits {
            return None;
        }
        self.all.inbox.next(self.id, RESULT_TIMEOUT).await
    }

    /// Stores a step with events that arrived since, and answers their senders.
    pub(crate) async fn commit_with_results(
        &mut self,
        mut loaded: Loaded,
        outcome: Outcome,
        batch: Batch,
        budget: &RunBudget,
    ) -> Result<(), Status> {
        let Decoded {
            tickets,
            events,
            mut answers,
        } = Decoded::read(batch);
        self.note_arrivals(outcome.facts(), &events);
        if budget.of_timer {
            self.run_again(&loaded.instance).await?;
        }
        let raised: Vec<u64> = tickets
            .iter()
            .zip(&events)
            .filter(|(_, arrival)| ends(&arrival.event).is_none())
            .map(|(ticket, _)| *ticket)
            .collect();
        let Additions { added, change, .. } =
            loaded
                .instance
                .commit_with(outcome, events, self.all.engine.limit);
        // The store may have rejected one of the events: a result's sender gets the error in its own turn,
        // and the sender of a raised event decides about a retry.
        self.entry.stores_alone = true;
        if let Err(error) = self.save(loaded, change).await {
            // If the state has changed, nothing was stored: the events wait for the repeated step.
            if !is_state_changed(&error) {
                answers.extend(raised.into_iter().map(|ticket| (ticket, Err(error.clone()))));
            }
            self.all.inbox.answer(self.id, answers);
            return Err(error);
        }
        self.entry.stores_alone = false;
        answers.extend(tickets.into_iter().zip(added.into_iter().map(answer)));
        self.all.inbox.answer(self.id, answers);
        Ok(())
    }
}
