//! Publish/subscribe: brokers behind one thin trait.
//!
//! A broker adapter publishes, and turns what a consumer group gets into a [`Subscription`]: a stream of messages, each
//! with a [`Receipt`]. Retries, dead letters and the order of attempts are the delivery engine's: its queue takes
//! [`Message::ordering_key`], [`Event::Revoked`] as the revocation of keys, and each settlement goes into the
//! receipt. CloudEvents envelopes, scopes and resiliency are the sidecar's.
//!
//! Back-pressure: no more than [`Subscribe::in_flight`] messages are unsettled at a time, and no more than 32 MiB of them;
//! the broker keeps the rest.

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
/// How often a message became a dead letter, in its metadata. Brokers with headers keep it with the message, also those that
/// keep no other metadata.
pub const DEAD_LETTER_HOPS: &str = "deadletterhops";
/// Entries of a bulk that are under way at once where the broker has no bulk of its own.
const BULK_AT_ONCE: usize = 64;
/// The names of the time to live in request metadata.
const TTL: [&str; 2] = ["ttlInSeconds", "ttl"];

/// What a broker can do; the sidecar does what it can of the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Drops messages whose time to live has passed (`MESSAGE_TTL`). Without it the sidecar notes an expiration in the
    /// envelope, and drops what comes late.
    pub ttl: bool,
    /// Publishes many messages in one exchange (`BULK_PUBSUB`).
    pub bulk_publish: bool,
    /// Takes topics with wildcards in subscriptions (`SUBSCRIBE_WILDCARDS`).
    pub wildcards: bool,
    /// What is published while a group's consumers are away, or was not acknowledged by them, waits for them. Without
    /// it messages are delivered at most once.
    pub at_least_once: bool,
}

impl Features {
    /// Their names in the contract.
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

/// A message to be published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publish {
    /// The topic to publish to.
    pub topic: String,
    /// The payload.
    pub data: Bytes,
    /// Media type of the payload, where it is known.
    pub content_type: Option<String>,
    /// Of the payload as the app said, or the envelope's: for protocols that have a place for it. As Dapr tells brokers no
    /// content type of a single message, `content_type` is without it there.
    pub declared: Option<String>,
    /// Request metadata.
    pub metadata: Pairs,
}

/// Messages to be published to one topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkPublish {
    /// The topic to publish to.
    pub topic: String,
    /// The entries, published in this order.
    pub entries: Vec<BulkEntry>,
    /// Metadata of the request. Entries [have it already](inherit).
    pub metadata: Pairs,
}

/// A message of a bulk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BulkEntry {
    /// Unique in its bulk.
    pub id: String,
    /// The payload.
    pub data: Bytes,
    /// Media type of the payload, where it is known.
    pub content_type: Option<String>,
    /// Metadata of the entry, with that of the request.
    pub metadata: Pairs,
}

/// An entry of a bulk that was not published.
#[derive(Debug)]
pub struct Failed {
    /// [`BulkEntry::id`].
    pub id: String,
    /// The broker's error.
    pub error: Error,
}

/// What a subscription asks of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscribe {
    /// The topic, with wildcards where [`Features::wildcards`] says so.
    pub topic: String,
    /// Metadata of the subscription.
    pub metadata: Pairs,
    /// Messages that may be unsettled at once; at least 1.
    pub in_flight: NonZeroUsize,
}

/// Messages of one ordering key are delivered in the order they were published.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderingKey {
    /// Of the topic, where the broker has partitions; [`Event::Revoked`] names it.
    pub partition: Option<u32>,
    /// The ordering key, where there is one.
    pub key: Option<Bytes>,
}

/// A message from a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was published, which is not what was subscribed to where that has wildcards.
    pub topic: Arc<str>,
    /// The payload.
    pub data: Bytes,
    /// Of the payload, where the broker tells.
    pub content_type: Option<String>,
    /// Event metadata.
    pub metadata: Pairs,
    /// `None`: the message may be handled in any order.
    pub ordering_key: Option<OrderingKey>,
    /// How often the broker has delivered it before, to anybody of the group; `None` where it does not tell.
    pub redelivered: Option<u32>,
}

/// A message and the way to settle it.
#[derive(Debug)]
pub struct Delivery {
    /// What to handle.
    pub message: Message,
    /// Dropped unsettled, the message is returned to the broker.
    pub receipt: Receipt,
}

