//! Consumes one internal topic: looks up the markers of its events and publishes the committed ones.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use outrigger_cloudevents::{Event, content_type, member};
use outrigger_component::Pairs;
use outrigger_component::pubsub::{BulkEntry, Message, Receipt, Subscribe, Subscription};
use outrigger_component::state::{Consistency, Delete};
use outrigger_delivery::Limits;
use outrigger_policy::resiliency::{Key, Outcome, Policy};
use outrigger_runtime::delivery::{
    self, Consumer, Depth, Inbox, OnStop, Order, Pending, StopTokens, Undelivered,
};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::Attempts;
use tokio_util::sync::CancellationToken;

use super::super::{State, Store};
use super::relays::InternalTopic;
use super::{LOG, event};
use crate::outbound::Cause;
use crate::pubsub::{Broker, apply_overrides};

/// Events in flight, unless the component sets a concurrency.
const MAX_IN_FLIGHT: usize = 128;
/// Events in flight or waiting for a marker.
const MAX_UNSETTLED: usize = 1024;
/// Time to wait for a marker before the event is returned to the broker, as in the contract. The first lookup
/// is immediate; retries back off from the first pause to the second.
const MARKER_TIMEOUT: Duration = Duration::from_secs(10);
const MARKER_POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How long an event whose transaction is in flight in this sidecar may delay others.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Age after which a transaction without a marker never committed.
const ABANDONED_AFTER: Duration = Duration::from_secs(60 * 60);
/// The outcome cannot be determined.
const NO_STORE: &str = "no state store with this outbox is loaded";
/// Backoff of subscription attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// The consumer of one internal topic.
pub(super) struct Relay {
    state: Arc<State>,
    broker: Arc<Broker>,
    place: InternalTopic,
    policy: Policy,
}

/// An event of the internal topic.
pub(super) struct Internal {
    marker: String,
    envelope: Bytes,
}

/// The outcome of an attempt.
pub(super) enum RelayOutcome {
    /// Committed and published; the marker is in this store.
    Published(Arc<Store>),
    /// Never committed.
    Void(&'static str),
    /// Not committed yet: the transaction is in flight in this sidecar.
    UnderWay,
    /// No marker yet. `discards`: all stores that were checked drop such events.
    Missing { discards: bool },
    /// The outcome is unknown, or publishing failed.
    Failed(String),
}

impl Relay {
    pub(super) fn new(state: Arc<State>, broker: Arc<Broker>, place: InternalTopic) -> Self {
        Self {
            policy: Policy::waiting("outbox", MARKER_POLL.0, MARKER_POLL.1, MARKER_TIMEOUT),
            state,
            broker,
            place,
        }
    }

    /// Counts an event by its outcome.
    fn count(&self, outcome: &str) {
        let registry = self.metrics().all().registry.namespaced();
        let counts = registry.counter(
            "component_outbox_event_count",
            "Outbox events: published, dropped, or returned to the broker.",
            ["component", "outcome", "topic"],
        );
        counts
            .with([self.broker.name(), outcome, &self.place.topic])
            .inc();
    }

    fn metrics(&self) -> &SidecarMetrics {
        &self.state.resilience.metrics
    }

