//! Manages the relays: one for each internal topic of a store with an outbox whose broker is loaded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::{State, Store};
use super::LOG;
use super::relay::Relay;
use crate::pubsub::Broker;

/// How long a start, and a transaction, waits for the broker to accept the subscription.
const SUBSCRIBING: Duration = Duration::from_secs(5);

/// An internal topic and its broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InternalTopic {
    pub(super) pubsub: String,
    pub(super) topic: String,
}

/// Internal topics with an active subscription. Without one, the broker may have no consumer group that
/// retains messages.
#[derive(Clone, Default)]
pub(in super::super) struct SubscribedTopics(Arc<watch::Sender<HashSet<InternalTopic>>>);

impl SubscribedTopics {
    /// Waits for a subscription, as long as a start does. Returns whether there is one.
    pub(super) async fn has(&self, place: &InternalTopic) -> bool {
        let mut places = self.0.subscribe();
        let stands = places.wait_for(|places| places.contains(place));
        tokio::time::timeout(SUBSCRIBING, stands)
            .await
            .is_ok_and(|stands| stands.is_ok())
    }

    pub(super) fn add(&self, place: &InternalTopic) {
        self.0.send_modify(|places| {
            places.insert(place.clone());
        });
    }

    fn remove(&self, place: &InternalTopic) {
        self.0.send_modify(|places| {
            places.remove(place);
        });
    }
}

/// The relays of a sidecar.
#[derive(Default)]
pub(in super::super) struct Relays {
    running: Mutex<HashMap<InternalTopic, Running>>,
    tasks: TaskTracker,
    /// Cancelled when consumption has stopped.
    ended: CancellationToken,
    /// Notified when a store with an outbox is added or removed.
    pub(in super::super) changes: Arc<watch::Sender<()>>,
    pub(in super::super) standing: SubscribedTopics,
}

/// An active relay.
struct Running {
    broker: Weak<Broker>,
    stop: CancellationToken,
    /// Cancelled after the first attempt to subscribe.
    asked: CancellationToken,
    /// Cancelled once it and its predecessors have ended.
    ended: CancellationToken,
}

impl State {
    /// The stores whose internal events use a topic.
    pub(super) fn with_outbox_at(&self, pubsub: &str, topic: &str) -> Vec<Arc<Store>> {
        let mut stores = self.stores.all();
        stores.retain(|store| {
            let settings = store.outbox.as_ref().map(|outbox| &outbox.settings);
            settings.is_some_and(|own| own.internal_pubsub == pubsub && own.internal_topic == topic)
        });
        stores
    }

    /// Starts the relays of the loaded stores. Returns after the first attempt to subscribe of each, or a
    /// timeout.
    pub async fn begin_outbox(self: &Arc<Self>) {
        self.reconcile_outbox();
        let asked: Vec<_> = {
            let running = self.relays.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.values().map(|relay| relay.asked.clone()).collect()
        };
        let all = join_all(asked.iter().map(CancellationToken::cancelled));
        // Slower relays continue in the background.
        let _late = tokio::time::timeout(SUBSCRIBING, all).await;
    }

    /// Starts and stops relays as stores and brokers change, until `stop`.
    pub async fn follow_outbox(self: Arc<Self>, stop: CancellationToken) {
        let (mut stores, mut brokers) = (self.relays.changes.subscribe(), self.pubsubs.changes());
        self.reconcile_outbox();
        loop {
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                changed = stores.changed() => changed,
                changed = brokers.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            self.reconcile_outbox();
        }
    }

    /// Stops consuming internal events permanently. Events in flight are finished.
    pub fn end_outbox(&self) {
        self.relays.ended.cancel();
        let running = self.relays.running.lock().unwrap_or_else(PoisonError::into_inner);
        for relay in running.values() {
            relay.stop.cancel();
        }
    }

    /// Waits until all internal events are settled, after [`State::end_outbox`].
    pub async fn outbox_drained(&self) {
        self.relays.tasks.close();
        self.relays.tasks.wait().await;
    }

    fn reconcile_outbox(self: &Arc<Self>) {
        let mut wanted = HashSet::new();
        for store in self.stores.all() {
            if let Some(outbox) = &store.outbox {
                wanted.insert(outbox.place());
            }
        }
        let mut due: HashMap<InternalTopic, Arc<Broker>> = HashMap::new();
        for place in wanted {
            match self.pubsubs.broker(&place.pubsub) {
                Some(broker) => drop(due.insert(place, broker)),
                None => tracing::warn!(
                    target: LOG,
                    "could not subscribe to internal outbox topic {}: outbox pubsub {} not loaded",
                    place.topic,
                    place.pubsub
                ),
            }
        }
        if self.relays.ended.is_cancelled() {
            due.clear();
        }
        let mut running = self.relays.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, relay) in running.iter() {
            let broker = due.get(place);
            if !broker.is_some_and(|broker| std::ptr::eq(relay.broker.as_ptr(), Arc::as_ptr(broker))) {
                relay.stop.cancel();
                self.relays.standing.remove(place);
            }
        }
        running.retain(|place, relay| due.contains_key(place) || !relay.ended.is_cancelled());
        for (place, broker) in due {
            let before = running.get(&place);
            if before.is_some_and(|before| !before.stop.is_cancelled()) {
                continue;
            }
            let before = before.map(|before| before.ended.clone());
            let started = self.start_relay(&place, broker, before);
            running.insert(place, started);
        }
    }

    fn start_relay(
        self: &Arc<Self>,
        place: &InternalTopic,
        broker: Arc<Broker>,
        before: Option<CancellationToken>,
    ) -> Running {
        let running = Running {
            broker: Arc::downgrade(&broker),
            stop: CancellationToken::new(),
            asked: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let (stop, asked, ended) = (running.stop.clone(), running.asked.clone(), running.ended.clone());
        let relay = Relay::new(Arc::clone(self), broker, place.clone());
        self.relays.tasks.spawn(async move {
            // The predecessor first hands over the messages that it has taken.
            if let Some(before) = before {
                before.cancelled().await;
            }
            if !stop.is_cancelled() {
                relay.run(&stop, &asked).await;
            }
            drop(relay);
            asked.cancel();
            ended.cancel();
        });
        running
    }
}
