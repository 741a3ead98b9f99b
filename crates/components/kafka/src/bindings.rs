//! `bindings.kafka`: publishes to `publishTopic` and reads `topics` as a member of the consumer group.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
    sync::Arc,
};

use async_trait::async_trait;
use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use outrigger_component::{
    Catalog, Entry, Error, InputBinding, Kind, OutputBinding, Result, Setup,
    bindings::{self, EventHandler, Invoke, Invoked},
    catalog::Version,
    pubsub::{Delivery, Event, OrderingKey, Subscribe, Subscription},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Broker, LOG, NAMES};

const CREATE: &str = "create";
/// Maximum unfinished records of a topic.
const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

struct Binding {
    broker: Broker,
    topics: Vec<String>,
    publish_topic: Option<String>,
}

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .input_bindings
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let binding = Binding::open(&setup).await?;
            Ok(Arc::new(binding) as Arc<dyn InputBinding>)
        }));
    catalog
        .output_bindings
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let binding = Binding::open(&setup).await?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        }));
}

impl Binding {
    async fn open(setup: &Setup) -> Result<Self> {
        let topics = setup.metadata.filled(&["topics"]).unwrap_or_default();
        let topics = topics.split(',').filter(|topic| !topic.is_empty());
        Ok(Self {
            topics: topics.map(str::to_owned).collect(),
            publish_topic: setup.metadata.filled(&["publishTopic"]).map(str::to_owned),
            broker: Broker::open(setup, false).await?,
        })
    }
}

#[async_trait]
impl OutputBinding for Binding {
    fn operations(&self) -> Vec<&str> {
        vec![CREATE]
    }

    async fn invoke(&self, request: &Invoke) -> Result<Option<Invoked>> {
        self.broker.check_open()?;
        if request.operation != CREATE {
            let text = format!("the operation {:?}: use {CREATE}", request.operation);
            return Err(Error::unsupported(text));
        }
        let Some(topic) = &self.publish_topic else {
            let text = "the binding has no publishTopic: set it to publish with the binding";
            return Err(Error::invalid_request(text));
        };
        let data = request.data.clone();
        self.broker.send(topic, data, &request.metadata).await?;
        Ok(None)
    }

    async fn ping(&self) -> Result<()> {
        self.broker.look().await
    }

    async fn close(&self) {
        self.broker.end().await;
    }
}

#[async_trait]
impl InputBinding for Binding {
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()> {
        self.broker.check_open()?;
        if self.topics.is_empty() {
            tracing::warn!(
                target: LOG,
                "component {}: the binding has no topics and reads nothing",
                self.broker.0.component
            );
            drain.cancelled().await;
            return Ok(());
        }
        let mut reading = JoinSet::new();
        for topic in &self.topics {
            let request = Subscribe {
                topic: topic.clone(),
                metadata: Default::default(),
                in_flight: IN_FLIGHT,
            };
            let subscribing = tokio::select! {
                () = drain.cancelled() => break,
                subscribed = self.broker.join(request) => subscribed,
            };
            let reader = Reader::new(subscribing?, Arc::clone(&handler));
            reading.spawn(reader.run(drain.clone()));
        }
        while let Some(ended) = reading.join_next().await {
            ended.map_err(|error| Error::new(Kind::Internal, "reading a topic failed").because(error))??;
        }
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        self.broker.look().await
    }

    async fn close(&self) {
        self.broker.end().await;
    }
}

/// Passes the records of one topic to the app: in order for each key and for records without a key.
struct Reader {
    subscription: Subscription,
    handler: Arc<dyn EventHandler>,
    /// Records of a key waiting for the one in progress. Bounded by the subscription's records in flight.
    queues: HashMap<OrderingKey, VecDeque<Delivery>>,
    handling: FuturesUnordered<BoxFuture<'static, OrderingKey>>,
}

impl Reader {
    fn new(subscription: Subscription, handler: Arc<dyn EventHandler>) -> Self {
        Self {
            subscription,
            handler,
            queues: HashMap::new(),
            handling: FuturesUnordered::new(),
        }
    }

    async fn run(mut self, drain: CancellationToken) -> Result<()> {
        let mut ending = false;
        while !ending || !self.handling.is_empty() {
            tokio::select! {
                () = drain.cancelled(), if !ending => {
                    ending = true;
                    self.subscription.drain();
                    // Another member of the group will handle the rest.
                    self.queues.clear();
                }
                Some(key) = self.handling.next(), if !self.handling.is_empty() => self.continue_queue(key),
                event = self.subscription.next(), if !ending => match event {
                    None => {
                        ending = true;
                        self.queues.clear();
                    }
                    Some(Event::Message(delivery)) => self.take(delivery),
                    // This reader never rejects a key.
                    Some(Event::Reopened(_)) => {}
                    Some(Event::Revoked(revoked)) => {
                        let gone = |key: &OrderingKey| key.partition.is_some_and(|it| revoked.partitions.contains(&it));
                        for (_, waiting) in self.queues.iter_mut().filter(|(key, _)| gone(key)) {
                            waiting.clear();
                        }
                    }
                },
            }
        }
        self.subscription.ended().await
    }

    fn take(&mut self, delivery: Delivery) {
        let key = delivery.message.ordering_key.clone().unwrap_or_default();
        if let Some(waiting) = self.queues.get_mut(&key) {
            waiting.push_back(delivery);
            return;
        }
        self.queues.insert(key.clone(), VecDeque::new());
        self.handle(key, delivery);
    }

    /// A queue exists while the app handles a record of its key.
    fn continue_queue(&mut self, key: OrderingKey) {
        match self.queues.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(delivery) => self.handle(key, delivery),
            None => drop(self.queues.remove(&key)),
        }
    }

    fn handle(&mut self, key: OrderingKey, delivery: Delivery) {
        let handler = Arc::clone(&self.handler);
        let handling = async move {
            let event = bindings::Event {
                data: delivery.message.data,
                metadata: delivery.message.metadata,
                content_type: None,
            };
            match handler.handle(event).await {
                Ok(_) => delivery.receipt.acknowledge(),
                Err(_) => delivery.receipt.reject(),
            }
            key
        };
        self.handling.push(handling.boxed());
    }
}
