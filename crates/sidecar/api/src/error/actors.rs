//! Errors of actors.

use http::StatusCode;
use outrigger_blocks_actors::actors::{ActorError, ReminderError};
use tonic::{Code, Status};

use super::ApiError;

const INTERNAL: (StatusCode, Code) = (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal);

impl From<ActorError> for ApiError {
    fn from(error: ActorError) -> Self {
        let message = error.to_string();
        let (code, (http, grpc), message) = match error {
            ActorError::NoPlacement => (
                "ERR_ACTOR_NO_PLACEMENT",
                (StatusCode::BAD_REQUEST, Code::Unavailable),
                message,
            ),
            ActorError::NoNamespace => (
                "ERR_ACTOR_NAMESPACE_REQUIRED",
                (StatusCode::PRECONDITION_FAILED, Code::FailedPrecondition),
                message,
            ),
            ActorError::Ended => (
                "ERR_ACTOR_RUNTIME_CLOSED",
                (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
                message,
            ),
            ActorError::Illegal(_) => {
                return Self::bad_request(message);
            }
            ActorError::Reserved(_) => (
                "ERR_ACTOR_TYPE_RESERVED",
                (StatusCode::FORBIDDEN, Code::PermissionDenied),
                message,
            ),
            ActorError::TooDeep(_) => (
                "ERR_ACTOR_STACK_DEPTH",
                (StatusCode::INTERNAL_SERVER_ERROR, Code::ResourceExhausted),
                message,
            ),
            ActorError::NotActive => (
                "ERR_ACTOR_INSTANCE_MISSING",
                (StatusCode::BAD_REQUEST, Code::Internal),
                message,
            ),
            ActorError::NoStore => ("ERR_ACTOR_RUNTIME_NOT_FOUND", INTERNAL, message),
            ActorError::StateGet(_) => ("ERR_ACTOR_STATE_GET", INTERNAL, message),
            ActorError::StateSave(_) | ActorError::StateChanged(_) => {
                ("ERR_ACTOR_STATE_TRANSACTION_SAVE", INTERNAL, message)
            }
            ActorError::Timer(_) => ("ERR_ACTOR_TIMER_CREATE", INTERNAL, message),
            ActorError::Reminder(error) => {
                let (code, (http, grpc)) = of_reminder(&error);
                (code, (http, grpc), message)
            }
            ActorError::NoAddress { .. }
            | ActorError::Moved
            | ActorError::Disseminating
            | ActorError::NoMethod(_)
            | ActorError::Invoke(_)
            | ActorError::Timeout
            | ActorError::Internal(_)
            | ActorError::Peer(_)
            | ActorError::Cut(_) => (
                "ERR_ACTOR_INVOKE_METHOD",
                INTERNAL,
                format!("error invoke actor method: {message}"),
            ),
        };
        Self::new(code, "actor", http, grpc, message)
    }
}

fn of_reminder(error: &ReminderError) -> (&'static str, (StatusCode, Code)) {
    match error {
        ReminderError::NotHosted => (
            "ERR_ACTOR_REMINDER_NON_HOSTED",
            (StatusCode::FORBIDDEN, Code::PermissionDenied),
        ),
        ReminderError::Exists(_) => (
            "ERR_ACTOR_REMINDER_ALREADY_EXISTS",
            (StatusCode::CONFLICT, Code::AlreadyExists),
        ),
        ReminderError::NotFound(_) => (
            "ERR_ACTOR_REMINDER_NOT_FOUND",
            (StatusCode::NOT_FOUND, Code::NotFound),
        ),
        ReminderError::Create(_) => ("ERR_ACTOR_REMINDER_CREATE", INTERNAL),
        ReminderError::Get(_) => ("ERR_ACTOR_REMINDER_GET", INTERNAL),
        ReminderError::Delete(_) => ("ERR_ACTOR_REMINDER_DELETE", INTERNAL),
    }
}

/// The gRPC status if it differs from the counted code. Statuses of other sidecars are forwarded unchanged.
/// As in Dapr, an actor without a host has a separate code. The contract has texts about reminders for HTTP
/// only, so the gRPC texts include the remedy.
pub fn actor_status(error: &ActorError) -> Option<Status> {
    match error {
        ActorError::Peer(status) => Some(Status::new(status.code(), status.message())),
        ActorError::NoAddress { .. } => Some(Status::failed_precondition(error.to_string())),
        ActorError::Reminder(reminder) => reminder
            .remedy()
            .map(|remedy| Status::internal(format!("{reminder}: {remedy}"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::scheduler::SchedulerError;

    use super::*;

    #[test]
    fn reminder_error_names_remedy_over_grpc() {
        let disabled = || SchedulerError::Disabled.into();
        for error in [
            ReminderError::Create(disabled()),
            ReminderError::Get(disabled()),
            ReminderError::Delete(disabled()),
        ] {
            let error = ActorError::from(error);
            let status = actor_status(&error).expect("gRPC has its own text");
            let http = ApiError::from(error);
            assert!(
                http.message.ends_with(": scheduler clients are disabled"),
                "{}",
                http.message
            );
            assert_eq!(status.code(), http.grpc);
            let more = status
                .message()
                .strip_prefix(&*http.message)
                .expect("the same beginning");
            assert!(
                more.contains("--scheduler-host-address") && more.contains("workflows"),
                "{more}"
            );
        }
    }

    #[test]
    fn missing_namespace_error_names_setting() {
        let error = ApiError::from(ActorError::NoNamespace);
        assert_eq!(error.code, "ERR_ACTOR_NAMESPACE_REQUIRED");
        assert_eq!((error.http.as_u16(), error.grpc), (412, Code::FailedPrecondition));
        assert!(error.message.contains("namespace"), "{}", error.message);
    }
}
