//! Creation, replacement and purge of an instance.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::durabletask::PurgeInstancesResponse;
use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_workflow::error::{CreateError, PurgeError};
use outrigger_workflow::{Creation, create};
use prost::Message as _;
use tonic::{Code, Status};

use super::cache::CacheEntry;
use super::family::Progress;
use super::state::Held;
use super::store::Loaded;
use super::subtree;
use crate::actors::{ActorError, Update};
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
        if creation == Creation::Begin
            && loaded.instance.is_completed()
            && let Err(error) = self.all.engine.check_subtree(&loaded.instance).await
        {
            self.keep(loaded);
            return Err(error.refused(self.id));
        }
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
        let received = request.propagated_history;
        let signers = received.as_ref().map(|received| engine.admit(self.id, received));
        let signers = signers.transpose().map_err(|error| {
            plain(format!(
                "workflow actor '{}': propagated history verification failed: {error}",
                self.id
            ))
        })?;
        let due = create::due(&start);
        let change = loaded.instance.start(start, received);
        loaded.instance.keep_signers(signers.unwrap_or_default());
        let later = loaded.instance.begins_later(now());
        engine
            .remind_start(self.id, &loaded.instance, due, later.is_some())
            .await?;
        self.save(loaded, change).await?;
        self.all.failures.clear(self.id);
        self.entry.awaited.clear();
        self.entry.is_stalled = false;
        Ok(())
    }

    /// Whether the instance and everything below it have ended.
    pub(crate) async fn check_subtree(&mut self) -> Update {
        let loaded = match self.take().await {
            Ok(loaded) => loaded.filter(|loaded| !loaded.instance.is_left_over()),
            Err(error) => return subtree::answer(Some(Err(error.message().to_owned()))),
        };
        let Some(loaded) = loaded else {
            return subtree::answer(None);
        };
        let checked = self.all.engine.check_subtree(&loaded.instance).await;
        let answer = subtree::answer(Some(match checked {
            Ok(()) => Ok(&loaded.instance),
            Err(error) => Err(error.to_string()),
        }));
        self.keep(loaded);
        answer
    }

    /// Removes the instance and everything below it; returns the number of instances. `force`: ended or not.
    pub(crate) async fn purge_tree(&mut self, force: bool) -> Result<Bytes, Status> {
        let (engine, failures) = (Arc::clone(&self.all.engine), Arc::clone(&self.all.failures));
        if !force {
            self.check_stalled()?;
        }
        let mut progress = Progress::new();
        let purged = async {
            engine
                .purge_below(self.id, force, &failures, &mut progress)
                .await?;
            match force {
                true => {
                    self.entry = CacheEntry::default();
                    engine.purge_stored(self.id, &failures).await
                }
                false => self.purge(false).await.map_err(ActorError::Internal),
            }
        };
        purged.await.map_err(|error| match error.status() {
            Some((code, text)) => Status::new(code, text),
            None => plain(error),
        })?;
        let purged = PurgeInstancesResponse {
            deleted_instance_count: i32::try_from(progress.count + 1).unwrap_or(i32::MAX),
            ..PurgeInstancesResponse::default()
        };
        Ok(purged.encode_to_vec().into())
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
