//! Errors of the management API.

use crate::actors::ActorError;
use crate::workflow::service::Workflows;

/// Maximum instance id, bytes.
const MAX_ID: usize = 64;

/// An operation, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance.
    Start,
    /// Rerun an instance from an event.
    Rerun,
    /// Get the status.
    Get,
    /// List instances.
    List,
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// Terminate it.
    Terminate,
    /// Purge it.
    Purge,
    /// Raise an event.
    RaiseEvent,
}

/// An instance, and the app whose workflow it is.
#[derive(Clone, Copy, Debug)]
pub struct InstanceId<'a> {
    /// The id.
    pub id: &'a str,
    /// The app's id; `None` or empty means this app.
    pub app: Option<&'a str>,
}

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkflowError {
    /// Workflows are unavailable.
    #[error(transparent)]
    Unavailable(ActorError),
    /// The workflow name is missing.
    #[error("workflow name is not configured")]
    NoName,
    /// The event name is missing.
    #[error("missing workflow event name")]
    NoEventName,
    /// The instance id is missing.
    #[error("no instance ID was provided")]
    NoId,
    /// The instance id is invalid.
    #[error("workflow instance ID '{0}' is invalid: only alphanumeric and underscore characters are allowed")]
    InvalidId(String),
    /// The app id is invalid.
    #[error(
        "workflow app ID '{0}' is invalid: only alphanumeric, dash and underscore characters are allowed"
    )]
    InvalidApp(String),
    /// The instance id is too long.
    #[error("workflow instance ID exceeds the max length of {MAX_ID} characters")]
    LongId,
    /// The instance does not exist.
    #[error("unable to find workflow with the provided instance ID: {0}")]
    NotFound(String),
    /// The id of a new instance is in use: workflow, cause.
    #[error("{}", text(Action::Start, .0, .1))]
    Exists(String, String),
    /// Any other failure: operation, instance or workflow, cause.
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

    /// The other app that an operation is for; `None` if it is this one.
    pub(crate) fn other_app<'a>(&self, app: Option<&'a str>) -> Result<Option<&'a str>, WorkflowError> {
        let app = app.filter(|app| !app.is_empty() && **app != *self.engine.app_id);
        match app {
            Some(app) if !app.chars().all(fits) => Err(WorkflowError::InvalidApp(app.to_owned())),
            app => Ok(app),
        }
    }
}

fn fits(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// Validates an id, which becomes part of store keys and reminder names.
pub(crate) fn check_new_id(id: &str) -> Result<(), WorkflowError> {
    if id.len() > MAX_ID {
        return Err(WorkflowError::LongId);
    }
    match id.chars().all(fits) {
        true => Ok(()),
        false => Err(WorkflowError::InvalidId(id.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_new_ids() {
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