    /// Consumes events until `stop`; then all received messages are settled. Cancels `asked` after the first
    /// attempt to subscribe.
    pub(super) async fn run(&self, stop: &CancellationToken, asked: &CancellationToken) {
        let mut pause = PAUSES.0;
        loop {
            let request = Subscribe {
                topic: self.broker.stored_topic(&self.place.topic).into_owned(),
                metadata: Pairs::new(),
                in_flight: NonZeroUsize::new(MAX_UNSETTLED).unwrap_or(NonZeroUsize::MIN),
            };
            let subscribed = tokio::select! {
                () = stop.cancelled() => return,
                subscribed = self.broker.component().subscribe(request) => subscribed,
            };
            asked.cancel();
            let ended = match subscribed {
                Ok(subscription) => {
                    pause = PAUSES.0;
                    self.state.relays.standing.add(&self.place);
                    self.deliver(subscription, stop).await
                }
                Err(error) => {
                    tracing::error!(
                        target: LOG,
                        "failed to subscribe to internal outbox topic {} on pubsub {}: {error}; trying again",
                        self.place.topic,
                        self.broker.name()
                    );
                    false
                }
            };
            if ended {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = pause.mul_f64(1.5).min(PAUSES.1);
        }
    }

    /// Returns whether `stop` ended the subscription; else it ended by itself.
    async fn deliver(&self, subscription: Subscription, stop: &CancellationToken) -> bool {
        let at_once = subscription
            .concurrency()
            .map_or(MAX_IN_FLIGHT, NonZeroUsize::get);
        let limits = Limits {
            in_flight: at_once.min(MAX_UNSETTLED),
            unsettled: MAX_UNSETTLED,
        };
        let (inbox, engine) = delivery::engine(limits, Some(&self.policy), self.metrics());
        let engine = engine.showing(Depth::of_topic(
            self.metrics(),
            self.broker.name(),
            &self.place.topic,
        ));
        let ending = CancellationToken::new();
        let tokens = StopTokens {
            stop,
            ending: &ending,
        };
        let taking = delivery::take(self, subscription, inbox, tokens);
        let attempting = engine.run(&ending, OnStop::FinishAttempts, |event, _| async move {
            let fate = self.attempt(&event).await;
            let outcome = match fate {
                RelayOutcome::Published(_) | RelayOutcome::Void(_) => Outcome::Success,
                RelayOutcome::UnderWay | RelayOutcome::Missing { .. } | RelayOutcome::Failed(_) => {
                    Outcome::Failure { code: None }
                }
            };
            (fate, outcome)
        });
        let ((stopped, ended), ()) = tokio::join!(taking, attempting);
        if let Err(error) = ended {
            tracing::error!(
                target: LOG,
                "the subscription to internal outbox topic {} of {} ended: {error}",
                self.place.topic,
                self.broker.name()
            );
        }
        stopped
    }

    async fn attempt(&self, internal: &Internal) -> RelayOutcome {
        let marker = &internal.marker;
        if let Some(ended) = self.state.transactions.running(marker) {
            // Before the transaction ends there is no marker.
            let _late = tokio::time::timeout(UNDER_WAY, ended.cancelled()).await;
        }
        // Read before the lookup: a transaction that failed by then cannot commit later.
        let has_failed = self.state.transactions.has_failed(marker);
        let is_under_way = self.state.transactions.running(marker).is_some();
        let stores = self.stores();
        if stores.is_empty() {
            return RelayOutcome::Failed(NO_STORE.to_owned());
        }
        let mut unknown = None;
        for store in &stores {
            match store.has_marker(marker).await {
                Ok(true) => return self.publish(Arc::clone(store), internal).await,
                Ok(false) => {}
                Err(cause) => unknown = Some(format!("state store {}: {cause}", store.name())),
            }
        }
        if let Some(cause) = unknown {
            return RelayOutcome::Failed(cause);
        }
        if has_failed {
            return RelayOutcome::Void("its transaction failed");
        }
        if is_under_way {
            return RelayOutcome::UnderWay;
        }
        match event::age(marker, SystemTime::now()) {
            Some(age) if age > ABANDONED_AFTER => {
                RelayOutcome::Void("its transaction began over an hour ago")
            }
            _ => RelayOutcome::Missing {
                discards: stores.iter().all(discards),
            },
        }
    }

    fn stores(&self) -> Vec<Arc<Store>> {
        self.state.with_outbox_at(self.broker.name(), &self.place.topic)
    }

    /// Publishes a committed event to the topic of its store.
    async fn publish(&self, store: Arc<Store>, internal: &Internal) -> RelayOutcome {
        let Some(outbox) = &store.outbox else {
            return RelayOutcome::Failed(NO_STORE.to_owned());
        };
        let settings = &outbox.settings;
        let mut event = match Event::parse(&internal.envelope) {
            Ok(event) => event,
            Err(error) => return RelayOutcome::Failed(error.to_string()),
        };
        // Not earlier: until here the id is the marker name.
        apply_overrides(&mut event);
        event.set(member::TOPIC, &settings.topic);
        event.set(member::PUBSUB, &settings.pubsub);
        let said = event.text(member::DATA_CONTENT_TYPE).unwrap_or_default();
        // Subscribers would take a message of octets for an event in binary mode.
        let content_type = match said.as_ref() {
            octets if content_type::is_octets(octets) => content_type::CLOUD_EVENT,
            other => other,
        };
        let entry = BulkEntry {
            id: internal.marker.clone(),
            data: event.to_bytes().into(),
            content_type: Some(content_type.to_owned()),
            metadata: Pairs::new(),
        };
        let forwarded = self
            .state
            .pubsubs
            .forward(&settings.pubsub, &settings.topic, vec![entry]);
        match forwarded.await {
            Ok(()) => RelayOutcome::Published(store),
            Err(error) => RelayOutcome::Failed(error.to_string()),
        }
    }

    /// Deletes the marker of a published event, after the event is acknowledged. Otherwise a redelivered
    /// event would wait for its deleted marker.
    async fn forget(&self, store: &Store, marker: &str, tokens: StopTokens<'_>) {
        let attempts = Attempts::new(Some(&self.policy), Key::NONE, self.metrics()).until(tokens.ending);
        let forgotten = attempts.run(|_| async {
            let forgotten = store.forget_marker(marker).await;
            let outcome = match &forgotten {
                Ok(()) => Outcome::Success,
                Err(_) => Outcome::Failure { code: None },
            };
            (forgotten, outcome)
        });
        if let Ok(Err(cause)) = forgotten.await {
            tracing::warn!(
                target: LOG,
                "state store {} still has the outbox marker {marker}; its event is published, so it can be deleted: {cause}",
                store.name()
            );
        }
    }

    /// Returns an event without marking it as failed. Brokers dead-letter (RabbitMQ) or skip (Kafka) failed
    /// messages.
    fn release(&self, receipt: Receipt) {
        self.count("returned");
        receipt.release(false);
    }
}

/// Whether the store drops events without a marker.
fn discards(store: &Arc<Store>) -> bool {
    let outbox = store.outbox.as_ref();
    outbox.is_some_and(|outbox| outbox.settings.discards)
}

impl Consumer for Relay {
    type Event = Internal;
    type Outcome = RelayOutcome;
    /// The marker and the event, or why the message is invalid.
    type Offered = Result<(String, Pending<RelayOutcome>), String>;

