//! `pubsub.kafka` and `bindings.kafka`: Apache Kafka, with the records, keys, headers and consumer groups of
//! Dapr's components, so that sidecars of both can share a topic and a group.
//!
//! Each subscription is a member of the component's group. The group's position in a partition is committed
//! once the app has finished all earlier records. Records of one key, and records without a key, reach the
//! app in order.

mod avro;
mod bindings;
mod client;
mod member;
mod offsets;
mod oidc;
mod partition;
mod positions;
mod rebalance;
mod record;
mod registry;
mod retry;
mod security;
mod session;
mod settings;
mod values;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use krafka::{
    CloseOptions, Kafka, Record,
    admin::DescribeClusterOptions,
    producer::{DeliveryHandle, Producer},
};
use outrigger_component::{
    Catalog, Entry, Error, Kind, Pairs, PubSub, Result, Setup,
    catalog::Version,
    pubsub::{BulkPublish, Failed, Features, Publish, Subscribe, Subscription},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(feature = "fuzzing")]
pub use self::avro::fuzz_avro;
use self::{member::Member, record::Encoding, settings::Settings};

const LOG: &str = "dapr.contrib";
const NAMES: &[&str] = &["kafka"];
/// Timeout of a metadata request.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    bindings::add(catalog);
    catalog
        .pubsub
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let broker = Broker::open(&setup, true).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    settings: Settings,
    kafka: Kafka,
    producer: Producer,
    closed: CancellationToken,
    members: TaskTracker,
    component: Arc<str>,
}

struct Broker(Arc<BrokerInner>);

impl Broker {
    /// `pubsub` is false for a binding.
    async fn open(setup: &Setup, pubsub: bool) -> Result<Self> {
        let settings = Settings::read(setup, pubsub)?;
        let kafka = settings.connect().await?;
        let producer = settings.producer(&kafka).await?;
        Ok(Self(Arc::new(BrokerInner {
            settings,
            kafka,
            producer,
            closed: CancellationToken::new(),
            members: TaskTracker::new(),
            component: setup.metadata.component().clone(),
        })))
    }

    fn check_open(&self) -> Result<()> {
        if self.0.closed.is_cancelled() {
            return Err(Error::closed().of(&self.0.component));
        }
        Ok(())
    }

    async fn record(&self, topic: &str, data: Bytes, metadata: &Pairs) -> Result<Record> {
        let settings = &self.0.settings;
        let value = match Encoding::of(metadata)? {
            _ if record::is_nothing(&data) => None,
            Encoding::None => Some(data),
            Encoding::Avro => {
                let registry = settings.registry()?;
                let encoded = Box::pin(registry.encode(topic, data.clone(), settings.max_message)).await;
                Some(encoded.map_err(|error| of_envelope(error, &data))?)
            }
        };
        let record = record::outgoing(topic, value, metadata, &settings.headers);
        let size = record.estimated_size();
        if size > settings.max_message {
            let text = format!(
                "a message of {size} bytes, its headers included, is larger than maxMessageBytes: {}",
                settings.max_message
            );
            return Err(Error::invalid_request(text));
        }
        Ok(record)
    }

    /// Records are sent in call order.
    async fn enqueue(&self, record: Record) -> Result<DeliveryHandle> {
        let topic = record.topic.clone();
        let queued = Box::pin(self.0.producer.enqueue(record)).await;
        queued.map_err(|error| self.failure(&topic, &error))
    }

    async fn delivered(&self, topic: &str, handle: DeliveryHandle) -> Result<()> {
        let delivered = handle.await.map(drop);
        delivered.map_err(|error| self.failure(topic, &error))
    }

    fn failure(&self, topic: &str, error: &krafka::KrafkaError) -> Error {
        if self.0.closed.is_cancelled() {
            return Error::closed();
        }
        self.0.settings.failure_of(topic, error)
    }

    async fn send(&self, topic: &str, data: Bytes, metadata: &Pairs) -> Result<()> {
        self.check_open()?;
        let sending = async {
            let handle = self.enqueue(self.record(topic, data, metadata).await?).await?;
            self.delivered(topic, handle).await
        };
        sending.await.map_err(|error: Error| error.of(&self.0.component))
    }

    async fn look(&self) -> Result<()> {
        self.check_open()?;
        let options = DescribeClusterOptions::default().timeout(CALL_TIMEOUT);
        let admin = self.0.kafka.admin().metrics_push(false);
        match Box::pin(admin.describe_cluster(options)).await {
            Ok(described) if described.brokers.is_empty() => {
                let error = Error::new(Kind::Unavailable, "the Kafka cluster has no broker");
                Err(error.of(&self.0.component))
            }
            Ok(_) => Ok(()),
            Err(error) => match self.0.settings.failure(&error) {
                // Some Kafka-compatible services do not support the request, but they have answered.
                error if error.kind() == Kind::Unsupported => Ok(()),
                error => Err(error.of(&self.0.component)),
            },
        }
    }

    async fn join(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let values = Encoding::of(&request.metadata).and_then(|encoding| self.0.settings.values(encoding));
        let values = values.map_err(|error| error.of(&self.0.component))?;
        let member = Box::pin(Member::join(&self.0, &request, values)).await;
        let member = member.map_err(|error| error.of(&self.0.component))?;
        let under_way = self.0.members.token();
        Ok(Subscription::start_in_order(&request, |feed| async move {
            let _under_way = under_way;
            Box::pin(member.run(feed)).await
        }))
    }

    async fn end(&self) {
        self.0.closed.cancel();
        // Members commit settled records and leave the group.
        self.0.members.close();
        self.0.members.wait().await;
        let options = CloseOptions::new().timeout(CALL_TIMEOUT);
        if let Err(error) = Box::pin(self.0.producer.close_with(options)).await {
            tracing::debug!(target: LOG, "component {}: {error}", self.0.component);
        }
    }
}

/// Adds a hint if an envelope does not fit a schema, because publishing one is then rarely intended.
fn of_envelope(error: Error, data: &Bytes) -> Error {
    let json: Option<serde_json::Value> = serde_json::from_slice(data).ok();
    let is_envelope = json.is_some_and(|json| json.get("specversion").is_some());
    if error.kind() != Kind::InvalidRequest || !is_envelope {
        return error;
    }
    let text = format!(
        "{error}; it is the envelope of an event: publish with rawPayload=true to encode the data alone"
    );
    Error::invalid_request(text)
}

#[async_trait]
impl PubSub for Broker {
    fn features(&self) -> Features {
        Features {
            bulk_publish: true,
            at_least_once: true,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.send(&message.topic, message.data.clone(), &message.metadata)
            .await
    }

    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        self.check_open()?;
        let (mut queued, mut failed) = (Vec::with_capacity(bulk.entries.len()), Vec::new());
        for entry in &bulk.entries {
            let message = bulk.message(entry);
            let handle = match self.record(&message.topic, message.data, &message.metadata).await {
                Ok(record) => self.enqueue(record).await,
                Err(error) => Err(error),
            };
            queued.push((entry, handle));
        }
        for (entry, handle) in queued {
            let outcome = match handle {
                Ok(handle) => self.delivered(&bulk.topic, handle).await,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                failed.push(Failed {
                    id: entry.id.clone(),
                    error: error.of(&self.0.component),
                });
            }
        }
        Ok(failed)
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.join(request).await
    }

    async fn ping(&self) -> Result<()> {
        self.look().await
    }

    async fn close(&self) {
        self.end().await;
    }
}
