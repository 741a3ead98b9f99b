use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use outrigger_component::pubsub::{Features, Publish, Settlement};
use outrigger_component::state::{Feature, Get, Item, Operation, Set, Transaction, Value};
use outrigger_component::{Error, Kind, PubSub, Result, StateStore};
use outrigger_policy::resiliency::Resiliency;
use outrigger_redact::Secrets;
use outrigger_resources::NameValue;
use outrigger_runtime::components::Properties;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::registry::Registration;
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::metrics::Metrics;
use outrigger_telemetry::trace::{Parent, Tracer};
use tokio::sync::Notify;

use super::*;
use crate::pubsub::{PubSubs, Topics};
use crate::state::outbox::Settings;
use crate::state::{Keys, State, StateError};

/// Keeps messages by topic until they are acknowledged, and redelivers returned ones.
#[derive(Default)]
struct Queues {
    topics: Mutex<HashMap<String, VecDeque<Bytes>>>,
    published: Notify,
    returned: AtomicUsize,
    /// Returned messages that a broker counts as failed.
    failed: AtomicUsize,
}

impl Queues {
    fn in_topic(&self, topic: &str) -> usize {
        self.topics.lock().unwrap().get(topic).map_or(0, VecDeque::len)
    }
}

struct Queue(Arc<Queues>);

#[async_trait]
impl PubSub for Queue {
    fn features(&self) -> Features {
        Features::default()
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        let mut topics = self.0.topics.lock().unwrap();
        let queue = topics.entry(message.topic.clone()).or_default();
        queue.push_back(message.data.clone());
        self.0.published.notify_one();
        Ok(())
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let (queues, topic) = (Arc::clone(&self.0), request.topic.clone());
        Ok(Subscription::start(&request, |mut feed| async move {
            loop {
                let next = queues
                    .topics
                    .lock()
                    .unwrap()
                    .entry(topic.clone())
                    .or_default()
                    .pop_front();
                if let Some(data) = next {
                    let message = Message {
                        topic: topic.as_str().into(),
                        data: data.clone(),
                        content_type: None,
                        metadata: Pairs::new(),
                        ordering_key: None,
                        redelivered: None,
                    };
                    feed.offer(data, message);
                }
                tokio::select! {
                    () = queues.published.notified() => {}
                    settled = feed.settled() => for (data, settlement) in settled {
                        if settlement == Settlement::Reject {
                            queues.failed.fetch_add(1, Ordering::SeqCst);
                        }
                        if settlement != Settlement::Acknowledge {
                            queues.returned.fetch_add(1, Ordering::SeqCst);
                            queues.topics.lock().unwrap().entry(topic.clone()).or_default().push_back(data);
                        }
                    },
                }
            }
        }))
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {}
}

/// A store whose transactions wait for `go_on`.
#[derive(Default)]
struct Slow {
    keys: Mutex<HashSet<String>>,
    go_on: Notify,
    is_away: AtomicBool,
}

impl Slow {
    fn check_reached(&self) -> Result<()> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Unavailable, "the store is away"));
        }
        Ok(())
    }
}

#[async_trait]
impl StateStore for Slow {
    fn features(&self) -> &[Feature] {
        &[Feature::Transactional]
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        self.check_reached()?;
        let found = self.keys.lock().unwrap().contains(&request.key);
        Ok(found.then(|| Item {
            data: Bytes::from_static(b"0"),
            ..Item::default()
        }))
    }

    async fn set(&self, _request: &Set) -> Result<()> {
        Ok(())
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        self.keys.lock().unwrap().remove(&request.key);
        Ok(())
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.check_reached()?;
        self.go_on.notified().await;
        let keys = transaction.operations.iter().map(|step| step.key().to_owned());
        self.keys.lock().unwrap().extend(keys);
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {}
}

/// Waits until a condition holds.
async fn eventually(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), holds)
        .await
        .unwrap();
}

/// A store with an outbox and a broker.
struct World {
    queues: Arc<Queues>,
    slow: Arc<Slow>,
    state: Arc<State>,
    broker: Arc<Broker>,
    place: InternalTopic,
    store: Option<Registration>,
    _broker: Registration,
}

impl World {
    fn new() -> Self {
        Self::where_discards("true")
    }

    /// With `outboxDiscardWhenMissingState`.
    fn where_discards(discards: &str) -> Self {
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let resilience = Arc::new(Resilience::new(Resiliency::none(), metrics));
        let pubsubs = Arc::new(PubSubs::new("app".into(), Arc::clone(&resilience), Tracer::off()));
        let queues = Arc::new(Queues::default());
        let queue = Arc::new(Queue(Arc::clone(&queues)));
        let registered = pubsubs.insert(
            "broker",
            queue,
            Topics::default(),
            String::new(),
            Secrets::default(),
        );
        let items = [
            ("outboxPublishPubsub", "broker"),
            ("outboxPublishTopic", "orders"),
            ("outboxDiscardWhenMissingState", discards),
        ];
        let items = items.map(|(name, value)| NameValue::new(name, value));
        let settings = Settings::read(&Properties::found(items.to_vec()), "default", "app");
        let broker = pubsubs.broker("broker").unwrap();
        let state = Arc::new(State::new(pubsubs, resilience));
        let keys = Keys::parse(Some("none"), "store", "app", None).unwrap();
        let slow = Arc::new(Slow::default());
        let component = Arc::clone(&slow) as Arc<dyn StateStore>;
        let store = state.insert("store", component, keys, None, settings, Secrets::default());
        Self {
            queues,
            slow,
            state,
            broker,
            place: InternalTopic {
                pubsub: "broker".to_owned(),
                topic: "defaultappordersoutbox".to_owned(),
            },
            store: Some(store),
            _broker: registered,
        }
    }

