//! What can go wrong with actors.

use outrigger_actors::turns::TooDeep;
use tonic::{Code, Status};

use super::ReminderError;

/// Why an actor was not called, or its state, timers and reminders not used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ActorError {
    /// There is no placement service.
    #[error("placement service is not configured: name it with --placement-host-address")]
    NoPlacement,
    /// Kubernetes without a namespace.
    #[error("actors must have a namespace configured when running in Kubernetes mode")]
    NoNamespace,
    /// The sidecar ends.
    #[error("actor runtime is closed")]
    Ended,
    /// A type, id or name that cannot be one; the text names it.
    #[error("invalid request: {0}")]
    Illegal(String),
    /// A type of the sidecar's own, which apps do not use. The text is Dapr's, which clients compare.
    #[error(
        "actor type {0:?} is reserved for the Dapr workflow runtime; direct actor API access is not permitted"
    )]
    Reserved(String),
    /// Nobody hosts the type. The text is Dapr's, which clients compare; what helps is in `docs/reference/actors.md`.
    #[error(
        "failed to lookup actor: api error: code = FailedPrecondition desc = did not find address for actor '{kind}/{id}'"
    )]
    NoAddress {
        /// Actor type.
        kind: String,
        /// Actor id.
        id: String,
    },
    /// The turn has as many calls as it may have.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
    /// The actor is another sidecar's by now.
    #[error("remote actor moved")]
    Moved,
    /// The actors of the fleet are spread anew, and the call took too long to wait for it.
    #[error("placement is disseminating")]
    Disseminating,
    /// The app does not know the method.
    #[error("actor method not found: {0}: the app answered 404; see that its actor type has the method")]
    NoMethod(String),
    /// The call was not made, or failed; the text says why.
    #[error("{0}")]
    Invoke(String),
    /// A policy's time limit passed.
    #[error("context deadline exceeded")]
    Timeout,
    /// The sidecar that hosts the actor refused, or was not reached.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Peer(Status),
    /// The connection to the sidecar that hosts the actor broke while the call may have been under way there.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Cut(Status),
    /// An internal actor refused.
    #[error("{}", .0.message())]
    Internal(Status),
    /// State of an actor that is not active here.
    #[error("actor instance is missing")]
    NotActive,
    /// No state store of actors.
    #[error(
        "the state store is not configured to use the actor runtime. Have you set the - name: actorStateStore value: \
         \"true\" in your state store component file?"
    )]
    NoStore,
    /// State could not be read.
    #[error("error getting actor state: {0}")]
    StateGet(String),
    /// State could not be written.
    #[error("error saving actor transaction state: {0}")]
    StateSave(String),
    /// State was not written: the store has another version than the ETag names.
    #[error("error saving actor transaction state: {0}")]
    StateChanged(String),
    /// A reminder or timer that the request describes wrongly.
    #[error(transparent)]
    Reminder(#[from] ReminderError),
    /// A timer cannot be.
    #[error("error creating actor timer: {0}")]
    Timer(String),
}

/// How Dapr's sidecars begin what an actor failed with.
const INVOKING: &str = "error invoke actor method: ";

impl ActorError {
    /// The status of an internal actor, here or at another sidecar: its code, and its text without what was put around it.
    /// The code of one at a sidecar of Dapr is `Internal` in most cases.
    pub fn status(&self) -> Option<(Code, &str)> {
        let (Self::Internal(status) | Self::Peer(status) | Self::Cut(status)) = self else {
            return None;
        };
        let text = status.message();
        Some((status.code(), text.strip_prefix(INVOKING).unwrap_or(text)))
    }

    /// Whether the rules that a user has for the type may help: the app, or the way to it, failed.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Invoke(_) | Self::Timeout | Self::Peer(_)) || self.is_about_place()
    }

    /// Whether the same call may succeed when it is made again: the actor was looked for in a wrong place.
    pub fn is_about_place(&self) -> bool {
        match self {
            Self::NoAddress { .. } | Self::Moved | Self::Disseminating => true,
            Self::Peer(status) | Self::Cut(status) => match status.code() {
                Code::Unavailable => true,
                Code::Internal => {
                    let text = status.message();
                    text == "error invoke actor method: remote actor moved"
                        || text.ends_with(": placement is disseminating")
                }
                _ => false,
            },
            _ => false,
        }
    }
}
