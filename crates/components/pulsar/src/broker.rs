//! The `pubsub.pulsar` component.

use std::{
    collections::VecDeque,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Error, PubSub, Result, Setup,
    catalog::Version,
    deadline::within,
    pubsub::{Features, Publish, Subscribe, Subscription},
};
use tokio::sync::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    connection::{CALL_TIMEOUT, Connection},
    consumer::Member,
    lookup,
    outgoing::Outgoing,
    producer::Producer,
    settings::Settings,
};

pub(super) const LOG: &str = "dapr.contrib";
/// Maximum topics with producers; the least recently used is evicted.
const MAX_TOPICS: usize = 10;

/// Adds the component of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .pubsub
        .add(Entry::new(&["pulsar"], Version::Only, |setup| async move {
            let broker = Broker::open(&setup).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}

/// State shared by publishers and consumers of a component.
pub(super) struct BrokerState {
    pub(super) settings: Arc<Settings>,
    pub(super) closed: CancellationToken,
    pub(super) component: Arc<str>,
    /// Tasks of consumers and producers; shutdown waits for them.
    pub(super) tasks: TaskTracker,
}

struct Broker {
    shared: Arc<BrokerState>,
    /// Least recently used first.
    topics: Mutex<VecDeque<Arc<Topic>>>,
}

/// A topic with producers.
struct Topic {
    name: String,
    /// `None` until looked up.
    partitions: Mutex<Option<Arc<[Partition]>>>,
    /// Partition of the next message without a key.
    next: AtomicUsize,
}

struct Partition {
    name: String,
    producer: Mutex<Option<Producer>>,
}

impl Topic {
    async fn partitions(&self, settings: &Arc<Settings>) -> Result<Arc<[Partition]>> {
        let mut partitions = self.partitions.lock().await;
        if let Some(partitions) = &*partitions {
            return Ok(Arc::clone(partitions));
        }
        let names = lookup::partitions(settings, &self.name).await?;
        let made = names.into_iter().map(|name| Partition {
            name,
            producer: Mutex::new(None),
        });
        Ok(Arc::clone(partitions.insert(made.collect())))
    }

    async fn publish(&self, shared: &BrokerState, mut message: Outgoing) -> Result<()> {
        let partitions = self.partitions(&shared.settings).await?;
        let count = partitions.len();
        let number = message.partition(count);
        let number = number.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed) % count.max(1));
        loop {
            let producer = partitions[number].producer(shared).await?;
            match producer.publish(message).await {
                Ok(outcome) => return outcome,
                // Retries on a new producer.
                Err(unsent) => message = unsent,
            }
        }
    }
}

impl Partition {
    async fn producer(&self, shared: &BrokerState) -> Result<Producer> {
        let mut producer = self.producer.lock().await;
        match &*producer {
            Some(producer) if !producer.has_ended() => Ok(producer.clone()),
            _ => Ok(producer.insert(Producer::open(shared, &self.name).await?).clone()),
        }
    }
}

impl Broker {
    async fn open(setup: &Setup) -> Result<Self> {
        let settings = Arc::new(Settings::read(setup)?);
        // Checks the login before anything is published.
        Connection::to_any(&settings).await?;
        Ok(Self {
            shared: Arc::new(BrokerState {
                settings,
                closed: CancellationToken::new(),
                component: setup.metadata.component().clone(),
                tasks: TaskTracker::new(),
            }),
            topics: Mutex::new(VecDeque::new()),
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.shared.closed.is_cancelled() {
            return Err(Error::closed());
        }
        Ok(())
    }

    async fn topic(&self, name: String) -> Arc<Topic> {
        let mut topics = self.topics.lock().await;
        let found = topics.iter().position(|topic| topic.name == name);
        let topic = found.and_then(|index| topics.remove(index));
        let topic = topic.unwrap_or_else(|| {
            Arc::new(Topic {
                name,
                partitions: Mutex::new(None),
                next: AtomicUsize::new(0),
            })
        });
        topics.push_back(Arc::clone(&topic));
        if topics.len() > MAX_TOPICS {
            // Its producers end once their messages are confirmed.
            topics.pop_front();
        }
        topic
    }

    async fn send(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        let settings = &self.shared.settings;
        let outgoing = Outgoing::of(message)?;
        let topic = self.topic(settings.topic(&message.topic)?).await;
        let sending = async {
            tokio::select! {
                biased;
                () = self.shared.closed.cancelled() => Err(Error::closed()),
                outcome = topic.publish(&self.shared, outgoing) => outcome,
            }
        };
        within(CALL_TIMEOUT * 3, "Pulsar", sending).await
    }

    async fn join(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let consuming = self.shared.settings.consuming(&request.metadata)?;
        let joining = Member::join(&self.shared, &request.topic, consuming.kind);
        let member = within(CALL_TIMEOUT * 4, "Pulsar", joining).await?;
        let under_way = self.shared.tasks.token();
        let subscription = Subscription::start_in_order(&request, |feed| async move {
            let _under_way = under_way;
            member.run(feed).await
        });
        let concurrency = usize::try_from(consuming.concurrency.get()).unwrap_or(usize::MAX);
        Ok(subscription.with_concurrency(NonZeroUsize::new(concurrency)))
    }
}

#[async_trait]
impl PubSub for Broker {
    fn features(&self) -> Features {
        Features {
            at_least_once: self.shared.settings.keeps(),
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        let sent = Box::pin(self.send(message)).await;
        sent.map_err(|error| error.of(&self.shared.component))
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let joined = Box::pin(self.join(request)).await;
        joined.map_err(|error| error.of(&self.shared.component))
    }

    async fn ping(&self) -> Result<()> {
        let looked = async {
            self.check_open()?;
            Connection::to_any(&self.shared.settings).await.map(drop)
        };
        looked.await.map_err(|error| error.of(&self.shared.component))
    }

    async fn close(&self) {
        self.shared.closed.cancel();
        // Producers end once their messages are confirmed, and members leave their subscriptions.
        self.topics.lock().await.clear();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
