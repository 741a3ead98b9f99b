//! Which internal topics are followed: those of the stores that have an outbox and whose broker is there.

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

/// How long a start, and a transaction, waits for a broker to take the subscription.
const SUBSCRIBING: Duration = Duration::from_secs(5);

/// An internal topic, and its broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InternalTopic {
    pub(super) pubsub: String,
    pub(super) topic: String,
}

/// The internal topics that are subscribed to. What is published to another may have no group that it is kept for.
#[derive(Clone, Default)]
pub(in super::super) struct SubscribedTopics(Arc<watch::Sender<HashSet<InternalTopic>>>);

impl SubscribedTopics {
    /// Waits for a subscription, as long as a start does; whether there is one.
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
    /// Nothing is taken any more.
    ended: CancellationToken,
    /// Told whenever a store with an outbox comes or goes.
    pub(in super::super) changes: Arc<watch::Sender<()>>,
    pub(in super::super) standing: SubscribedTopics,
}

/// A relay at work.
struct Running {
    broker: Weak<Broker>,
    stop: CancellationToken,
    /// The broker has been asked for the subscription once.
    asked: CancellationToken,
    /// It has ended, and so have those before it in its place.
    ended: CancellationToken,
}

impl State {
    /// The stores whose internal events stand in a topic.
    pub(super) fn with_outbox_at(&self, pubsub: &str, topic: &str) -> Vec<Arc<Store>> {
        let mut stores = self.stores.all();
        stores.retain(|store| {
            let settings = store.outbox.as_ref().map(|outbox| &outbox.settings);
            settings.is_some_and(|own| own.internal_pubsub == pubsub && own.internal_topic == topic)
        });
        stores
    }

    /// Follows the internal topics of the stores that there are; when this returns, each has been asked of its broker
    /// once, or that takes long.
    pub async fn begin_outbox(self: &Arc<Self>) {
        self.reconcile_outbox();
        let asked: Vec<_> = {
            let running = self.relays.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.values().map(|relay| relay.asked.clone()).collect()
        };
        let all = join_all(asked.iter().map(CancellationToken::cancelled));
        // Those that take longer go on by themselves.
        let _late = tokio::time::timeout(SUBSCRIBING, all).await;
    }

    /// Follows the stores and the brokers as they come and go, until `stop`.
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

    /// Takes no internal events any more, for good. What is being looked at is finished.
    pub fn end_outbox(&self) {
        self.relays.ended.cancel();
        let running = self.relays.running.lock().unwrap_or_else(PoisonError::into_inner);
        for relay in running.values() {
            relay.stop.cancel();
        }
    }

    /// Waits until the brokers know what became of all internal events, after [`State::end_outbox`].
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
            // Its predecessor hands over what it has taken first.
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
