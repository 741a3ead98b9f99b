//! Publish/subscribe: a thin trait for brokers.
//!
//! A broker adapter publishes, and turns the messages of a consumer group into a [`Subscription`]: a stream
//! of messages, each with a [`Receipt`]. The delivery engine decides retries, dead letters and the order of
//! attempts. Its queue uses [`Message::ordering_key`], takes [`Event::Revoked`] as the revocation of keys,
//! and passes each settlement to the receipt. The sidecar handles CloudEvents, scopes and resiliency.
//!
//! Backpressure: at most [`Subscribe::in_flight`] messages and 32 MiB are unsettled at a time; the broker
//! keeps the rest.

mod feed;
mod keys;
mod prefetch;
mod receipt;

use std::{collections::HashSet, num::NonZeroUsize, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::FuturesOrdered};
use outrigger_resources::value::{go_nanos, truthy};
use tokio::{sync::oneshot, task::unconstrained};

pub use self::{
    feed::{Feed, Subscription, Window},
    prefetch::Prefetch,
    receipt::Receipt,
};
pub use outrigger_delivery::Settlement;

use crate::{Error, Pairs, Result};

/// Publish metadata: the ordering key of a message.
pub const PARTITION_KEY: &str = "partitionKey";
/// Metadata: how often the message was dead-lettered. Brokers with headers store it with the message even if
/// they store no other metadata.
pub const DEAD_LETTER_HOPS: &str = "deadletterhops";
/// Concurrent publishes of a bulk request if the broker has no bulk operation.
const BULK_AT_ONCE: usize = 64;
/// Names of the time to live in request metadata.
const TTL: [&str; 2] = ["ttlInSeconds", "ttl"];

/// Features of a broker; the sidecar emulates missing ones where possible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Drops messages after their time to live (`MESSAGE_TTL`). Without it the sidecar writes an expiration
    /// into the envelope and drops late messages.
    pub ttl: bool,
    /// Publishes many messages in one request (`BULK_PUBSUB`).
    pub bulk_publish: bool,
    /// Accepts wildcards in subscribed topics (`SUBSCRIBE_WILDCARDS`).
    pub wildcards: bool,
    /// Keeps unacknowledged messages, and those published while a group has no consumer. Without it, delivery
    /// is at most once.
    pub at_least_once: bool,
}

impl Features {
    /// Feature names on the wire.
    pub fn names(self) -> Vec<&'static str> {
        let named = [
            (self.ttl, "MESSAGE_TTL"),
            (self.bulk_publish, "BULK_PUBSUB"),
            (self.wildcards, "SUBSCRIBE_WILDCARDS"),
        ];
        named
            .into_iter()
            .filter_map(|(has, name)| has.then_some(name))
            .collect()
    }
}

/// A message to publish.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publish {
    /// The topic to publish to.
    pub topic: String,
    /// The payload.
    pub data: Bytes,
    /// Media type of the payload, if known.
    pub content_type: Option<String>,
    /// Media type declared by the app or the envelope, for protocols with a field for it. Dapr passes brokers
    /// no content type of a single message, so `content_type` is empty there.
    pub declared: Option<String>,
    /// Request metadata.
    pub metadata: Pairs,
}

/// Messages to publish to one topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkPublish {
    /// The topic to publish to.
    pub topic: String,
    /// The entries, published in this order.
    pub entries: Vec<BulkEntry>,
    /// Request metadata. Entries [include it](inherit).
    pub metadata: Pairs,
}

/// One message of a bulk request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkEntry {
    /// Unique within the request.
    pub id: String,
    /// The payload.
    pub data: Bytes,
    /// Media type of the payload, if known.
    pub content_type: Option<String>,
    /// Metadata of the entry, including that of the request.
    pub metadata: Pairs,
}

/// A bulk entry that was not published.
#[derive(Debug)]
pub struct Failed {
    /// [`BulkEntry::id`].
    pub id: String,
    /// The broker's error.
    pub error: Error,
}

/// A subscription request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic, with wildcards if [`Features::wildcards`] is set.
    pub topic: String,
    /// Subscription metadata.
    pub metadata: Pairs,
    /// Maximum unsettled messages.
    pub in_flight: NonZeroUsize,
}

/// Messages of one ordering key are delivered in publish order.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderingKey {
    /// Partition of the topic, if the broker has partitions; [`Event::Revoked`] names it.
    pub partition: Option<u32>,
    /// The ordering key, if any.
    pub key: Option<Bytes>,
}

/// A message from a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic of publication; differs from the subscribed topic if that has wildcards.
    pub topic: Arc<str>,
    /// The payload.
    pub data: Bytes,
    /// Media type of the payload, if the broker stores it.
    pub content_type: Option<String>,
    /// Event metadata.
    pub metadata: Pairs,
    /// `None` if messages may be handled in any order.
    pub ordering_key: Option<OrderingKey>,
    /// Earlier deliveries to any consumer of the group; `None` if unknown.
    pub redelivered: Option<u32>,
}

