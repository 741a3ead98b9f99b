//! Errors of the workflow management API.

use http::StatusCode;
use outrigger_blocks_actors::workflow::{Action, WorkflowError};
use tonic::Code;

use super::ApiError;

impl From<WorkflowError> for ApiError {
    fn from(error: WorkflowError) -> Self {
        let message = error.to_string();
        let bad = (StatusCode::BAD_REQUEST, Code::InvalidArgument);
        let internal = (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal);
        let (code, (http, grpc)) = match error {
            WorkflowError::Unavailable(error) => return error.into(),
            WorkflowError::NoName => ("ERR_WORKFLOW_NAME_MISSING", bad),
            WorkflowError::NoEventName => ("ERR_WORKFLOW_EVENT_NAME_MISSING", bad),
            WorkflowError::NoId => ("ERR_INSTANCE_ID_PROVIDED_MISSING", bad),
            WorkflowError::InvalidId(_) => ("ERR_INSTANCE_ID_INVALID", bad),
            WorkflowError::InvalidApp(_) => ("ERR_WORKFLOW_APP_ID_INVALID", bad),
            WorkflowError::LongId => ("ERR_INSTANCE_ID_TOO_LONG", bad),
            WorkflowError::NotFound(_) => (
                "ERR_INSTANCE_ID_NOT_FOUND",
                (StatusCode::NOT_FOUND, Code::NotFound),
            ),
            WorkflowError::Exists(..) => (
                of_action(Action::Start),
                (StatusCode::INTERNAL_SERVER_ERROR, Code::AlreadyExists),
            ),
            WorkflowError::Failed(action, ..) => (of_action(action), internal),
        };
        Self::new(code, "workflow", http, grpc, message)
    }
}

fn of_action(action: Action) -> &'static str {
    match action {
        Action::Start | Action::Rerun => "ERR_START_WORKFLOW",
        Action::Get | Action::List => "ERR_GET_WORKFLOW",
        Action::Pause => "ERR_PAUSE_WORKFLOW",
        Action::Resume => "ERR_RESUME_WORKFLOW",
        Action::Terminate => "ERR_TERMINATE_WORKFLOW",
        Action::Purge => "ERR_PURGE_WORKFLOW",
        Action::RaiseEvent => "ERR_RAISE_EVENT_WORKFLOW",
    }
}
