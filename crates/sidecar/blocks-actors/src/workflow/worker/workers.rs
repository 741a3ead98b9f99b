//! The workers of the app: sends work items through the queue and routes their answers back.
//!
//! In a clustered deployment the answer may reach another sidecar of the app, so the caller waits at the
//! queue and at the item's executor.

use std::sync::Arc;

use bytes::Bytes;
use outrigger_wire::durabletask::{ActivityRequest, ActivityResponse, WorkflowRequest, WorkflowResponse};
use outrigger_workflow::names;
use prost::Message as _;
use tonic::Status;

use super::error::Cancelled;
use super::histories::StepRequest;
use super::queue::{Limits, WorkQueue};
use crate::workflow::engine::Engine;
use crate::workflow::own::OwnWork;

/// The workers of an app.
pub struct Workers {
    pub(crate) engine: Arc<Engine>,
    pub(crate) queue: Arc<WorkQueue>,
    own: Arc<dyn OwnWork>,
}

impl Workers {
    pub(crate) fn new(engine: Arc<Engine>, limits: Limits, own: Arc<dyn OwnWork>) -> Self {
        Self {
            engine,
            queue: WorkQueue::new(limits),
            own,
        }
    }

    /// Number of open streams.
    pub fn connected(&self) -> usize {
        self.queue.streams()
    }

    /// Sends a step of an instance to a worker. `losses`: the instance's losses in a row.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_step(
        &self,
        instance: &str,
        request: StepRequest,
        losses: u32,
    ) -> Result<WorkflowResponse, Cancelled> {
        let remote = self.engine.remote_answer(instance.to_owned(), |answer| {
            let response = WorkflowResponse::decode(answer)?;
            Ok(response.instance_id == instance && self.queue.step_done(response).is_none())
        });
        self.queue
            .run_step(instance, request, losses, Box::pin(remote))
            .await
    }

    /// Runs a step of the sidecar's own workflows: an encoded `WorkflowRequest`, in pieces.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) fn run_own_step(&self, request: &[Bytes]) -> Result<WorkflowResponse, Cancelled> {
        // The engine has encoded it.
        let request = WorkflowRequest::decode(request.concat().as_slice()).unwrap_or_default();
        self.own.step(request).ok_or(Cancelled::NotRegistered)
    }

    /// Runs one of the sidecar's own activities, which counts to the limit of activities.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_own_activity(
        &self,
        request: &ActivityRequest,
    ) -> Result<ActivityResponse, Cancelled> {
        let _permit = self.queue.activity_permit().await;
        self.own.activity(request).await.ok_or(Cancelled::NotRegistered)
    }

    /// Sends an activity to a worker: an encoded `ActivityRequest`.
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

    /// Handles a worker's answer to a step; returns whether a caller waited for it, here or on another
    /// sidecar.
    ///
    /// # Errors
    /// `Unavailable` if the other sidecars could not be asked.
    pub async fn step_done(&self, response: WorkflowResponse) -> Result<bool, Status> {
        match self.queue.step_done(response) {
            None => Ok(true),
            Some(left) if !self.is_remote(&left.completion_token) => Ok(false),
            Some(left) => self.engine.deliver_remotely(&left.instance_id, &left).await,
        }
    }

    /// As [`Workers::step_done`], for an activity.
    ///
    /// # Errors
    /// As [`Workers::step_done`].
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

    /// Whether another sidecar of the app may have sent the work of a token.
    pub(crate) fn is_remote(&self, token: &str) -> bool {
        self.engine.is_clustered && !self.queue.is_own(token)
    }
}
