//! Workflows and activities that this sidecar runs itself. They are never sent to a worker.

use futures::future::BoxFuture;
use outrigger_wire::durabletask::{ActivityRequest, ActivityResponse, WorkflowRequest, WorkflowResponse};

/// Prefix of their names.
const PREFIX: &str = "dapr.internal.";

/// Whether the sidecar runs the workflow or activity of this name itself.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Runs the sidecar's own workflows and activities.
pub trait OwnWork: Send + Sync {
    /// The answer to a step; `None` if it cannot be done yet and is to be retried.
    fn step(&self, request: WorkflowRequest) -> Option<WorkflowResponse>;

    /// The result of an activity; `None` as for a step.
    fn activity<'a>(&'a self, request: &'a ActivityRequest) -> BoxFuture<'a, Option<ActivityResponse>>;
}
