//! Answers of workers that are larger than a message may be: whoever waits for them is told.

use outrigger_wire::durabletask::{ActivityResponse, TaskFailureDetails};
use tonic::Status;

use super::error::Cancelled;
use super::workers::Workers;
use crate::workflow::protocol::LOG;

/// The type of the failure of an activity whose result is too large.
const TOO_LARGE: &str = "ActivityResultTooLarge";

/// An answer of a worker that is larger than a message may be, as far as it says what it is the answer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oversized {
    /// Id of the workflow instance; empty where it could not be read.
    pub instance: String,
    /// The number of the activity.
    pub task: Option<i32>,
    /// The token that came with the work, if the worker hands it back.
    pub token: String,
    /// Bytes of the answer.
    pub size: usize,
    /// Bytes that it may have.
    pub limit: usize,
}

impl Workers {
    /// A worker's answer to a step is too large: the step is retried at growing intervals, and the instance can be terminated
    /// meanwhile. The status for the worker.
    pub async fn step_too_large(&self, answer: &Oversized) -> Status {
        let &Oversized { size, limit, .. } = answer;
        let why = Cancelled::TooLarge { size, limit };
        let is_told = self.queue.reject_step(&answer.instance, &answer.token, why);
        tracing::warn!(
            target: LOG,
            "CompleteOrchestratorTask for workflow '{}' is refused: it has {size} bytes, which exceeds the {limit} bytes \
             of a message; increase daprd --max-body-size, or pass less data{}",
            answer.instance,
            if is_told { "" } else { " (nobody waits for it here)" }
        );
        if !is_told && !answer.instance.is_empty() && self.is_remote(&answer.token) {
            self.engine.cancel_remotely(&answer.instance).await;
        }
        refused(answer)
    }

    /// A worker's answer to an activity is too large: the activity fails with that. The status for the worker.
    pub async fn activity_too_large(&self, answer: Oversized) -> Status {
        let Oversized { size, limit, .. } = answer;
        let status = refused(&answer);
        let task_id = answer.task.unwrap_or_default();
        let error_message = format!(
            "the worker's answer to activity {task_id} has {size} bytes, which exceeds the {limit} bytes that a message may \
             have; increase daprd --max-body-size, or return less, such as a key by which the data are found"
        );
        tracing::warn!(
            target: LOG,
            "CompleteActivityTask for workflow '{}' is refused, and the activity fails: {error_message}",
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
        // Who waits for it at another sidecar and cannot be told is told by `waits` where it is.
        let _told = self.activity_done(failed).await;
        status
    }
}

/// What Dapr's sidecars say of a message that is too large.
fn refused(answer: &Oversized) -> Status {
    let Oversized { size, limit, .. } = answer;
    Status::resource_exhausted(format!(
        "grpc: received message larger than max ({size} vs. {limit})"
    ))
}
