//! Errors of actors.

use outrigger_actors::turns::TooDeep;
use tonic::{Code, Status};

use super::ReminderError;

/// Why an actor call, its state, a timer or a reminder failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ActorError {
    /// There is no placement service.
    #[error("placement service is not configured: name it with --placement-host-address")]
    NoPlacement,
    /// No namespace, in Kubernetes mode.
    #[error("actors must have a namespace configured when running in Kubernetes mode")]
    NoNamespace,
    /// The sidecar is shutting down.
    #[error("actor runtime is closed")]
    Ended,
    /// An invalid type, id or name; the text names it.
    #[error("invalid request: {0}")]
    Illegal(String),
    /// An internal type, which apps cannot use. Clients compare Dapr's text.
    #[error(
        "actor type {0:?} is reserved for the Dapr workflow runtime; direct actor API access is not permitted"
    )]
    Reserved(String),
    /// No host has the type. Clients compare Dapr's text; see `docs/reference/actors.md` for remedies.
    #[error(
        "failed to lookup actor: api error: code = FailedPrecondition desc = did not find address for actor '{kind}/{id}'"
    )]
    NoAddress {
        /// Actor type.
        kind: String,
        /// Actor id.
        id: String,
    },
    /// The turn has reached its reentrancy depth.
    #[error(transparent)]
    TooDeep(#[from] TooDeep),
    /// The actor has moved to another sidecar.
    #[error("remote actor moved")]
    Moved,
    /// A dissemination is in progress, and the call timed out waiting for it.
    #[error("placement is disseminating")]
    Disseminating,
    /// The app does not know the method; the text names it.
    #[error("actor method not found: {0}")]
    NoMethod(String),
    /// The call was not made or failed; the text says why.
    #[error("{0}")]
    Invoke(String),
    /// The policy's timeout expired.
    #[error("context deadline exceeded")]
    Timeout,
    /// The sidecar that hosts the actor rejected the call or was unreachable.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Peer(Status),
    /// The connection to the hosting sidecar broke while the call may have been running there.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Cut(Status),
    /// An internal actor returned an error.
    #[error("{}", .0.message())]
    Internal(Status),
    /// The state of an actor that is not active here.
    #[error("actor instance is missing")]
    NotActive,
    /// No actor state store is configured.
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
    /// State was not written: the ETag does not match.
    #[error("error saving actor transaction state: {0}")]
    StateChanged(String),
    /// An invalid reminder or timer request.
    #[error(transparent)]
    Reminder(#[from] ReminderError),
    /// A timer that cannot be created.
    #[error("error creating actor timer: {0}")]
    Timer(String),
}

/// Prefix of actor errors of Dapr's sidecars.
const INVOKING: &str = "error invoke actor method: ";

impl ActorError {
    /// The status of an internal actor, local or remote: its code, and its text without added prefixes. From
    /// a sidecar of Dapr the code is mostly `Internal`.
    pub fn status(&self) -> Option<(Code, &str)> {
        let (Self::Internal(status) | Self::Peer(status) | Self::Cut(status)) = self else {
            return None;
        };
        let text = status.message();
        Some((status.code(), text.strip_prefix(INVOKING).unwrap_or(text)))
    }

    /// Whether the type's policy should retry: the app, or the connection to it, failed.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::Invoke(_) | Self::Timeout | Self::Peer(_)) || self.is_about_place()
    }

    /// Whether a retry may succeed because the actor was looked up in the wrong place.
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