/// A message and its receipt.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// Dropping it unsettled returns the message to the broker.
    pub receipt: Receipt,
}

/// An event of a subscription.
#[derive(Debug)]
pub enum Event {
    /// A message to settle.
    Message(Delivery),
    /// A rebalance took partitions away.
    Revoked(Revoked),
    /// The broker has received all messages of a key that were [returned with a rejected
    /// one](Receipt::reject_key). Later messages arrive in order again.
    Reopened(OrderingKey),
}

/// Partitions assigned to another consumer. Settling their messages has no effect.
#[derive(Debug)]
pub struct Revoked {
    /// As in [`OrderingKey::partition`].
    pub partitions: Vec<u32>,
    /// Dropped once the engine has recorded the revocation; the rebalance waits for that.
    pub noted: oneshot::Sender<()>,
}

/// A broker, for one consumer group.
#[async_trait]
pub trait PubSub: Send + Sync {
    /// Supported optional features.
    fn features(&self) -> Features;

    /// Whether bulk subscriptions deliver each message at once (`BULK_SUBSCRIBE_IMMEDIATE`): the broker sends the
    /// next message only after the last one is settled.
    fn is_bulk_immediate(&self) -> bool {
        false
    }

    /// Publishes a message. On return, the broker has stored it as safely as its settings require.
    ///
    /// # Errors
    /// `InvalidRequest` for invalid metadata; `Unavailable` and `Timeout` if the message may or may not have
    /// been stored.
    async fn publish(&self, message: &Publish) -> Result<()>;

    /// Publishes messages, keeping the order within each ordering key. Returns the failed entries.
    ///
    /// # Errors
    /// Nothing was published.
    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        publish_each(self, bulk, BULK_AT_ONCE).await
    }

    /// Joins the component's consumer group on a topic. Messages published after the return are delivered.
    /// After a lost connection the component reconnects.
    ///
    /// # Errors
    /// Subscribing is impossible.
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription>;

    /// Stops fetching messages for all subscriptions, permanently. Messages already fetched are still
    /// delivered and can be settled. Brokers without support ignore this.
    ///
    /// # Errors
    /// The broker failed to pause.
    async fn pause(&self) -> Result<()> {
        Ok(())
    }

    /// Checks that the broker responds.
    ///
    /// # Errors
    /// The broker is unreachable or rejects the component.
    async fn ping(&self) -> Result<()>;

    /// Ends the subscriptions and the component's tasks. Unsettled messages are redelivered later.
    async fn close(&self);
}

/// Publishes each entry of a bulk as a single message, started in order, `at_once` at a time. Default of
/// [`PubSub::publish_bulk`].
///
/// # Errors
/// Failures are in the returned list.
pub async fn publish_each(
    broker: &(impl PubSub + ?Sized),
    bulk: &BulkPublish,
    at_once: usize,
) -> Result<Vec<Failed>> {
    let (mut running, mut failed) = (FuturesOrdered::new(), Vec::new());
    for entry in &bulk.entries {
        if running.len() >= at_once {
            failed.extend(running.next().await.flatten());
        }
        // Tokio's cooperative budget could otherwise start later entries first.
        running.push_back(unconstrained(async move {
            let published = broker.publish(&bulk.message(entry)).await;
            published.err().map(|error| Failed {
                id: entry.id.clone(),
                error,
            })
        }));
    }
    while let Some(outcome) = running.next().await {
        failed.extend(outcome);
    }
    Ok(failed)
}

impl Message {
    /// Memory size in bytes: payload, metadata, media type and key. The topic is shared and not counted.
    pub fn size(&self) -> usize {
        let pairs = self.metadata.iter();
        let metadata: usize = pairs
            .map(|(name, value)| size_of::<(String, String)>() + name.len() + value.len())
            .sum();
        let key = self.ordering_key.as_ref().and_then(|key| key.key.as_ref());
        let content_type = self.content_type.as_ref();
        self.data.len() + metadata + key.map_or(0, Bytes::len) + content_type.map_or(0, String::len)
    }
}

impl BulkPublish {
    /// The entry as a single message.
    pub fn message(&self, entry: &BulkEntry) -> Publish {
        Publish {
            topic: self.topic.clone(),
            data: entry.data.clone(),
            content_type: entry.content_type.clone(),
            declared: entry.content_type.clone(),
            metadata: entry.metadata.clone(),
        }
    }
}

impl Publish {
    /// A value of the request metadata; case is ignored and empty counts as absent.
    pub fn property(&self, name: &str) -> Option<&str> {
        property(&self.metadata, name)
    }

    /// The time to live from `ttlInSeconds` or `ttl`: seconds or a Go duration.
    ///
    /// # Errors
    /// `InvalidRequest` for other texts and for zero.
    pub fn ttl(&self) -> Result<Option<Duration>> {
        time_to_live(&self.metadata)
    }

