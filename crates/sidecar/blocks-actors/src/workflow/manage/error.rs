//! What the management API answers where it does not do what it is asked.

use crate::actors::ActorError;
use crate::workflow::service::Workflows;

/// Longest instance id that the management API takes, bytes.
const MAX_ID: usize = 64;

/// An operation of the management API, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance.
    Start,
    /// Start one from an event of another.
    Rerun,
    /// Say how it is.
    Get,
    /// Say which there are.
    List,
    /// Pause it.
    Pause,
    /// Let it go on.
    Resume,
    /// End it.
    Terminate,
    /// Remove what is stored of it.
    Purge,
    /// Send it an event.
    RaiseEvent,
}

/// Why the management API did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkflowError {
    /// There can be no workflows.
    #[error(transparent)]
    Unavailable(ActorError),
    /// No workflow was named.
    #[error("workflow name is not configured")]
    NoName,
    /// No event was named.
    #[error("missing workflow event name")]
    NoEventName,
    /// No instance was named.
    #[error("no instance ID was provided")]
    NoId,
    /// An instance cannot have this id.
    #[error("workflow instance ID '{0}' is invalid: only alphanumeric and underscore characters are allowed")]
    InvalidId(String),
    /// Its id is too long.
    #[error("workflow instance ID exceeds the max length of {MAX_ID} characters")]
    LongId,
    /// There is no such instance.
    #[error("unable to find workflow with the provided instance ID: {0}")]
    NotFound(String),
    /// Anything else: what was to be done, to which instance (or workflow), and why it was not.
    #[error("{}", text(*.0, .1, .2))]
    Failed(Action, String, String),
}

fn text(action: Action, what: &str, cause: &str) -> String {
    match action {
        Action::Start => format!("error starting workflow '{what}': {cause}"),
        Action::Rerun => format!("error running workflow '{what}' again: {cause}"),
        Action::Get => format!("error while getting workflow info on instance '{what}': {cause}"),
        Action::List => format!("error while listing workflows: {cause}"),
        Action::Pause => format!("error pausing workflow {what}: {cause}"),
        Action::Resume => format!("error resuming workflow {what}: {cause}"),
        Action::Terminate => format!("error terminating workflow '{what}': {cause}"),
        Action::Purge => format!("error purging workflow {what}: {cause}"),
        Action::RaiseEvent => format!("error raising event on workflow '{what}': {cause}"),
    }
}

impl Workflows {
    pub(crate) fn ready(&self, id: &str) -> Result<(), WorkflowError> {
        self.check().map_err(WorkflowError::Unavailable)?;
        match id {
            "" => Err(WorkflowError::NoId),
            _ => Ok(()),
        }
    }
}

/// Ids become keys of stores and names of reminders.
pub(crate) fn check_new_id(id: &str) -> Result<(), WorkflowError> {
    if id.len() > MAX_ID {
        return Err(WorkflowError::LongId);
    }
    let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    match id.chars().all(fits) {
        true => Ok(()),
        false => Err(WorkflowError::InvalidId(id.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_new_instances_have_rules() {
        for id in ["a", "A_b-9", "ünï", &"x".repeat(64)] {
            assert!(check_new_id(id).is_ok(), "{id}");
        }
        assert!(matches!(
            check_new_id(&"x".repeat(65)),
            Err(WorkflowError::LongId)
        ));
        for id in ["a b", "a:b", "a/b", "a|b", "a.b"] {
            let error = check_new_id(id).unwrap_err();
            assert!(matches!(error, WorkflowError::InvalidId(_)), "{id}");
        }
    }
}