    async fn offer(&self, inbox: &Inbox<Order, Internal, RelayOutcome>, message: &Message) -> Self::Offered {
        let marker = marker_of(&message.data)?;
        let internal = Internal {
            marker: marker.clone(),
            envelope: message.data.clone(),
        };
        let order = message.ordering_key.clone().map(Order::after);
        Ok((marker, inbox.offer(order, internal).await))
    }

    async fn settle(
        &self,
        _message: Message,
        offered: Self::Offered,
        receipt: Receipt,
        tokens: StopTokens<'_>,
    ) {
        let (marker, pending) = match offered {
            Ok(offered) => offered,
            Err(why) => {
                let topic = &self.place.topic;
                tracing::error!(
                    target: LOG,
                    "message of internal outbox topic {topic} dropped, because it is not an outbox event: {why}"
                );
                self.count("dropped");
                return receipt.acknowledge();
            }
        };
        let why = match pending.settled().await {
            Ok(RelayOutcome::Published(store)) => {
                receipt.acknowledge();
                self.count("published");
                return self.forget(&store, &marker, tokens).await;
            }
            Ok(RelayOutcome::Void(why)) => {
                tracing::info!(target: LOG, "outbox event {marker} dropped: {why} and left no marker");
                self.count("dropped");
                return receipt.acknowledge();
            }
            Err(Undelivered::Stopped | Undelivered::Revoked | Undelivered::Blocked) => {
                return receipt.release(false);
            }
            // The wait was cut short; another consumer continues.
            Ok(RelayOutcome::UnderWay | RelayOutcome::Missing { .. } | RelayOutcome::Failed(_))
                if tokens.any_cancelled() =>
            {
                return receipt.release(false);
            }
            Ok(RelayOutcome::Missing { discards: true }) => {
                tracing::error!(
                    target: LOG,
                    "failed to publish outbox event {marker}: outbox state not found, discarding message"
                );
                self.count("dropped");
                return receipt.acknowledge();
            }
            Ok(RelayOutcome::Missing { discards: false }) => {
                tracing::error!(
                    target: LOG,
                    "failed to publish outbox event {marker}: outbox state not found, rejecting for later processing; \
                     where a missing marker means a failed transaction, set outboxDiscardWhenMissingState"
                );
                return self.release(receipt);
            }
            Ok(RelayOutcome::UnderWay) => {
                tracing::warn!(
                    target: LOG,
                    "outbox event {marker} returned to pubsub {}: its transaction is still in flight",
                    self.broker.name()
                );
                return self.release(receipt);
            }
            Ok(RelayOutcome::Failed(cause)) => cause,
            Err(refused @ Undelivered::Refused(_)) => refused.to_string(),
        };
        tracing::error!(
            target: LOG,
            "outbox event {marker} returned to pubsub {}: {why}",
            self.broker.name()
        );
        self.release(receipt);
    }
}

/// The marker that an internal event names.
fn marker_of(envelope: &[u8]) -> Result<String, String> {
    let event = Event::parse(envelope).map_err(|error| error.to_string())?;
    let id = event.text(member::ID).unwrap_or_default();
    if event::is_marker(&id) {
        Ok(id.into_owned())
    } else {
        Err(format!("its id {id:?} is not that of an outbox transaction"))
    }
}

impl Store {
    /// Whether the marker exists.
    pub(in super::super) async fn has_marker(&self, marker: &str) -> Result<bool, Cause> {
        let found = self.get_whole(marker.to_owned(), Consistency::Unspecified, Pairs::new());
        Ok(found.await?.is_some_and(|item| !item.data.is_empty()))
    }

    /// Deletes a marker.
    async fn forget_marker(&self, marker: &str) -> Result<(), Cause> {
        let delete = &Delete {
            key: marker.to_owned(),
            ..Delete::default()
        };
        let attempt = || self.component.delete(delete);
        self.outbound.run(&self.operations.delete, attempt).await
    }
}

#[cfg(test)]
mod tests;
