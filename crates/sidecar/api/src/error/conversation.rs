//! Errors of the conversation block.

use http::StatusCode;
use outrigger_blocks::conversation::ConversationError;
use tonic::Code;

use super::ApiError;

impl From<ConversationError> for ApiError {
    fn from(error: ConversationError) -> Self {
        let bad = (StatusCode::BAD_REQUEST, Code::InvalidArgument);
        let (code, (http, grpc), message) = match error {
            ConversationError::NotFound(name) => (
                "ERR_CONVERSATION_NOT_FOUND",
                bad,
                format!("failed finding conversation component {name}"),
            ),
            ConversationError::MissingInputs(name) => (
                "ERR_CONVERSATION_MISSING_INPUTS",
                bad,
                format!("failed conversing with component {name}: missing inputs in request"),
            ),
            ConversationError::InvalidParameters { component, what } => (
                "ERR_CONVERSATION_INVALID_PARMS",
                bad,
                format!("failed conversing with component {component}: invalid params: {what}"),
            ),
            ConversationError::Invoke { component, cause } => (
                "ERR_CONVERSATION_INVOKE",
                (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
                format!("failed conversing with component {component}: {cause}"),
            ),
        };
        Self::new(code, "conversation", http, grpc, message)
    }
}
