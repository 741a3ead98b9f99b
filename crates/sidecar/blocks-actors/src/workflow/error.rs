//! Statuses of workflow actors, and their classification by callers.

use std::sync::Arc;

use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::error::{NO_INSTANCE, StoredError};
use tonic::{Code, Status};

use super::protocol::LOG;
use crate::actors::ActorError;

/// Whether the instance does not exist, whatever prefix the error has.
pub(crate) fn is_unknown(error: &ActorError) -> bool {
    error.to_string().ends_with(NO_INSTANCE)
}

/// Whether the instance is stalled, in our wording or Dapr's.
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

/// The status of calls to a stalled instance.
pub(crate) fn stalled_status() -> Status {
    Status::failed_precondition("workflow is stalled")
}

/// An error without a specific code.
pub(crate) fn plain(error: impl std::fmt::Display) -> Status {
    Status::unknown(error.to_string())
}

/// The stored state is unusable, and retrying does not help.
pub(crate) fn broken(error: &StoredError) -> Status {
    Status::data_loss(error.to_string())
}

/// The stored state is signed and was changed, or does not fit this sidecar's configuration.
pub(crate) fn unusable(error: impl std::fmt::Display) -> Status {
    Status::data_loss(error.to_string())
}

/// Whether the code is that of [`broken`] or [`unusable`].
pub(crate) fn is_broken(code: Code) -> bool {
    code == Code::DataLoss
}

/// Maximum immediate retries of a call whose instance changed in the store. After that its reminder or its
/// sender retries.
const MAX_REPEATS: usize = 3;

/// The store has another state than the one read: another sidecar has written it, or it was restored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the stored state has changed")]
struct StateChanged;

/// The status of a call that found the state changed.
pub(crate) fn state_changed(error: impl std::fmt::Display) -> Status {
    let mut status = retry_later(error);
    status.set_source(Arc::new(StateChanged));
    status
}

/// Whether the status is that of [`state_changed`].
pub(crate) fn is_state_changed(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(<dyn std::error::Error>::is::<StateChanged>)
}

/// Retries a call at once if the stored state has changed; it reads the instance again. This is optimistic
/// concurrency, not a failure, so no resiliency policy applies.
pub(crate) async fn repeat_on_change<T, F>(id: &str, mut call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    for _ in 0..MAX_REPEATS {
        match call().await {
            Err(error) if is_state_changed(&error) => {
                let why = error.message();
                tracing::info!(target: LOG, "workflow '{id}': stored state changed, reading it again: {why}");
            }
            done => return done,
        }
    }
    call().await
}

/// A transient error: the scheduler redelivers the reminder.
pub(crate) fn retry_later(error: impl std::fmt::Display) -> Status {
    Status::new(Code::Aborted, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_unknown_instance_errors() {
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
