//! Reruns an ended instance from one of its events.

use outrigger_wire::durabletask::RerunWorkflowFromEventRequest;
use prost::Message as _;
use tonic::Status;

use super::error::{Action, WorkflowError, check_new_id};
use crate::actors::ActorError;
use crate::workflow::protocol::methods;
use crate::workflow::service::Workflows;

impl Workflows {
    /// Creates an instance from an event of an ended one; returns its id, `new` if given.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_rerun(
        &self,
        id: String,
        event: u32,
        new: Option<String>,
    ) -> Result<String, WorkflowError> {
        self.ready(&id)?;
        new.as_deref().map_or(Ok(()), check_new_id)?;
        let request = RerunWorkflowFromEventRequest {
            source_instance_id: id.clone(),
            event_id: event,
            new_instance_id: new,
            ..RerunWorkflowFromEventRequest::default()
        };
        let rerun = self.rerun(request).await;
        rerun.map_err(|error| WorkflowError::Failed(Action::Rerun, id, error.to_string()))
    }

    /// Creates an instance from an event of another one; returns its id.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn rerun(&self, mut request: RerunWorkflowFromEventRequest) -> Result<String, ActorError> {
        let invalid = |text: &str| ActorError::Internal(Status::invalid_argument(text));
        if request.source_instance_id.is_empty() {
            return Err(invalid("rerun workflow source instance ID is required"));
        }
        let id = match request.new_instance_id.take() {
            Some(id) => id,
            None => uuid::Uuid::new_v4().to_string(),
        };
        if id == request.source_instance_id {
            let text = "rerun workflow instance ID must be different from the original instance ID";
            return Err(invalid(text));
        }
        request.new_instance_id = Some(id.clone());
        let source = request.source_instance_id.clone();
        let call = self.request(methods::FORK, &source, request.encode_to_vec());
        self.actors.invoke_plain(&call).await?;
        Ok(id)
    }
}