    /// A relay that waits only milliseconds for a marker.
    fn relay(&self) -> Relay {
        let pause = Duration::from_millis(10);
        let (state, broker) = (Arc::clone(&self.state), Arc::clone(&self.broker));
        Relay {
            policy: Policy::waiting("outbox", pause, pause, pause * 5),
            ..Relay::new(state, broker, self.place.clone())
        }
    }

    async fn transact(&self) -> Result<(), StateError> {
        self.transact_with(Pairs::new()).await
    }

    /// With these metadata of the value.
    async fn transact_with(&self, metadata: Pairs) -> Result<(), StateError> {
        let step = Operation::Set(Set {
            key: "k".to_owned(),
            value: Value::Json(Bytes::from_static(b"1")),
            metadata,
            ..Set::default()
        });
        let store = self.state.store("store").unwrap();
        store.transact(vec![step], Pairs::new(), &Parent::default()).await
    }
}

/// An event whose transaction does not appear is dropped, but not while the transaction is in flight.
#[tokio::test]
async fn keeps_event_of_transaction_in_flight() {
    let world = World::new();
    let relay = world.relay();
    let (stop, asked) = (CancellationToken::new(), CancellationToken::new());
    let relaying = tokio::spawn(async move { relay.run(&stop, &asked).await });
    let committing = async {
        // The wait ended before the transaction committed.
        eventually(|| world.queues.returned.load(Ordering::SeqCst) > 0).await;
        world.slow.go_on.notify_one();
    };
    let (committed, ()) = tokio::join!(world.transact(), committing);
    committed.unwrap();
    let keys = || world.slow.keys.lock().unwrap().len();
    eventually(|| world.queues.in_topic("orders") == 1 && keys() == 1).await;
    assert_eq!(world.queues.failed.load(Ordering::SeqCst), 0);
    relaying.abort();
}

#[tokio::test]
async fn metadata_overrides_relayed_envelope() {
    let world = World::new();
    let relay = world.relay();
    let (stop, asked) = (CancellationToken::new(), CancellationToken::new());
    let relaying = tokio::spawn(async move { relay.run(&stop, &asked).await });
    world.slow.go_on.notify_one();
    let metadata = [("cloudevent.type", "created"), ("cloudevent.id", "mine")];
    let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
    world.transact_with(metadata.into()).await.unwrap();
    eventually(|| world.queues.in_topic("orders") == 1).await;
    let data = world.queues.topics.lock().unwrap()["orders"][0].clone();
    let event: serde_json::Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(
        (&event["type"], &event["id"]),
        (&"created".into(), &"mine".into())
    );
    assert!(event.get("cloudevent.type").is_none(), "{event}");
    relaying.abort();
}

/// Events are returned without a failure mark, with which brokers would dead-letter or skip them. If the
/// store is not loaded, the outcome is unknown however old the event is.
#[tokio::test]
async fn returns_undecided_events_without_failure() {
    #[derive(Debug, Clone, Copy)]
    enum Why {
        Missing,
        StoreAway,
        NoStore,
    }
    /// A marker from 1970.
    const OLD: &str = "outbox-00000000-0000-7000-8000-000000000000";
    for (why, marker, discards) in [
        (Why::Missing, event::marker(), "false"),
        (Why::StoreAway, OLD.to_owned(), "true"),
        (Why::NoStore, event::marker(), "true"),
        (Why::NoStore, OLD.to_owned(), "true"),
    ] {
        let mut world = World::where_discards(discards);
        match why {
            Why::Missing => {}
            Why::StoreAway => world.slow.is_away.store(true, Ordering::SeqCst),
            Why::NoStore => {
                let _users = world.store.take().unwrap().withdraw();
            }
        }
        let internal = Publish {
            topic: world.place.topic.clone(),
            data: format!(r#"{{"id":"{marker}","data":"1"}}"#).into(),
            ..Publish::default()
        };
        world.broker.component().publish(&internal).await.unwrap();
        let relay = world.relay();
        let (stop, asked) = (CancellationToken::new(), CancellationToken::new());
        let relaying = tokio::spawn(async move { relay.run(&stop, &asked).await });
        eventually(|| world.queues.returned.load(Ordering::SeqCst) > 0).await;
        let failed = world.queues.failed.load(Ordering::SeqCst);
        assert_eq!(failed, 0, "{why:?} {marker}");
        relaying.abort();
    }
}

/// The outcome of a transaction is also unknown if its caller was cancelled.
#[tokio::test]
async fn probes_store_after_cancelled_transaction() {
    let world = World::new();
    world.state.relays.standing.add(&world.place);
    let events = || world.queues.in_topic(&world.place.topic);
    tokio::select! {
        _ = world.transact() => unreachable!("nothing lets it go on"),
        () = eventually(|| events() == 1) => {}
    }
    world.slow.is_away.store(true, Ordering::SeqCst);
    let error = world.transact().await.unwrap_err();
    assert!(matches!(error, StateError::Transaction(_)));
    assert_eq!(events(), 1);
}

/// Further events would have an unknown outcome too.
#[tokio::test]
async fn unavailable_store_gets_one_event() {
    let world = World::new();
    world.state.relays.standing.add(&world.place);
    let events = || world.queues.in_topic(&world.place.topic);
    world.slow.is_away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let error = world.transact().await.unwrap_err();
        assert!(matches!(error, StateError::Transaction(_)));
        assert_eq!(events(), 1);
    }
    world.slow.is_away.store(false, Ordering::SeqCst);
    world.slow.go_on.notify_one();
    world.transact().await.unwrap();
    assert_eq!(events(), 2);
    world.slow.is_away.store(true, Ordering::SeqCst);
    world.transact().await.unwrap_err();
    assert_eq!(events(), 3, "the store had answered last");
}
