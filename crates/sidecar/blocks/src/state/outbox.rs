//! The transactional outbox: the writes of a transaction are published if and only if it commits.
//!
//! Before the transaction, the sidecar publishes an event for each value to an internal topic of the app. The
//! transaction also stores a marker for each event. A sidecar of the app that receives an internal event
//! looks up its marker ([`relay`]). If the marker exists, the transaction committed, and the sidecar
//! publishes the event to the store's outbox topic. A crash at any point therefore neither loses an event nor
//! publishes an uncommitted one. Topics, events and markers are compatible with Dapr, whose sidecars may do
//! either half.

mod event;
mod relay;
mod relays;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use outrigger_component::pubsub::BulkEntry;
use outrigger_component::state::{Operation as Step, Set, Value};
use outrigger_offload::offload;
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
/// Request metadata of a value that is published in place of another value with the same key, and is not
/// stored.
const PROJECTION: &str = "outbox.projection";

/// The outbox settings of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// The broker of committed events.
    pubsub: String,
    topic: String,
    /// The broker of the internal topic.
    internal_pubsub: String,
    /// Named as Dapr's sidecars name it.
    internal_topic: String,
    /// Whether an event without a marker is dropped instead of returned to the broker.
    discards: bool,
}

impl Settings {
    /// Reads the settings; `None` unless broker and topic are set. `namespace`: that of the workload.
    pub(super) fn read(properties: &Properties, namespace: &str, app_id: &str) -> Option<Self> {
        // These names are case-sensitive, unlike component names.
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
    /// Whether the outcome of the last transaction is unknown.
    is_in_doubt: AtomicBool,
}

/// Marks the outbox as in doubt if a transaction ends or is cancelled without [`OutcomeGuard::resolved`].
pub(super) struct OutcomeGuard<'a>(Option<&'a AtomicBool>);

impl OutcomeGuard<'_> {
    /// The outcome is known.
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

/// Writes only changes, because callers on all cores read the flag.
fn note(is_in_doubt: &AtomicBool, now: bool) {
    if is_in_doubt.load(Ordering::Relaxed) != now {
        is_in_doubt.store(now, Ordering::Relaxed);
    }
}

/// A transaction prepared for the outbox.
pub(super) struct Prepared {
    /// Operations for the store: without projections, with markers.
    pub(super) operations: Vec<Step>,
    /// Events for the internal topic, whose ids are the marker names.
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

    /// The internal topic.
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

    /// Creates an event and a marker for each written value; `size` is the total size of the values.
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

    /// Registers a transaction with these events.
    pub(super) fn begin(&self, events: &[BulkEntry]) -> Running {
        let markers = events.iter().map(|event| event.id.clone());
        self.transactions.begin(markers.collect())
    }

    /// Whether the outcome of the last transaction is unknown. The store may be unavailable, so that relays
    /// would wait in vain for the markers of further events.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Marks the outcome as unknown until [`OutcomeGuard::resolved`].
    pub(super) fn begin_unresolved(&self) -> OutcomeGuard<'_> {
        OutcomeGuard(Some(&self.is_in_doubt))
    }

    /// Publishes events to the internal topic.
    ///
    /// # Errors
    /// The reason; some of the events may have been published.
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
                "the sidecar has no subscription to the internal topic {topic} of pubsub {pubsub} yet: check that the \
                 broker is reachable"
            ));
        }
        let forwarded = self.pubsubs.forward(pubsub, topic, events).await;
        // The contract's text has no frame of an ordinary publish error.
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

/// The marker of a committed transaction. Its key has no store prefix.
fn marker(id: &str) -> Set {
    Set {
        key: id.to_owned(),
        value: Value::Json(Bytes::from_static(b"\"0\"")),
        ..Set::default()
    }
}

#[cfg(test)]
mod tests;
