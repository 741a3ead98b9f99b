//! Whether an ended instance and everything below it have ended, so that its id can be used again: results of
//! children that still run would reach the new instance.

use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_workflow::Instance;
use outrigger_workflow::error::NOT_COMPLETED;
use outrigger_workflow::facts::{Child, is_terminal};
use prost::Message as _;
use tokio::time::timeout;
use tonic::Status;

use crate::actors::{ActorCall, Update};
use crate::workflow::engine::{Engine, MAX_CONCURRENT, request};
use crate::workflow::protocol::{CHECK_SUBTREE, any, decode, metadata, methods};

/// Time limit for the answer of a child.
const CHILD_TIMEOUT: Duration = Duration::from_secs(5);
/// Begins the text about an id that cannot be used again yet.
pub(crate) const NOT_RECREATED: &str = "cannot recreate workflow";
/// There is no such instance.
const GONE: i32 = 404;
/// It has not ended, or it is not known whether it has.
const RUNNING: i32 = 409;

/// Why an instance is not known to have ended with everything below it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubtreeError {
    /// It has not ended.
    #[error("{NOT_COMPLETED}")]
    NotCompleted,
    /// The answer of a child: its id, and the text.
    #[error("child workflow '{0}': {1}")]
    Child(String, String),
    /// A child did not answer: its id, and the reason.
    #[error("failed to verify child workflow '{0}' is in a terminal state: {1}")]
    Unverified(String, String),
}

impl SubtreeError {
    /// The status of a request to create the instance again.
    pub(crate) fn refused(&self, id: &str) -> Status {
        let text = format!("{NOT_RECREATED} with ID '{id}': {self}");
        // The words of the child that decides come last.
        match text.ends_with(NOT_COMPLETED) {
            true => Status::already_exists(text),
            false => Status::unavailable(text),
        }
    }
}

/// The answer about an instance: `None` if there is none.
pub(crate) fn answer(checked: Option<Result<&Instance, String>>) -> Update {
    match checked {
        None => Update {
            code: GONE,
            data: prost_types::Any::default(),
        },
        Some(Err(text)) => Update {
            code: RUNNING,
            data: any("google.protobuf.StringValue", &text),
        },
        Some(Ok(instance)) => any(
            "durabletask.protos.backend.v1.WorkflowMetadata",
            &instance.metadata(),
        )
        .into(),
    }
}

/// The answer of a child.
fn read(update: &Update) -> Result<(), String> {
    let undecodable = |error: Status| error.message().to_owned();
    match update.code {
        GONE => Ok(()),
        RUNNING => Err(decode::<String>("the answer", &*update.data.value).unwrap_or_else(undecodable)),
        _ => {
            let found = WorkflowMetadata::decode(&*update.data.value).map_err(|error| error.to_string())?;
            match is_terminal(found.runtime_status()) {
                true => Ok(()),
                false => Err(NOT_COMPLETED.to_owned()),
            }
        }
    }
}

impl Engine {
    /// Checks an instance and everything below it, in any app.
    pub(crate) async fn check_subtree(&self, instance: &Instance) -> Result<(), SubtreeError> {
        if !instance.is_completed() {
            return Err(SubtreeError::NotCompleted);
        }
        let children = instance.facts().children();
        let checks: Vec<_> = children.map(|child| self.check_child(child)).collect();
        stream::iter(checks)
            .buffer_unordered(MAX_CONCURRENT)
            .try_collect()
            .await
    }

    async fn check_child(&self, child: &Child) -> Result<(), SubtreeError> {
        let id = child.id.as_str();
        let kind = self.types_of(child.app.as_deref()).workflow;
        let call = ActorCall {
            metadata: metadata(CHECK_SUBTREE, "true"),
            ..request(&kind, id, methods::WATCH, Vec::new())
        };
        let unverified = |why: String| SubtreeError::Unverified(id.to_owned(), why);
        let asked = async {
            let mut updates = self.actors()?.watch(&call).await?;
            updates.next().await.transpose()
        };
        match timeout(CHILD_TIMEOUT, asked).await {
            Ok(Ok(Some(update))) => read(&update).map_err(|text| SubtreeError::Child(id.to_owned(), text)),
            Ok(Ok(None)) => Err(unverified(
                "its sidecar closed the stream without an answer".to_owned(),
            )),
            Ok(Err(error)) => Err(unverified(error.to_string())),
            Err(_) => Err(unverified(format!(
                "no answer within {} s",
                CHILD_TIMEOUT.as_secs()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::OrchestrationStatus;
    use tonic::Code;

    use super::*;

    #[test]
    fn reads_answers_of_children() {
        let status = |status: OrchestrationStatus| {
            let found = WorkflowMetadata {
                runtime_status: status.into(),
                ..WorkflowMetadata::default()
            };
            any("durabletask.protos.backend.v1.OrchestrationMetadata", &found).into()
        };
        assert_eq!(read(&answer(None)), Ok(()));
        assert_eq!(read(&status(OrchestrationStatus::Terminated)), Ok(()));
        for running in [
            answer(Some(Err(NOT_COMPLETED.to_owned()))),
            status(OrchestrationStatus::Suspended),
        ] {
            assert_eq!(read(&running), Err(NOT_COMPLETED.to_owned()));
        }
        // An instance without a history is pending.
        assert!(read(&answer(Some(Ok(&Instance::new("a"))))).is_err());
    }

    #[test]
    fn last_words_decide_the_code() {
        let below = SubtreeError::Child("b".to_owned(), SubtreeError::NotCompleted.to_string());
        let nested = SubtreeError::Child("a".to_owned(), below.to_string()).refused("x");
        assert_eq!(nested.code(), Code::AlreadyExists);
        assert_eq!(
            nested.message(),
            "cannot recreate workflow with ID 'x': child workflow 'a': child workflow 'b': orchestration has not yet \
             completed"
        );
        let below = SubtreeError::Unverified("b".to_owned(), "no answer".to_owned());
        for unverified in [
            below.refused("x"),
            SubtreeError::Child("a".to_owned(), below.to_string()).refused("x"),
        ] {
            assert_eq!(unverified.code(), Code::Unavailable);
            let text = "failed to verify child workflow 'b' is in a terminal state: no answer";
            assert!(unverified.message().ends_with(text), "{unverified:?}");
        }
    }
}