    /// The ordering key: `partitionKey`.
    pub fn partition_key(&self) -> Option<&str> {
        self.property(PARTITION_KEY)
    }
}

/// Adds request metadata to that of an entry. The entry's own values win, in any case and under either name
/// of the time to live.
pub fn inherit(own: &mut Pairs, request: &Pairs) {
    if own.is_empty() {
        own.clone_from(request);
        return;
    }
    let mut said: HashSet<String> = own.keys().map(|name| name.to_ascii_lowercase()).collect();
    let ttl = TTL.map(str::to_ascii_lowercase);
    if ttl.iter().any(|name| said.contains(name)) {
        said.extend(ttl);
    }
    let missing = request
        .iter()
        .filter(|(name, _)| !said.contains(&name.to_ascii_lowercase()));
    own.extend(missing.map(|(name, value)| (name.clone(), value.clone())));
}

/// The time to live from `ttlInSeconds` or `ttl`: seconds or a Go duration.
///
/// # Errors
/// `InvalidRequest` for other texts and for zero.
pub fn time_to_live(metadata: &Pairs) -> Result<Option<Duration>> {
    let Some((name, text)) = TTL
        .iter()
        .find_map(|name| Some((name, property(metadata, name)?)))
    else {
        return Ok(None);
    };
    let nanos = match text.parse::<i64>() {
        Ok(seconds) => seconds.checked_mul(1_000_000_000),
        Err(_) => go_nanos(text).ok(),
    };
    let ttl = nanos
        .and_then(|nanos| u64::try_from(nanos).ok())
        .filter(|nanos| *nanos > 0);
    ttl.map(|nanos| Some(Duration::from_nanos(nanos))).ok_or_else(|| {
        Error::invalid_request(format!(
            "invalid value {text:?} for the metadata property {name}: it must be seconds, or a duration like 30s, \
             and more than zero"
        ))
    })
}

/// A value of request metadata; case is ignored and empty counts as absent.
pub fn property<'a>(metadata: &'a Pairs, name: &str) -> Option<&'a str> {
    let value = metadata.get(name).or_else(|| {
        let mut others = metadata.iter();
        others.find_map(|(other, value)| other.eq_ignore_ascii_case(name).then_some(value))
    });
    value.map(String::as_str).filter(|value| !value.is_empty())
}

/// Whether a value of request metadata is truthy; unknown values are false.
pub fn flag(metadata: &Pairs, name: &str) -> Option<bool> {
    property(metadata, name).map(truthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(name: &str, value: &str) -> Publish {
        Publish {
            metadata: Pairs::from([(name.to_owned(), value.to_owned())]),
            ..Publish::default()
        }
    }

    #[test]
    fn parses_time_to_live() {
        for (name, text, seconds) in [("ttlInSeconds", "5", 5), ("TTL", "2m", 120), ("ttl", "3", 3)] {
            let ttl = publish(name, text).ttl().unwrap();
            assert_eq!(ttl, Some(Duration::from_secs(seconds)), "{name}={text}");
        }
        for text in ["0", "-1", "soon", "-3s", "99999999999999"] {
            let error = publish("ttlInSeconds", text).ttl().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert_eq!(publish("ttlInSeconds", "").ttl().unwrap(), None);
    }

    #[test]
    fn message_size_includes_metadata() {
        let bare = Message {
            topic: "orders".into(),
            data: Bytes::from_static(b"12345"),
            content_type: None,
            metadata: Pairs::new(),
            ordering_key: None,
            redelivered: None,
        };
        assert_eq!(bare.size(), 5);
        let full = Message {
            content_type: Some("text/plain".to_owned()),
            metadata: Pairs::from([("x".to_owned(), "y".repeat(1000))]),
            ordering_key: Some(OrderingKey {
                partition: None,
                key: Some(Bytes::from_static(b"key")),
            }),
            ..bare
        };
        assert_eq!(full.size(), 5 + 10 + size_of::<(String, String)>() + 1001 + 3);
    }

    #[test]
    fn entries_inherit_request_metadata() {
        let pairs = |given: &[(&str, &str)]| -> Pairs {
            let owned = given.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            owned.collect()
        };
        let request = pairs(&[("a", "1"), ("b", "1"), ("ttlInSeconds", "60")]);
        for (own, expected) in [
            (pairs(&[]), request.clone()),
            (
                pairs(&[("B", "2")]),
                pairs(&[("B", "2"), ("a", "1"), ("ttlInSeconds", "60")]),
            ),
            (
                pairs(&[("TTL", "5"), ("b", "")]),
                pairs(&[("TTL", "5"), ("a", "1"), ("b", "")]),
            ),
        ] {
            let mut inherited = own;
            inherit(&mut inherited, &request);
            assert_eq!(inherited, expected);
        }
    }
}
