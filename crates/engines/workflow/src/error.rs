//! Why something was not done. The texts are those that clients compare.

use crate::payload::Limit;

/// What clients look for where there is no instance.
pub const NO_INSTANCE: &str = "no such instance exists";

/// Why an instance was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// One of its id is not done yet.
    #[error("an active workflow with ID '{0}' already exists")]
    Active(String),
    /// One of its id is done, and an activity of it may still answer.
    #[error("a terminated workflow with ID '{0}' is already awaiting an activity result")]
    AwaitsResult(String),
    /// The request has no event that begins an execution.
    #[error("the request to create workflow '{0}' has no start event")]
    NoStart(String),
}

/// Why an event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is no instance.
    #[error("{NO_INSTANCE}")]
    Unknown,
    /// It cannot go on, and takes no events meanwhile.
    #[error("workflow is stalled")]
    Stalled,
    /// As many events as an instance may have wait for a step already.
    #[error(
        "workflow has {most} events that are not processed yet, the most it may have: try again later",
        most = crate::stored::MAX_ENTRIES
    )]
    Full,
    /// It was raised, and would stall the instance.
    #[error("{}", .limit.with_event(*.size))]
    TooLarge {
        /// Size of the instance with it, bytes.
        size: usize,
        /// The limit that is exceeded.
        limit: Limit,
    },
}

/// Why an instance was not purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// There is no instance.
    #[error("{NO_INSTANCE}")]
    Unknown,
    /// It cannot go on.
    #[error("workflow is stalled")]
    Stalled,
    /// It is not done.
    #[error("orchestration has not yet completed")]
    NotCompleted,
}

/// Why what a worker answered cannot be carried out. The step is not stored.
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
    /// More actions than one answer may have.
    #[error(
        "workflow '{instance}': the worker's answer has {actions} actions, more than the {most} that one turn may have; begin \
         activities and children in several steps",
        most = crate::step::MAX_ACTIONS
    )]
    TooManyActions {
        /// Id of the workflow instance.
        instance: String,
        /// Number of actions of the answer.
        actions: usize,
    },
    /// Two activities, timers or children of one number: the result of one would be taken for that of the other.
    #[error("workflow '{instance}': the worker's answer has more than one action with the id {action}")]
    RepeatedAction {
        /// Id of the workflow instance.
        instance: String,
        /// The id of the action.
        action: i32,
    },
    /// A child with the id of its parent, in the same app: the instance would wait for itself.
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
    /// It sends to another instance, which the contract's actors do not.
    #[error("workflow '{instance}': don't know how to process outbound message '{what}'")]
    Outbound {
        /// Id of the workflow instance.
        instance: String,
        /// The kind of action.
        what: &'static str,
    },
}

/// Why there is no new run of an instance from one of its events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RerunError {
    /// The source does not exist.
    #[error("workflow instance does not exist with ID '{0}'")]
    NoSource(String),
    /// It is not done.
    #[error("'{0}' is not in a terminal state")]
    NotTerminal(String),
    /// A child workflow cannot be rerun: rerun its parent. Its id.
    #[error("'{0}': cannot rerun from child-workflows")]
    IsChild(String),
    /// The event is none that can be done again: its kind, and its id. Clients compare the text with the kind in it.
    #[error("target event '*protos.HistoryEvent_{0}' with ID '{1}' is not an event that can be rerun")]
    NotScheduled(String, u32),
    /// There is no event of this id.
    #[error("does not have history event with ID '{0}'")]
    NoEvent(u32),
    /// A timer has no input.
    #[error("cannot write input to timer event '{0}'")]
    TimerInput(u32),
    /// Only children have an instance id of their own.
    #[error("cannot set new child workflow instance ID on {0} event '{1}'")]
    NotAChild(&'static str, u32),
    /// The target is the source.
    #[error("rerun workflow instance ID must be different from the original instance ID")]
    SameId(String),
    /// The child that the new run begins from would have the id of the new run, in the same app.
    #[error(
        "new child workflow instance ID must be different from the rerun workflow instance ID '{0}'; give another one, or none"
    )]
    OwnChild(String),
    /// The target is there already.
    #[error("workflow '{0}' has already been created")]
    TargetExists(String),
    /// What the target was sent has nothing to do.
    #[error("expect rerun workflow inbox to not be empty: '{0}'")]
    Nothing(String),
    /// What the target was sent has something that cannot be begun.
    #[error("the inbox of the rerun of workflow '{0}' holds an event that cannot be run again")]
    Unexpected(String),
}

/// What helps where the stored state of an instance is broken.
const BROKEN: &str = "restore it from a backup, or purge the workflow by force (POST .../purge?force=true, or PurgeInstances with force)";

/// Why the stored state of an instance cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoredError {
    /// A key's value is nothing that was stored there.
    #[error("workflow '{instance}': the stored value of key '{key}' cannot be read: {why}; {BROKEN}")]
    Malformed {
        /// Id of the workflow instance.
        instance: String,
        /// The key within its state.
        key: String,
        /// The decoder's words.
        why: String,
    },
    /// An entry that the metadata count is not there.
    #[error("workflow '{instance}': the stored key '{key}' is missing; {BROKEN}")]
    Missing {
        /// Id of the workflow instance.
        instance: String,
        /// The key within its state.
        key: String,
    },
}