/// What comes out of a subscription.
#[derive(Debug)]
pub enum Event {
    /// A message of the broker, to be settled.
    Message(Delivery),
    /// A rebalance took partitions away.
    Revoked(Revoked),
    /// The broker has all messages of an ordering key that were [returned with a rejected one](Receipt::reject_key). Further
    /// ones come in order again.
    Reopened(OrderingKey),
}

/// Partitions that belong to another consumer now. Settlements of their messages have no effect any more.
#[derive(Debug)]
pub struct Revoked {
    /// As in [`OrderingKey::partition`].
    pub partitions: Vec<u32>,
    /// Dropped when the engine has taken note: the rebalance waits for it.
    pub noted: oneshot::Sender<()>,
}

/// A broker, for one consumer group.
#[async_trait]
pub trait PubSub: Send + Sync {
    /// The optional features that it supports.
    fn features(&self) -> Features;

    /// Publishes a message. When it returns, the broker has it as safely as its settings say.
    ///
    /// # Errors
    /// `InvalidRequest` for metadata that cannot be used; `Unavailable` and `Timeout` where nobody knows whether the
    /// broker has the message.
    async fn publish(&self, message: &Publish) -> Result<()>;

    /// Publishes messages, those of one ordering key in their order. The entries that were not published, each with
    /// its reason; none where all were.
    ///
    /// # Errors
    /// Nothing was published.
    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        publish_each(self, bulk, BULK_AT_ONCE).await
    }

    /// Joins the consumer group of the component on a topic. When it returns the group stands: what is published from
    /// then on comes. A lost connection does not end the subscription; the component connects again.
    ///
    /// # Errors
    /// What makes subscribing impossible.
    async fn subscribe(&self, request: Subscribe) -> Result<Subscription>;

    /// Fetches no more messages for any subscription, for good. Those that were fetched still come, and can be settled. A broker
    /// that cannot do so changes nothing.
    ///
    /// # Errors
    /// The broker failed to pause.
    async fn pause(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the broker answers.
    ///
    /// # Errors
    /// The broker cannot be reached, or refuses this component.
    async fn ping(&self) -> Result<()>;

    /// Ends what the component runs, its subscriptions too: what they have not settled is delivered again later.
    async fn close(&self);
}

/// Publishes the entries of a bulk as messages of their own, beginning them in their order and `at_once` at a time: what
/// [`PubSub::publish_bulk`] does by itself.
///
/// # Errors
/// None: what fails is in the list.
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
        // Tokio's turns for fairness would let later ones begin first.
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
    /// What it takes in memory, bytes: payload, metadata, media type and key. Its topic is not counted, which messages share.
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
    /// An entry as a message of its own.
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
    /// A value of the request metadata; any case. An empty one is none.
    pub fn property(&self, name: &str) -> Option<&str> {
        property(&self.metadata, name)
    }

    /// The time to live: `ttlInSeconds` or `ttl`, seconds or a duration of Go.
    ///
    /// # Errors
    /// `InvalidRequest` for another text, and for no time at all.
    pub fn ttl(&self) -> Result<Option<Duration>> {
        time_to_live(&self.metadata)
    }

    /// The ordering key: `partitionKey`.
    pub fn partition_key(&self) -> Option<&str> {
        self.property(PARTITION_KEY)
    }
}

/// Adds metadata of a request to those of one of its entries. What the entry says itself wins, in any case and under either
/// name of the time to live.
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

/// The time to live in request metadata: `ttlInSeconds` or `ttl`, seconds or a duration of Go.
///
/// # Errors
/// `InvalidRequest` for another text, and for no time at all.
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

/// A value of request metadata; any case. An empty one is none.
pub fn property<'a>(metadata: &'a Pairs, name: &str) -> Option<&'a str> {
    let value = metadata.get(name).or_else(|| {
        let mut others = metadata.iter();
        others.find_map(|(other, value)| other.eq_ignore_ascii_case(name).then_some(value))
    });
    value.map(String::as_str).filter(|value| !value.is_empty())
}

/// Whether a value of request metadata says yes; anything unknown is no.
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
    fn a_time_to_live_is_seconds_or_a_duration() {
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
    fn the_size_of_a_message_is_not_its_payload_alone() {
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
    fn entries_inherit_what_they_do_not_say() {
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
