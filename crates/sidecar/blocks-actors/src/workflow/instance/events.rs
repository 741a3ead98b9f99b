//! Incoming events of an instance, and the calls that carry them.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_workflow::error::AddError;
use outrigger_workflow::event::{Awaited, ends};
use outrigger_workflow::facts::Facts;
use outrigger_workflow::{Added, Additions, Arrival};
use tonic::Status;

use super::cache::CacheEntry;
use super::inbox::{Batch, Decoded};
use super::state::{Held, Instances};
use crate::actors::{ActorCall, QueuedCall};
use crate::workflow::error::{is_state_changed, repeat_on_change};
use crate::workflow::protocol::{LOG, arrival};
use crate::workflow::reminders::workflow_key;

impl Held<'_> {
    /// Adds events; returns the outcome of each. One reminder runs the instance for all of them, set once they
    /// are stored.
    ///
    /// # Errors
    /// The store rejected the change: one of the events may be the cause.
    pub(crate) async fn add_events(
        &mut self,
        events: Vec<Arrival>,
    ) -> Result<Vec<Result<(), Status>>, Status> {
        let count = events.len();
        let all = |error: Status| Ok(vec![Err(error); count]);
        let mut loaded = match self.take().await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return all(Status::not_found(AddError::Unknown.to_string())),
            Err(error) => return all(error),
        };
        self.note_arrivals(loaded.instance.facts(), &events);
        let engine = Arc::clone(&self.all.engine);
        let again = engine.signs().then(|| events.clone());
        let Additions {
            added,
            run,
            change,
            rejected,
        } = engine.add_to(&mut loaded, events);
        if let Some(cause) = rejected {
            return match Box::pin(self.reject(&cause, again.unwrap_or_default())).await {
                Ok(additions) => Ok(additions.added.into_iter().map(answer).collect()),
                Err(error) => all(error),
            };
        }
        let key = run.as_ref().and_then(|_| workflow_key(&loaded.instance));
        if change.is_empty() {
            self.keep(loaded);
        } else if let Err(error) = self.save(loaded, change).await {
            // It was purged by force and existed only in memory: the sender must not retry.
            if matches!(engine.find(self.id).await, Ok(None)) {
                self.entry = CacheEntry::default();
                return all(Status::not_found(AddError::Unknown.to_string()));
            }
            return Err(error);
        }
        // Whichever sidecar gets the reminder finds the events. A sender that gets an error sends its event
        // again, which ensures the reminder.
        if let Some(run) = run
            && let Err(error) = engine
                .remind_until_stored(self.id, &run.reminder, run.due, key)
                .await
        {
            return all(error);
        }
        if added.contains(&Ok(Added::Foreign)) {
            tracing::warn!(target: LOG, "workflow '{}': dropped a result that it does not await", self.id);
        }
        Ok(added.into_iter().map(answer).collect())
    }

    /// Updates what is known regardless of whether the events can be added. `facts` has the pending tasks.
    pub(crate) fn note_arrivals(&mut self, facts: &Facts, events: &[Arrival]) {
        for Arrival { event, .. } in events {
            if let Some((Awaited::Task, task)) = ends(event) {
                self.entry.awaited.remove(&task);
            }
        }
        // Early results do not count: the result of a step that could not be stored would repeat the step at
        // once.
        if events.iter().any(|arrival| !facts.ends_nothing(&arrival.event)) {
            self.all.failures.wake(self.id);
        }
    }

    /// `waited`: a reminder carried it.
    pub(crate) async fn add_event(&mut self, body: &[u8], waited: bool) -> Result<(), Status> {
        let arrival = Arrival {
            waited,
            ..arrival(body)?
        };
        let answers = self.add_events(vec![arrival]).await?;
        answers.into_iter().collect()
    }
}

/// The status for the sender of an event.
pub(crate) fn answer(added: Result<Added, AddError>) -> Result<(), Status> {
    match added {
        Ok(_) => Ok(()),
        Err(error @ AddError::Unknown) => Err(Status::not_found(error.to_string())),
        Err(error @ (AddError::Full | AddError::TooLarge { .. })) => {
            Err(Status::resource_exhausted(error.to_string()))
        }
        Err(error @ AddError::Stalled) => Err(Status::failed_precondition(error.to_string())),
    }
}

/// A call that carries an event.
pub(crate) struct QueuedEvent<'a> {
    instances: &'a Instances,
    instance: &'a str,
    ticket: u64,
}

impl<'a> QueuedEvent<'a> {
    pub(crate) fn new(instances: &'a Instances, call: &'a ActorCall) -> Self {
        Self {
            ticket: instances.inbox.enter(&call.id, call.body.clone()),
            instances,
            instance: &call.id,
        }
    }

    async fn take_in(&self, batch: Batch) -> Result<(), Status> {
        repeat_on_change(self.instance, || self.try_take_in(batch.clone())).await
    }

    async fn try_take_in(&self, batch: Batch) -> Result<(), Status> {
        let mut held = self.instances.hold(self.instance);
        held.check_stalled()?;
        let Decoded {
            tickets,
            events,
            mut answers,
        } = Decoded::read(batch);
        let own = events
            .first()
            .cloned()
            .filter(|_| tickets.first() == Some(&self.ticket));
        let are_many = events.len() > 1;
        match (held.add_events(events).await, own) {
            (Ok(taken), _) => answers.extend(tickets.into_iter().zip(taken)),
            (Err(error), _) if is_state_changed(&error) => return Err(error),
            // The store may have rejected another event of the batch: retry this one alone.
            (Err(_), Some(own)) if are_many => {
                let alone = held.add_events(vec![own]).await?;
                answers.extend(alone.into_iter().map(|answer| (self.ticket, answer)));
            }
            (Err(error), Some(_)) => return Err(error),
            // Its own event is invalid; the other senders retry theirs.
            (Err(_), None) => {}
        }
        self.instances.inbox.answer(self.instance, answers);
        match self.instances.inbox.take(self.instance, self.ticket) {
            Err(answer) => answer,
            Ok(_) => Err(Status::internal("workflow event without an answer")),
        }
    }
}

impl Drop for QueuedEvent<'_> {
    fn drop(&mut self) {
        self.instances.inbox.leave(self.instance, self.ticket);
    }
}

impl QueuedCall for QueuedEvent<'_> {
    fn in_turn(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(async move {
            // An earlier turn that was cancelled may have left the event unanswered: it is added now.
            let taken = match self.instances.inbox.take(self.instance, self.ticket) {
                Err(answer) => answer,
                Ok(batch) => self.take_in(batch).await,
            };
            taken.map(|()| Bytes::new())
        })
    }

    fn answered(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(async move {
            let answered = self.instances.inbox.answered(self.instance, self.ticket).await;
            answered.map(|()| Bytes::new())
        })
    }
}
