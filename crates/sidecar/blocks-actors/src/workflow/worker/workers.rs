//! The workers of the app: each piece of work goes through the queue to one of them, and its answer comes back here.
//!
//! In a clustered deployment the answer may reach another sidecar of the app. It is waited for in the queue and at the
//! executor of the piece of work at once.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::durabletask::{ActivityResponse, OrchestratorResponse};
use outrigger_workflow::names;
use prost::Message as _;
use tonic::Status;

use super::error::Cancelled;
use super::queue::{Limits, WorkQueue};
use crate::workflow::engine::Engine;

/// The workers of an app.
pub struct Workers {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queue: Arc<WorkQueue>,
}

impl Workers {
    pub(crate) fn new(engine: Arc<Engine>, limits: Limits) -> Self {
        Self {
            engine,
            queue: WorkQueue::new(limits),
        }
    }

    /// How many streams are open.
    pub fn connected(&self) -> usize {
        self.queue.streams()
    }

    /// Has a worker run a step of an instance: an `OrchestratorRequest`, encoded, in pieces. `losses`: how many steps of it
    /// in a row have lost their worker.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_step(
        &self,
        instance: &str,
        request: Vec<Bytes>,
        losses: u32,
    ) -> Result<OrchestratorResponse, Cancelled> {
        let remote = self.engine.remote_answer(instance.to_owned(), |answer| {
            let response = OrchestratorResponse::decode(answer)?;
            Ok(response.instance_id == instance && self.queue.step_done(response).is_none())
        });
        self.queue
            .run_step(instance, request, losses, Box::pin(remote))
            .await
    }

    /// Has a worker run an activity: an `ActivityRequest`, encoded.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_activity(
        &self,
        instance: &str,
        task: i32,
        request: Bytes,
    ) -> Result<ActivityResponse, Cancelled> {
        let executor = names::execution_id(instance, task);
        let remote = self.engine.remote_answer(executor, |answer| {
            let response = ActivityResponse::decode(answer)?;
            let is_this = (response.instance_id.as_str(), response.task_id) == (instance, task);
            Ok(is_this && self.queue.activity_done(response).is_none())
        });
        self.queue
            .run_activity(instance, task, request, Box::pin(remote))
            .await
    }

    /// A worker has run a step. Whether its answer was waited for, here or at another sidecar of the app.
    ///
    /// # Errors
    /// `Unavailable` where the other sidecars could not be asked.
    pub async fn step_done(&self, response: OrchestratorResponse) -> Result<bool, Status> {
        match self.queue.step_done(response) {
            None => Ok(true),
            Some(left) if !self.is_remote(&left.completion_token) => Ok(false),
            Some(left) => self.engine.deliver_remotely(&left.instance_id, &left).await,
        }
    }

    /// A worker has run an activity, as [`Workers::step_done`] has it.
    ///
    /// # Errors
    /// As there.
    pub async fn activity_done(&self, response: ActivityResponse) -> Result<bool, Status> {
        match self.queue.activity_done(response) {
            None => Ok(true),
            Some(left) if !self.is_remote(&left.completion_token) => Ok(false),
            Some(left) => {
                let executor = names::execution_id(&left.instance_id, left.task_id);
                self.engine.deliver_remotely(&executor, &left).await
            }
        }
    }

    /// Whether the work of a token may have been sent by another sidecar of the app.
    pub(crate) fn is_remote(&self, token: &str) -> bool {
        self.engine.is_clustered && !self.queue.is_own(token)
    }
}
