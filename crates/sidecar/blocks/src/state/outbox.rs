//! The transactional outbox: what a transaction writes is published if the transaction is committed, and only then.
//!
//! Before the transaction an event for each value goes to an internal topic of the app, and with the transaction a marker
//! for each event is stored. Whichever sidecar of the app gets an internal event looks for its marker ([`relay`]): where it
//! is, the transaction was committed, and the event goes on to the topic that the store names. So nothing is lost wherever
//! a sidecar is killed, and nothing is published that was not stored. Topic, event and marker are Dapr's, whose sidecars
//! may do either half.

mod event;
mod relay;
mod relays;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use outrigger_component::offload::offload;
use outrigger_component::pubsub::BulkEntry;
use outrigger_component::state::{Operation as Step, Set, Value};
use outrigger_resources::value::truthy;
use outrigger_runtime::components::Properties;
use outrigger_telemetry::trace::Parent;

pub(super) use relays::{Relays, SubscribedTopics};
pub(super) use transactions::Transactions;

use self::event::RequestContext;
use self::relays::InternalTopic;
use self::transactions::Running;
use crate::pubsub::{PubSubs, PublishError};

const LOG: &str = "dapr.outbox";
/// Request metadata of a value that is published in the place of another of its key, and not stored.
const PROJECTION: &str = "outbox.projection";

/// What the properties of a store say about its outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// Where events go that are committed: the broker.
    pubsub: String,
    topic: String,
    /// The broker that has the internal topic.
    internal_pubsub: String,
    /// As Dapr's sidecars name it.
    internal_topic: String,
    /// An event whose marker does not appear is dropped instead of being given back to the broker.
    discards: bool,
}

impl Settings {
    /// Where both a broker and a topic are named. `namespace`: that of the workload.
    pub(super) fn read(properties: &Properties, namespace: &str, app_id: &str) -> Option<Self> {
        // Unlike those of components, these names are case-sensitive.
        let text = |name: &str| {
            let item = properties.items.iter().find(|item| item.name == name);
            item.map_or("", |item| item.text()).to_owned()
        };
        let (pubsub, topic) = (text("outboxPublishPubsub"), text("outboxPublishTopic"));
        if pubsub.is_empty() || topic.is_empty() {
            return None;
        }
        let internal_pubsub = match text("outboxPubsub") {
            none if none.is_empty() => pubsub.clone(),
            named => named,
        };
        Some(Self {
            internal_topic: format!("{namespace}{app_id}{topic}outbox"),
            discards: truthy(&text("outboxDiscardWhenMissingState")),
            internal_pubsub,
            pubsub,
            topic,
        })
    }
}

/// The outbox of a store.
pub(super) struct Outbox {
    settings: Settings,
    pubsubs: Arc<PubSubs>,
    transactions: Arc<Transactions>,
    standing: SubscribedTopics,
    /// Nobody knows what became of the last transaction.
    is_in_doubt: AtomicBool,
}

/// Notes that nobody knows what became of a transaction, if it ends, or is given up, without [`OutcomeGuard::resolved`].
pub(super) struct OutcomeGuard<'a>(Option<&'a AtomicBool>);

impl OutcomeGuard<'_> {
    /// What became of it is known.
    pub(super) fn resolved(mut self) {
        if let Some(is_in_doubt) = self.0.take() {
            note(is_in_doubt, false);
        }
    }
}

impl Drop for OutcomeGuard<'_> {
    fn drop(&mut self) {
        if let Some(is_in_doubt) = self.0 {
            note(is_in_doubt, true);
        }
    }
}

/// Writes only what changes: callers on all cores read it.
fn note(is_in_doubt: &AtomicBool, now: bool) {
    if is_in_doubt.load(Ordering::Relaxed) != now {
        is_in_doubt.store(now, Ordering::Relaxed);
    }
}

/// What a transaction with an outbox consists of.
pub(super) struct Prepared {
    /// What the store gets: without projections, with markers.
    pub(super) operations: Vec<Step>,
    /// What the internal topic gets; the ids are those of the markers.
    pub(super) events: Vec<BulkEntry>,
}

