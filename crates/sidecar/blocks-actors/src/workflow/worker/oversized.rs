//! Worker answers above the message limit: their waiters get an error.

use outrigger_wire::durabletask::{ActivityResponse, TaskFailureDetails};
use tonic::Status;

use super::error::Cancelled;
use super::workers::Workers;
use crate::workflow::protocol::LOG;

/// Error type of an activity whose result is too large.
const TOO_LARGE: &str = "ActivityResultTooLarge";

/// A worker answer above the message limit, as far as it could be decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oversized {
    /// Workflow instance id; empty if unknown.
    pub instance: String,
    /// Number of the activity.
    pub task: Option<i32>,
    /// The completion token, if the worker returns it.
    pub token: String,
    /// Size of the answer, bytes.
    pub size: usize,
    /// The limit, bytes.
    pub limit: usize,
}

impl Workers {
    /// Rejects an oversized answer to a step: the step is retried with backoff, and the instance can be
    /// terminated. Returns the status for the worker.
    pub async fn step_too_large(&self, answer: &Oversized) -> Status {
        let &Oversized { size, limit, .. } = answer;
        let why = Cancelled::TooLarge { size, limit };
        let is_told = self.queue.reject_step(&answer.instance, &answer.token, why);
        tracing::warn!(
            target: LOG,
            "CompleteWorkflowTask for workflow '{}' is rejected: {size} bytes exceed the limit of {limit} \
             bytes; increase daprd --max-body-size, or pass less data{}",
            answer.instance,
            if is_told { "" } else { " (no caller waits for it here)" }
        );
        if !is_told && !answer.instance.is_empty() && self.is_remote(&answer.token) {
            self.engine.cancel_remotely(&answer.instance).await;
        }
        refused(answer)
    }

    /// Rejects an oversized answer to an activity: the activity fails. Returns the status for the worker.
    pub async fn activity_too_large(&self, answer: Oversized) -> Status {
        let Oversized { size, limit, .. } = answer;
        let status = refused(&answer);
        let task_id = answer.task.unwrap_or_default();
        let error_message = format!(
            "the worker's answer to activity {task_id} has {size} bytes, more than the limit of {limit} bytes; increase \
             daprd --max-body-size, or return less, such as a key of the stored data"
        );
        tracing::warn!(
            target: LOG,
            "CompleteActivityTask for workflow '{}' is rejected, and the activity fails: {error_message}",
            answer.instance
        );
        let failed = ActivityResponse {
            instance_id: answer.instance,
            task_id,
            failure_details: Some(TaskFailureDetails {
                error_type: TOO_LARGE.to_owned(),
                error_message,
                is_non_retriable: true,
                ..TaskFailureDetails::default()
            }),
            completion_token: answer.token,
            ..ActivityResponse::default()
        };
        // If a waiter on another sidecar cannot be notified, its status shows the pending work.
        let _told = self.activity_done(failed).await;
        status
    }
}

/// Dapr's status for an oversized message.
fn refused(answer: &Oversized) -> Status {
    let Oversized { size, limit, .. } = answer;
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({size} vs. {limit})"
    ))
}
