//! What can go wrong with publishing.

use std::fmt;

use outrigger_component::Pairs;

use crate::outbound::Cause;

/// Why events were not published.
#[derive(Debug)]
pub enum PublishError {
    /// No broker is named.
    NoName,
    /// There is none of this name.
    NotFound {
        /// The name.
        pubsub: String,
        /// What the request says beside the event.
        metadata: Pairs,
    },
    /// No topic is named.
    NoTopic {
        /// Name of the pub/sub component.
        pubsub: String,
    },
    /// `rawPayload` says neither yes nor no.
    RawPayload {
        /// Name of the pub/sub component.
        pubsub: String,
        /// The value, as the request has it.
        value: String,
    },
    /// What was given as an event is none.
    Malformed {
        /// Name of the pub/sub component.
        pubsub: String,
        /// App id of the publisher.
        app_id: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The app may not publish there.
    Forbidden {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// App id of the publisher.
        app_id: String,
    },
    /// The entries of a bulk cannot be told apart.
    EntryIds {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// App id of the publisher.
        app_id: String,
    },
    /// The metadata of a bulk are too many for each of its entries to have them.
    Metadata {
        /// Name of the pub/sub component.
        pubsub: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The broker does not have it, or nobody knows.
    Publish {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
        /// Of a bulk: the entries that were not published, each with its reason. The others were.
        failed: Vec<(String, String)>,
    },
}

/// For whoever operates the sidecar: what an app is told, its API says.
impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str("pubsub name is empty"),
            Self::NotFound { pubsub, .. } => write!(f, "pubsub {pubsub} is not found"),
            Self::NoTopic { pubsub } => write!(f, "topic is empty in pubsub {pubsub}"),
            Self::RawPayload { value, .. } => write!(f, "rawPayload must be true or false, not '{value}'"),
            Self::Malformed { cause, .. } | Self::Metadata { cause, .. } => f.write_str(cause),
            Self::Forbidden {
                pubsub,
                topic,
                app_id,
            } => write!(
                f,
                "topic {topic} is not allowed for app id {app_id}: see allowedTopics, protectedTopics and \
                 publishingScopes of pubsub {pubsub}"
            ),
            Self::EntryIds { .. } => f.write_str("entryId is duplicated or not present for entry"),
            Self::Publish {
                pubsub, topic, cause, ..
            } => write!(
                f,
                "error when publishing to topic {topic} in pubsub {pubsub}: {cause}"
            ),
        }
    }
}
