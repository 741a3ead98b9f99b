//! Creation, replacement and purge of an instance.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_workflow::error::{CreateError, PurgeError};
use outrigger_workflow::{Creation, create};
use tonic::{Code, Status};

use super::cache::CacheEntry;
use super::state::Held;
use super::store::Loaded;
use crate::workflow::error::plain;
use crate::workflow::protocol::{decode, now};

impl Held<'_> {
    pub(crate) async fn create(&mut self, body: &Bytes) -> Result<(), Status> {
        let mut request: CreateWorkflowInstanceRequest =
            decode("the request to create a workflow", body.clone())?;
        let mut loaded = self.take_current().await?.unwrap_or_else(|| Loaded::new(self.id));
        let awaits = !self.entry.awaited.is_empty();
        let creation = match loaded.instance.creation(&request, awaits) {
            Ok(creation) => creation,
            Err(error) => {
                self.keep(loaded);
                return Err(match error {
                    CreateError::Active(_) => Status::already_exists(error.to_string()),
                    _ => plain(error),
                });
            }
        };
        let Some(start) = request
            .start_event
            .take()
            .filter(|_| creation != Creation::Nothing)
        else {
            self.keep(loaded);
            return Ok(());
        };
        let engine = Arc::clone(&self.all.engine);
        // A stalled child is created anyway: its parent gets no error, and both are visible.
        let is_child = matches!(&start.event_type, Some(EventType::ExecutionStarted(started)) if started.parent_instance.is_some());
        let too_much = || {
            let room = self.all.workers.queue.has_memory();
            room.err()
                .map(|why| format!("the workflow is not started: {why}"))
        };
        if !is_child && let Some(why) = engine.limit.refuses_start(&start).or_else(too_much) {
            self.keep(loaded);
            return Err(Status::resource_exhausted(why));
        }
        let due = create::due(&start);
        let change = loaded.instance.start(start, request.propagated_history);
        let (execution, later) = (loaded.instance.execution(), loaded.instance.begins_later(now()));
        engine
            .remind_start(self.id, execution, due, later.is_some())
            .await?;
        self.save(loaded, change).await?;
        self.all.failures.clear(self.id);
        self.entry.awaited.clear();
        self.entry.is_stalled = false;
        Ok(())
    }

    pub(crate) async fn purge(&mut self, by_retention: bool) -> Result<(), Status> {
        // The removal must be based on the current stored state.
        self.entry.loaded = None;
        let loaded = self.all.engine.load_rest(self.id).await?;
        let instance = loaded.as_ref().map(|loaded| &loaded.instance);
        let purged = instance.map_or(Err(PurgeError::Unknown), |instance| instance.purge());
        if let Err(error) = purged {
            let code = match error {
                PurgeError::Unknown => Code::NotFound,
                _ => Code::FailedPrecondition,
            };
            if let Some(loaded) = loaded {
                self.keep(loaded);
            }
            return Err(Status::new(code, error.to_string()));
        }
        let Some(mut loaded) = loaded else { return Ok(()) };
        let engine = Arc::clone(&self.all.engine);
        engine.remove(&mut loaded).await?;
        self.entry = CacheEntry::default();
        engine
            .forget_instance(self.id, loaded.instance.activities(), !by_retention)
            .await
    }
}