impl Outbox {
    pub(super) fn new(
        settings: Settings,
        pubsubs: Arc<PubSubs>,
        transactions: Arc<Transactions>,
        standing: SubscribedTopics,
    ) -> Self {
        Self {
            settings,
            pubsubs,
            transactions,
            standing,
            is_in_doubt: AtomicBool::new(false),
        }
    }

    /// Where its internal events stand.
    fn place(&self) -> InternalTopic {
        InternalTopic {
            pubsub: self.settings.internal_pubsub.clone(),
            topic: self.settings.internal_topic.clone(),
        }
    }

    /// The app that the sidecar serves.
    pub(super) fn app_id(&self) -> &str {
        self.pubsubs.app_id()
    }

    /// Makes an event and a marker of every value that is written, of values of `size` bytes in all.
    pub(super) async fn prepare(&self, operations: Vec<Step>, size: usize, trace: &Parent) -> Prepared {
        let trace = trace.clone().without_made_up();
        let (app_id, pubsub) = (self.app_id().to_owned(), self.settings.internal_pubsub.clone());
        let work = move || {
            let origin = RequestContext {
                app_id: &app_id,
                pubsub: &pubsub,
                trace: &trace,
            };
            origin.prepare(operations)
        };
        offload(size, work).await
    }

    /// A transaction with these events begins.
    pub(super) fn begin(&self, events: &[BulkEntry]) -> Running {
        let markers = events.iter().map(|event| event.id.clone());
        self.transactions.begin(markers.collect())
    }

    /// Whether nobody knows what became of the last transaction: the store may be away, and the events of a transaction that
    /// it never gets would be waited for in vain.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Nobody knows what became of a transaction that begins now, until [`OutcomeGuard::resolved`].
    pub(super) fn begin_unresolved(&self) -> OutcomeGuard<'_> {
        OutcomeGuard(Some(&self.is_in_doubt))
    }

    /// Gives events to the internal topic.
    ///
    /// # Errors
    /// Why not; some of the events may be there.
    pub(super) async fn publish(&self, events: Vec<BulkEntry>) -> Result<(), String> {
        if events.is_empty() {
            return Ok(());
        }
        let InternalTopic { pubsub, topic } = &self.place();
        if self.pubsubs.broker(pubsub).is_none() {
            return Err(format!("pubsub {pubsub} is not found"));
        }
        if !self.standing.has(&self.place()).await {
            return Err(format!(
                "the sidecar has no subscription to the internal topic {topic} of pubsub {pubsub} yet: see whether the \
                 broker answers"
            ));
        }
        let forwarded = self.pubsubs.forward(pubsub, topic, events).await;
        // The frame of an event that the app published itself is not what the contract says here.
        forwarded.map_err(|error| match error {
            PublishError::Publish { cause, .. } => cause.to_string(),
            other => other.to_string(),
        })
    }
}

impl RequestContext<'_> {
    fn prepare(&self, operations: Vec<Step>) -> Prepared {
        let (projections, mut operations): (Vec<Step>, Vec<Step>) =
            operations.into_iter().partition(is_projection);
        let projection = |key: &str| {
            let found = projections.iter().rev().find(|step| step.key() == key);
            found.and_then(|step| match step {
                Step::Set(set) => Some(set),
                Step::Delete(_) => None,
            })
        };
        let events: Vec<_> = operations
            .iter()
            .filter_map(|step| match step {
                Step::Set(set) => Some(set),
                Step::Delete(_) => None,
            })
            .map(|set| {
                let marker = event::marker();
                let payload = projection(&set.key).unwrap_or(set);
                BulkEntry {
                    data: self.event(&marker, set, payload),
                    id: marker,
                    ..BulkEntry::default()
                }
            })
            .collect();
        operations.extend(events.iter().map(|event| Step::Set(marker(&event.id))));
        Prepared { operations, events }
    }
}

fn is_projection(step: &Step) -> bool {
    match step {
        Step::Set(set) => set.metadata.get(PROJECTION).is_some_and(|value| truthy(value)),
        Step::Delete(_) => false,
    }
}

/// What is stored with a transaction to say that it was committed. The key stands alone, without the store's prefix.
fn marker(id: &str) -> Set {
    Set {
        key: id.to_owned(),
        value: Value::Json(Bytes::from_static(b"\"0\"")),
        ..Set::default()
    }
}

#[cfg(test)]
mod tests;
