//! Reruns: instances created from an event of another instance.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::durabletask::RerunWorkflowFromEventRequest;
use outrigger_wire::durabletask::backend::v1::BackendWorkflowState;
use outrigger_workflow::error::RerunError;
use outrigger_workflow::{Counts, Instance, Rerun, names};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use super::state::Held;
use super::store::Loaded;
use crate::workflow::error::plain;
use crate::workflow::protocol::{LOG, decode, methods, new_id, now, random};

impl Held<'_> {
    pub(crate) async fn fork(&mut self, body: &Bytes) -> Result<(), Status> {
        let request: RerunWorkflowFromEventRequest = decode("the request to rerun a workflow", body.clone())?;
        let loaded = self.take().await?;
        let none = || RerunError::NoSource(self.id.to_owned());
        let forked = loaded
            .as_ref()
            .ok_or_else(none)
            .and_then(|loaded| loaded.instance.fork(&request));
        if let Some(loaded) = loaded {
            self.keep(loaded);
        }
        let state = forked.map_err(|error| rerun_status(&error))?;
        let engine = &self.all.engine;
        let target = request.new_instance_id.unwrap_or_default();
        let body = state.encode_to_vec().into();
        let kind = engine.types.workflow.clone();
        let sent = engine.call(&kind, &target, methods::RERUN, http::HeaderMap::new(), body);
        sent.await.map_err(|error| match error.status() {
            Some((code, text)) => Status::new(code, text),
            None => plain(error),
        })
    }

    pub(crate) async fn rerun(&mut self, body: &Bytes) -> Result<(), Status> {
        let state: BackendWorkflowState = decode("the state of the workflow to rerun", body.clone())?;
        let engine = Arc::clone(&self.all.engine);
        match self.take_current().await? {
            // An earlier request was interrupted before everything was stored.
            Some(mut loaded) if loaded.instance.is_left_over() => engine.remove(&mut loaded).await?,
            Some(loaded) => {
                self.keep(loaded);
                return Err(rerun_status(&RerunError::TargetExists(self.id.to_owned())));
            }
            None => {}
        }
        let made = Instance::from_fork(self.id, state, now(), &mut new_id);
        let (instance, change) = made.map_err(|error| rerun_status(&error))?;
        let name = names::rerun_reminder(random());
        let data = Any {
            type_url: "type.googleapis.com/durabletask.protos.backend.v1.BackendWorkflowStateMetadata"
                .to_owned(),
            value: instance.stored().encoded().into(),
        };
        engine
            .remind(&engine.types.workflow, self.id, &name, None, Some(data))
            .await?;
        // Failures of a previous instance of this id do not count.
        self.all.failures.clear(self.id);
        self.entry.awaited.clear();
        self.entry.is_stalled = false;
        self.save(Loaded::made(instance), change).await
    }

    /// Starts the tasks that [`Held::rerun`] left to its reminder.
    pub(crate) async fn begin_rerun(&mut self, made: Counts) -> Result<(), Status> {
        let Some(loaded) = self.take().await? else {
            tracing::warn!(target: LOG, "workflow '{}' was not run again: its state was not stored", self.id);
            return Ok(());
        };
        let engine = Arc::clone(&self.all.engine);
        let instance = &loaded.instance;
        let rerun = instance.rerun(made, &engine.app_id, now(), &mut new_id);
        let (generation, due) = (instance.generation, instance.first_at());
        let execution = (generation, instance.execution());
        let workflow = instance.start_event().map_or("", |started| &started.name);
        let propagation = &instance.propagation(&engine.app_id, made.history);
        let Rerun {
            tasks,
            timers,
            children,
        } = rerun;
        self.entry.awaited.extend(tasks.iter().map(|task| task.event_id));
        engine.set_timers(self.id, execution, &timers).await?;
        let (started, sent) = tokio::join!(
            engine.start((self.id, workflow), execution, due, &tasks, propagation),
            engine.send(self.id, &children, propagation),
        );
        self.keep(loaded);
        match started.and(sent).why {
            None => Ok(()),
            Some(why) => Err(self.all.failures.reject(self.id, &why)),
        }
    }
}

fn rerun_status(error: &RerunError) -> Status {
    let code = match error {
        RerunError::NoSource(_) | RerunError::NoEvent(_) | RerunError::NotScheduled(..) => Code::NotFound,
        RerunError::TargetExists(_) => Code::AlreadyExists,
        _ => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}
