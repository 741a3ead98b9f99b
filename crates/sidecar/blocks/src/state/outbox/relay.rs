//! One internal topic at work: looks for the markers of its events, and sends on those that are committed.

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

/// Events that are looked at at once, unless the component says how many are to be handled at once.
const MAX_IN_FLIGHT: usize = 128;
/// The same, with those whose marker is waited for.
const MAX_UNSETTLED: usize = 1024;
/// How long a marker is waited for before its event is given back to the broker: the contract's time. The first look is
/// at once, the next after the first of the pauses, which grow to the second.
const MARKER_TIMEOUT: Duration = Duration::from_secs(10);
const MARKER_POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How long an event may hold others up whose transaction is under way here.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// A transaction that began so long ago and left no marker will leave none.
const ABANDONED_AFTER: Duration = Duration::from_secs(60 * 60);
/// Nobody can tell whether it was committed.
const NO_STORE: &str = "no state store with this outbox is loaded";
/// Pauses before a broker is asked again for the subscription.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// One internal topic at work.
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

/// What an attempt at an event came to.
pub(super) enum RelayOutcome {
    /// It was committed, and is published; its marker is in this store.
    Published(Arc<Store>),
    /// It was never committed.
    Void(&'static str),
    /// It is not committed yet, and may be: its transaction is under way here.
    UnderWay,
    /// It is not committed yet. `discards`: all the stores that were looked at say that it is dropped then.
    Missing { discards: bool },
    /// Nobody knows, or it could not be published.
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

    /// An event has left this sidecar.
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

    /// Takes events until `stop`; when it returns, the broker knows what became of each. The first attempt to subscribe is
    /// over when `asked` is cancelled.
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

    /// Whether it was told to stop; else the subscription ended by itself.
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
            // Sooner there is nothing to be seen.
            let _late = tokio::time::timeout(UNDER_WAY, ended.cancelled()).await;
        }
        // Asked before the look: who has failed before it has not been committed after it.
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

    /// Sends a committed event to the topic of its store.
    async fn publish(&self, store: Arc<Store>, internal: &Internal) -> RelayOutcome {
        let Some(outbox) = &store.outbox else {
            return RelayOutcome::Failed(NO_STORE.to_owned());
        };
        let settings = &outbox.settings;
        let mut event = match Event::parse(&internal.envelope) {
            Ok(event) => event,
            Err(error) => return RelayOutcome::Failed(error.to_string()),
        };
        // Not before: until here the id is the marker's name.
        apply_overrides(&mut event);
        event.set(member::TOPIC, &settings.topic);
        event.set(member::PUBSUB, &settings.pubsub);
        let said = event.text(member::DATA_CONTENT_TYPE).unwrap_or_default();
        // To subscribers a message of octets would be an event in binary mode, which this is not.
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

    /// Removes the marker of an event that is published. The event is acknowledged already: one whose marker is gone would
    /// come again and wait for it.
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
                "state store {} keeps the key {marker}, which can be removed: its event is published. {cause}",
                store.name()
            );
        }
    }

    /// Returns an event that did not fail: brokers might make a dead letter of a failure (RabbitMQ), or skip it (Kafka).
    fn release(&self, receipt: Receipt) {
        self.count("returned");
        receipt.release(false);
    }
}

/// Whether events of this store whose markers do not appear are dropped.
fn discards(store: &Arc<Store>) -> bool {
    let outbox = store.outbox.as_ref();
    outbox.is_some_and(|outbox| outbox.settings.discards)
}

impl Consumer for Relay {
    type Event = Internal;
    type Outcome = RelayOutcome;
    /// The marker and the event; or why the message has none.
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
                    "a message of internal outbox topic {topic} is dropped: no outbox can have published it, as {why}"
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
                tracing::info!(target: LOG, "outbox event {marker} is not published: {why} and left no marker");
                self.count("dropped");
                return receipt.acknowledge();
            }
            Err(Undelivered::Stopped | Undelivered::Revoked | Undelivered::Blocked) => {
                return receipt.release(false);
            }
            // Its wait was cut short: somebody else goes on.
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
                    "outbox event {marker} is returned to pubsub {}: its transaction is still under way",
                    self.broker.name()
                );
                return self.release(receipt);
            }
            Ok(RelayOutcome::Failed(cause)) => cause,
            Err(refused @ Undelivered::Refused(_)) => refused.to_string(),
        };
        tracing::error!(
            target: LOG,
            "outbox event {marker} is returned to pubsub {}: {why}",
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
    /// Whether there is a marker.
    pub(in super::super) async fn has_marker(&self, marker: &str) -> Result<bool, Cause> {
        let found = self.get_whole(marker.to_owned(), Consistency::Unspecified, Pairs::new());
        Ok(found.await?.is_some_and(|item| !item.data.is_empty()))
    }

    /// Removes a marker.
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
