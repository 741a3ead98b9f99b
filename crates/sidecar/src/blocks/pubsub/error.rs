//! What can go wrong with publishing.

use crate::blocks::outbound::Cause;

/// Why events were not published.
#[derive(Debug)]
pub enum PublishError {
    /// No broker is named.
    NoName,
    /// There is none of this name.
    NotFound {
        /// The name.
        pubsub: String,
    },
    /// No topic is named.
    NoTopic {
        /// The broker.
        pubsub: String,
    },
    /// `rawPayload` says neither yes nor no.
    RawPayload {
        /// The broker.
        pubsub: String,
        /// What it says.
        value: String,
    },
    /// What was given as an event is none.
    Malformed {
        /// The broker.
        pubsub: String,
        /// The app.
        app_id: String,
        /// Why.
        cause: String,
    },
    /// The app may not publish there.
    Forbidden {
        /// The broker.
        pubsub: String,
        /// The topic.
        topic: String,
        /// The app.
        app_id: String,
    },
    /// The entries of a bulk cannot be told apart.
    EntryIds {
        /// The broker.
        pubsub: String,
        /// The topic.
        topic: String,
        /// The app.
        app_id: String,
    },
    /// The broker does not have it, or nobody knows.
    Publish {
        /// The broker.
        pubsub: String,
        /// The topic.
        topic: String,
        /// Why.
        cause: Cause,
        /// Of a bulk: the entries that were not published, each with its reason. The others were.
        failed: Vec<(String, String)>,
    },
}
