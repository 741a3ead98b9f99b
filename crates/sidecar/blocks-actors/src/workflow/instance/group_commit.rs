//! Group commit: a step that began one activity waits shortly for the result, and both are stored in one transaction. The result
//! needs no reminder of its own then.
//!
//! A crash before the commit loses nothing. The events of the step are still in the inbox, and the reminder that it runs for has
//! not ended, so any sidecar repeats the step. Nothing is sent because of what is not stored, and senders are answered only
//! once their events are stored.

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

/// How long a step that was carried out waits for what comes of it. It holds nobody up: others that want the turn end it, and
/// events are what it waits for. Whoever reads the store sees the step that much later.
const RESULT_TIMEOUT: Duration = Duration::from_millis(50);
/// How long a reminder has an instance run, step after step, at most: it is kept from ending meanwhile, and so is an actor
/// that is to move.
const MAX_RUN_TIME: Duration = Duration::from_secs(1);

/// What an instance runs for.
pub(crate) struct RunBudget {
    began: Instant,
    /// It is the reminder of a timer: where that comes again, it does not run the next generation.
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
    /// What comes soon enough to be stored with the step; `None` if the step is to be stored alone.
    pub(crate) async fn await_results(
        &self,
        loaded: &Loaded,
        outcome: &Outcome,
        budget: &RunBudget,
    ) -> Option<Batch> {
        let is_news = outcome.facts().status() != loaded.instance.status();
        let waits = outcome.awaits_its_only_activity(&loaded.instance)
            && !self.entry.stores_alone
            && budget.began.elapsed() < MAX_RUN_TIME
            // Somebody may wait to see that it runs.
            && !(is_news && self.all.watchers.has(self.id));
        if !waits {
            return None;
        }
        self.all.inbox.next(self.id, RESULT_TIMEOUT).await
    }

    /// Stores a step with events that came since, and answers those who sent them.
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
            self.run_again().await?;
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
        // One of the events may be what the store does not take: the sender of a result gets the error in a turn of its own. Who raised
        // an event decides whether to raise it again.
        self.entry.stores_alone = true;
        if let Err(error) = self.save(loaded, change).await {
            // Nothing was stored where the state has changed: all that came waits for the step that is repeated.
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
