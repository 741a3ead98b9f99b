//! The statuses that actors of workflows fail with, and what callers read from them.

use std::sync::Arc;

use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::error::{NO_INSTANCE, StoredError};
use tonic::{Code, Status};

use super::protocol::LOG;
use crate::actors::ActorError;

/// Whether an error says that there is no such instance, with whatever was put before that.
pub(crate) fn is_unknown(error: &ActorError) -> bool {
    error.to_string().ends_with(NO_INSTANCE)
}

/// Whether an error says that an instance is stalled: as here, or in the words of Dapr's sidecars.
pub(crate) fn is_stalled(error: &ActorError) -> bool {
    let text = error.to_string();
    ["workflow is stalled", "actor is stalled"]
        .iter()
        .any(|said| text.ends_with(said))
}

/// Whether a status is final.
pub fn is_final(status: OrchestrationStatus) -> bool {
    use OrchestrationStatus as S;
    matches!(status, S::Completed | S::Failed | S::Terminated | S::Canceled)
}

/// What a stalled instance answers to every call.
pub(crate) fn stalled_status() -> Status {
    Status::failed_precondition("workflow is stalled")
}

/// A failure without a code of its own.
pub(crate) fn plain(error: impl std::fmt::Display) -> Status {
    Status::unknown(error.to_string())
}

/// What is stored of an instance cannot be used: no repetition mends that.
pub(crate) fn broken(error: &StoredError) -> Status {
    Status::data_loss(error.to_string())
}

/// Whether that is what an error says.
pub(crate) fn is_broken(code: Code) -> bool {
    code == Code::DataLoss
}

/// How often a call is repeated at once because the stored state of its instance has changed. After that its reminder or
/// its sender repeats it.
const MAX_REPEATS: usize = 3;

/// The store has another state of an instance than the one that was read: another sidecar has written it, or it was restored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the stored state has changed")]
struct StateChanged;

/// The status of a call that found the stored state changed.
pub(crate) fn state_changed(error: impl std::fmt::Display) -> Status {
    let mut status = retry_later(error);
    status.set_source(Arc::new(StateChanged));
    status
}

/// Whether that is what a status says.
pub(crate) fn is_state_changed(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(<dyn std::error::Error>::is::<StateChanged>)
}

/// Repeats a call of an instance at once where the stored state has changed: it reads the instance anew.
pub(crate) async fn repeat_on_change<T, F>(id: &str, mut call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    for _ in 0..MAX_REPEATS {
        match call().await {
            Err(error) if is_state_changed(&error) => {
                let why = error.message();
                tracing::info!(target: LOG, "workflow '{id}' is read again, its stored state has changed: {why}");
            }
            done => return done,
        }
    }
    call().await
}

/// An error that passes: the scheduler triggers the reminder again.
pub(crate) fn retry_later(error: impl std::fmt::Display) -> Status {
    Status::new(Code::Aborted, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_instance_is_known_by_what_is_said_wherever_it_lives() {
        let said = Status::not_found(outrigger_workflow::error::AddError::Unknown.to_string());
        let wrapped = Status::internal(format!("error invoke actor method: {}", said.message()));
        assert!(is_unknown(&ActorError::Internal(said)));
        assert!(is_unknown(&ActorError::Peer(wrapped.clone())));
        assert!(is_unknown(&ActorError::Invoke(wrapped.message().to_owned())));
        let stalled = Status::failed_precondition(outrigger_workflow::error::AddError::Stalled.to_string());
        let stalled = ActorError::Internal(stalled);
        assert!(!is_unknown(&stalled) && is_stalled(&stalled));
    }
}
