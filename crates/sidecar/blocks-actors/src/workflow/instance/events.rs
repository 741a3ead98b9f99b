//! Events that come to an instance, and the calls that bring them.

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
use crate::workflow::protocol::arrival;

impl Held<'_> {
    /// Adds events; what becomes of each. One reminder has all of them taken in.
    ///
    /// # Errors
    /// The store did not take them: one of them may be the reason.
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
        let Additions { added, run, change } = loaded.instance.add(events, self.all.engine.limit);
        if let Some(run) = run {
            let engine = Arc::clone(&self.all.engine);
            let kind = &engine.types.workflow;
            // Who fails here reads the instance anew: nothing was added then.
            if let Err(error) = engine.remind(kind, self.id, &run.reminder, run.due, None).await {
                return all(error);
            }
            if let Err(error) = self.save(loaded, change).await {
                // It was purged by force, and was only in memory still: who sends an event is not to send it again.
                if matches!(engine.find(self.id).await, Ok(None)) {
                    self.entry = CacheEntry::default();
                    return all(Status::not_found(AddError::Unknown.to_string()));
                }
                return Err(error);
            }
        } else {
            self.keep(loaded);
        }
        Ok(added.into_iter().map(answer).collect())
    }

    /// What is known of an instance whatever becomes of events that have come for it. `facts` say what it waits for.
    pub(crate) fn note_arrivals(&mut self, facts: &Facts, events: &[Arrival]) {
        for Arrival { event, .. } in events {
            if let Some((Awaited::Task, task)) = ends(event) {
                self.entry.awaited.remove(&task);
            }
        }
        // A step that could not be stored would be repeated at once by the result of what it began.
        if events.iter().any(|arrival| !facts.ends_nothing(&arrival.event)) {
            self.all.failures.wake(self.id);
        }
    }

    pub(crate) async fn add_event(&mut self, body: &[u8]) -> Result<(), Status> {
        let answers = self.add_events(vec![arrival(body)?]).await?;
        answers.into_iter().collect()
    }
}

/// What the sender of an event is told.
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

/// A call that brings an event.
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
            // What the store did not take may be another's event: that must not keep this one out.
            (Err(_), Some(own)) if are_many => {
                let alone = held.add_events(vec![own]).await?;
                answers.extend(alone.into_iter().map(|answer| (self.ticket, answer)));
            }
            (Err(error), Some(_)) => return Err(error),
            // Its own could not be read; those of others are theirs to try.
            (Err(_), None) => {}
        }
        self.instances.inbox.answer(self.instance, answers);
        match self.instances.inbox.take(self.instance, self.ticket) {
            Err(answer) => answer,
            Ok(_) => Err(Status::internal("an event of a workflow got no answer")),
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
            // Who took it in had its turn before, and may have been cut off: then it has no answer, and is taken in now.
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
