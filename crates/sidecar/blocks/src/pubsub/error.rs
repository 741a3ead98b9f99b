//! Errors of publishing.

use std::fmt;

use outrigger_component::Pairs;

use crate::outbound::Cause;

/// Why events were not published.
#[derive(Debug)]
pub enum PublishError {
    /// The request names no broker.
    NoName,
    /// There is no broker with this name.
    NotFound {
        /// The name.
        pubsub: String,
        /// The request metadata.
        metadata: Pairs,
    },
    /// The request names no topic.
    NoTopic {
        /// Name of the pub/sub component.
        pubsub: String,
    },
    /// `rawPayload` is not a boolean.
    RawPayload {
        /// Name of the pub/sub component.
        pubsub: String,
        /// The value in the request.
        value: String,
    },
    /// The payload is not a valid event.
    Malformed {
        /// Name of the pub/sub component.
        pubsub: String,
        /// App id of the publisher.
        app_id: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The app may not publish to the topic.
    Forbidden {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// App id of the publisher.
        app_id: String,
    },
    /// Entry ids of a bulk are missing or duplicated.
    EntryIds {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// App id of the publisher.
        app_id: String,
    },
    /// The metadata of a bulk are too large to be copied to each entry.
    Metadata {
        /// Name of the pub/sub component.
        pubsub: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The broker refused the message, or the outcome is unknown.
    Publish {
        /// Name of the pub/sub component.
        pubsub: String,
        /// Topic that was published to.
        topic: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
        /// In a bulk: the ids of the entries that failed, with the reasons. The others were published.
        failed: Vec<(String, String)>,
    },
}

/// For logs; the texts for apps are in the API.
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
