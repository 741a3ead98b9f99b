//! Errors of the engine. Clients compare their texts.

use crate::payload::Limit;

/// The text that clients expect for a missing instance.
pub const NO_INSTANCE: &str = "no such instance exists";
/// The text that clients expect for an instance that has not ended.
pub const NOT_COMPLETED: &str = "orchestration has not yet completed";

/// Why an instance was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// An instance of this id is running.
    #[error("an active workflow with ID '{0}' already exists")]
    Active(String),
    /// The instance of this id has ended, but one of its activities may still answer.
    #[error("a terminated workflow with ID '{0}' is already awaiting an activity result")]
    AwaitsResult(String),
    /// The request has no start event.
    #[error("the request to create workflow '{0}' has no start event")]
    NoStart(String),
}

/// Why an event was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is no instance.
    #[error("{NO_INSTANCE}")]
    Unknown,
    /// The instance is stalled and takes no events.
    #[error("workflow is stalled")]
    Stalled,
    /// The inbox is full.
    #[error(
        "workflow has {most} unprocessed events, the maximum: try again later",
        most = crate::stored::MAX_ENTRIES
    )]
    Full,
    /// The raised event would stall the instance.
    #[error("{}", .limit.with_event(*.size))]
    TooLarge {
        /// Size of the instance with the event, bytes.
        size: usize,
        /// The exceeded limit.
        limit: Limit,
    },
}

/// Why an instance was not purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// There is no instance.
    #[error("{NO_INSTANCE}")]
    Unknown,
    /// The instance is stalled.
    #[error("workflow is stalled")]
    Stalled,
    /// The instance has not completed.
    #[error("{NOT_COMPLETED}")]
    NotCompleted,
}

/// Why a worker's answer was rejected. The step is not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// An action without content.
    #[error("workflow '{instance}': the worker's action {action} is of an unknown action type")]
    UnknownAction {
        /// Id of the workflow instance.
        instance: String,
        /// The id of the action.
        action: i32,
    },
    /// The answer has too many actions.
    #[error(
        "workflow '{instance}': the worker's answer has {actions} actions, more than the maximum of {most} for one step; \
         start activities and children in several steps",
        most = crate::step::MAX_ACTIONS
    )]
    TooManyActions {
        /// Id of the workflow instance.
        instance: String,
        /// Number of actions of the answer.
        actions: usize,
    },
    /// Two activities, timers or children with the same number: their results would be ambiguous.
    #[error("workflow '{instance}': the worker's answer has more than one action with the id {action}")]
    RepeatedAction {
        /// Id of the workflow instance.
        instance: String,
        /// The id of the action.
        action: i32,
    },
    /// A child with its parent's id in the same app: the instance would wait for itself.
    #[error(
        "workflow '{instance}': the worker's action {action} creates the child workflow '{child}' with the instance id of its \
         parent; give the child another instance id, or none"
    )]
    OwnChild {
        /// Id of the workflow instance.
        instance: String,
        /// The id of the action.
        action: i32,
        /// Name of the child workflow.
        child: String,
    },
    /// It sends to another instance, which the contract does not allow.
    #[error("workflow '{instance}': don't know how to process outbound message '{what}'")]
    Outbound {
        /// Id of the workflow instance.
        instance: String,
        /// The kind of action.
        what: &'static str,
    },
}

/// Why an instance was not rerun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RerunError {
    /// The source does not exist.
    #[error("workflow instance does not exist with ID '{0}'")]
    NoSource(String),
    /// The source has not completed.
    #[error("'{0}' is not in a terminal state")]
    NotTerminal(String),
    /// The source was tampered with. Its id.
    #[error("'{0}': cannot rerun a workflow whose history was tampered with")]
    Tampered(String),
    /// The source is a child workflow: rerun its parent. Its id.
    #[error("'{0}': cannot rerun from child-workflows")]
    IsChild(String),
    /// An event of this kind cannot be rerun. Clients compare the text, which includes the kind.
    #[error("target event '*protos.HistoryEvent_{0}' with ID '{1}' is not an event that can be rerun")]
    NotScheduled(String, u32),
    /// The source has no event of this id.
    #[error("does not have history event with ID '{0}'")]
    NoEvent(u32),
    /// A timer has no input.
    #[error("cannot write input to timer event '{0}'")]
    TimerInput(u32),
    /// Only children have an instance id.
    #[error("cannot set new child workflow instance ID on {0} event '{1}'")]
    NotAChild(&'static str, u32),
    /// Source and target have the same id.
    #[error("rerun workflow instance ID must be different from the original instance ID")]
    SameId(String),
    /// The child to start from would have the id of the new run, in the same app.
    #[error(
        "new child workflow instance ID must be different from the rerun workflow instance ID '{0}'; give another one, or none"
    )]
    OwnChild(String),
    /// The target exists.
    #[error("workflow '{0}' has already been created")]
    TargetExists(String),
    /// The state sent to the target has nothing to run.
    #[error("expect rerun workflow inbox to not be empty: '{0}'")]
    Nothing(String),
    /// The state sent to the target has an event that cannot be started.
    #[error("the inbox of the rerun of workflow '{0}' has an event that cannot be rerun")]
    Unexpected(String),
}

/// Remedy for broken stored state.
const BROKEN: &str = "restore it from a backup, or purge the workflow by force (POST .../purge?force=true, or PurgeInstances with force)";

/// Why the stored state of an instance cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    /// A value cannot be decoded.
    #[error("workflow '{instance}': the stored value of key '{key}' cannot be read: {why}; {BROKEN}")]
    Malformed {
        /// Id of the workflow instance.
        instance: String,
        /// The key within its state.
        key: String,
        /// The decoder's message.
        why: String,
    },
    /// An entry counted by the metadata is missing: it may have changed since the metadata were read.
    #[error(
        "workflow '{instance}': {table} key '{key}' declared in metadata ({table}Length={length}) but missing from state \
         store ({BROKEN})"
    )]
    Missing {
        /// Id of the workflow instance.
        instance: String,
        /// `history` or `inbox`.
        table: &'static str,
        /// The key within its state.
        key: String,
        /// Number of entries by the metadata.
        length: usize,
    },
}
