//! `pubsub.rabbitmq`: exchanges and queues declared like Dapr's, so that sidecars of both can share them.
//!
//! A topic is an exchange; a consumer group is a queue `<consumerID>-<topic>` bound to it. The broker
//! confirms every published message; every delivery is acknowledged once the app has handled it.

mod consumer;
mod declaration;
mod frames;
mod link;
mod settings;
mod socket;
mod topology;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use lapin::{
    BasicProperties,
    options::BasicPublishOptions,
    types::{AMQPValue, FieldTable, ShortString},
};
use outrigger_component::{
    Catalog, Entry, Error, Kind, PubSub, Result, Setup,
    catalog::Version,
    pubsub::{DEAD_LETTER_HOPS, Features, Publish, Subscribe, Subscription},
};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{consumer::Consumer, link::Link, settings::Options, topology::Queue};

const LOG: &str = "dapr.contrib";
/// Attempts per message and the delay between them, as in Dapr.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum time to live of a message: for a longer one RabbitMQ closes the channel.
const MAX_TTL: Duration = Duration::from_millis(4_294_967_295);

/// Adds the component of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .pubsub
        .add(Entry::new(&["rabbitmq"], Version::Only, |setup| async move {
            let broker = Rabbit::open(&setup).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    link: Link,
    options: Options,
    closed: CancellationToken,
    consumers: TaskTracker,
    component: Arc<str>,
}

struct Rabbit(Arc<BrokerInner>);

impl Rabbit {
    async fn open(setup: &Setup) -> Result<Self> {
        let options = Options::read(setup)?;
        let link = Link::new(&setup.metadata, options.reconnect_wait)?;
        link.connection().await?;
        Ok(Self(Arc::new(BrokerInner {
            link,
            options,
            closed: CancellationToken::new(),
            consumers: TaskTracker::new(),
            component: setup.metadata.component().clone(),
        })))
    }

    fn check_open(&self) -> Result<()> {
        if self.0.closed.is_cancelled() {
            return Err(Error::closed().of(&self.0.component));
        }
        Ok(())
    }

    /// Publishes and waits for the broker's confirmation.
    async fn once(&self, message: &Publish, outgoing: &Outgoing) -> Result<()> {
        let shared = &self.0;
        let publisher = shared.link.publisher(&message.topic, &shared.options).await?;
        let sent = publisher.basic_publish(
            short(&message.topic, "topic")?,
            outgoing.routing_key.clone(),
            BasicPublishOptions::default(),
            &message.data,
            outgoing.properties.clone(),
        );
        // A broker with a resource alarm confirms nothing.
        match link::call(async { sent.await?.await }).await {
            Ok(confirmed) if confirmed.is_nack() => Err(Error::new(
                Kind::Unavailable,
                format!(
                    "RabbitMQ rejected the message for {:?}: is a queue full?",
                    message.topic
                ),
            )),
            Ok(_) => Ok(()),
            Err(error) => {
                shared.link.forget_publisher(&publisher).await;
                Err(oversized(error, message.data.len()))
            }
        }
    }
}

/// RabbitMQ answers an oversized message by closing the channel, with all messages in flight on it. Its
/// publisher gets an error; the others retry.
fn oversized(error: Error, size: usize) -> Error {
    let text = error.to_string();
    let Some((_, sizes)) = text.split_once("message size ") else {
        return error;
    };
    let is_this = sizes.split(' ').next().and_then(|sizes| sizes.parse().ok()) == Some(size);
    if !is_this {
        let text = "RabbitMQ closed the channel because another message is too large";
        return Error::new(Kind::Unavailable, text);
    }
    let sizes = sizes.split(';').next().unwrap_or(sizes);
    Error::invalid_request(format!(
        "RabbitMQ rejected the message for its size of {sizes}: publish less at once, or raise max_message_size there"
    ))
}

/// A message in AMQP's form.
struct Outgoing {
    routing_key: ShortString,
    properties: BasicProperties,
}

impl Outgoing {
    fn new(message: &Publish, options: &Options) -> Result<Self> {
        let text = |name: &str| message.property(name).map(|text| short(text, name)).transpose();
        let kind = text("contentType")?.unwrap_or_else(|| "text/plain".into());
        let mut properties = BasicProperties::default().with_content_type(kind);
        if options.delivery_mode > 0 {
            properties = properties.with_delivery_mode(options.delivery_mode);
        }
        if let Some(ttl) = message.ttl()?.or(options.ttl) {
            if ttl > MAX_TTL {
                let text = format!(
                    "the time to live of {} s exceeds RabbitMQ's limit: set ttlInSeconds of the message or \
                     of the component to at most {}",
                    ttl.as_secs(),
                    MAX_TTL.as_secs()
                );
                return Err(Error::invalid_request(text));
            }
            properties = properties.with_expiration(ttl.as_millis().to_string().into());
        }
        if let Some(priority) = message.property("priority") {
            let priority = priority.parse().map_err(|_| {
                let text =
                    format!("invalid value {priority:?} for the metadata property priority: use 0 to 255");
                Error::invalid_request(text)
            })?;
            properties = properties.with_priority(priority);
        }
        if let Some(hops) = message.property(DEAD_LETTER_HOPS) {
            let mut headers = FieldTable::default();
            headers.insert(DEAD_LETTER_HOPS.into(), AMQPValue::LongString(hops.into()));
            properties = properties.with_headers(headers);
        }
        if let Some(id) = text("messageID")? {
            properties = properties.with_message_id(id);
        }
        if let Some(id) = text("correlationID")? {
            properties = properties.with_correlation_id(id);
        }
        if let Some(kind) = text("type")? {
            properties = properties.with_type(kind);
        }
        Ok(Self {
            routing_key: text("routingKey")?.unwrap_or_default(),
            properties,
        })
    }
}

/// An AMQP short string of at most 255 bytes.
fn short(text: &str, what: &str) -> Result<ShortString> {
    ShortString::try_new(text)
        .map_err(|_| Error::invalid_request(format!("the {what} {text:?} is longer than 255 bytes")))
}

#[async_trait]
impl PubSub for Rabbit {
    fn features(&self) -> Features {
        Features {
            ttl: true,
            at_least_once: !self.0.options.auto_ack,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        let named = |error: Error| error.of(&self.0.component);
        let outgoing = Outgoing::new(message, &self.0.options).map_err(named)?;
        for _ in 1..ATTEMPTS {
            match self.once(message, &outgoing).await {
                // After a timeout the message may be stored, so a retry could duplicate it.
                Err(error) if error.retryable() && error.kind() != Kind::Timeout => {
                    let closed = self.0.closed.run_until_cancelled(sleep(PAUSE)).await;
                    closed.ok_or_else(|| named(Error::closed()))?;
                }
                other => return other.map_err(named),
            }
        }
        self.once(message, &outgoing).await.map_err(named)
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let shared = &self.0;
        let queue = Queue::new(&request, &shared.options);
        let queue = queue.map_err(|error| error.of(&shared.component))?;
        // While its app is unhealthy, a consumer that auto-acknowledges or is the only active one would
        // withhold messages from others. It ends then, although its queue may be deleted.
        let others_get_it = !shared.options.auto_ack && !queue.has_one_consumer();
        let needs_consumer = shared.options.delete_when_unused && others_get_it;
        let consumer = Consumer::join(shared, queue, request.in_flight).await;
        let consumer = consumer.map_err(|error| error.of(&shared.component))?;
        let under_way = shared.consumers.token();
        let subscription = Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        });
        Ok(subscription
            .with_concurrency(shared.options.concurrency)
            .needing_consumer(needs_consumer))
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.0.link.connection().await.map(drop)
    }

    async fn close(&self) {
        self.0.closed.cancel();
        // Consumers return their messages before the connection closes.
        self.0.consumers.close();
        self.0.consumers.wait().await;
        self.0.link.close().await;
    }
}

#[cfg(test)]
mod tests {
    use outrigger_component::Metadata;

    use super::*;

    fn outgoing(of_component: &[(&str, &str)], of_message: &[(&str, &str)]) -> Result<Outgoing> {
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let setup = Setup {
            metadata: Metadata::new("broker", owned(of_component)).unwrap(),
            app_id: "app".to_owned(),
        };
        let message = Publish {
            metadata: owned(of_message).into_iter().collect(),
            ..Publish::default()
        };
        Outgoing::new(&message, &Options::read(&setup).unwrap())
    }

    /// RabbitMQ would close the channel, which other publishers share.
    #[test]
    fn rejects_excessive_time_to_live() {
        let (longest, longer) = ([("ttlInSeconds", "4294967")], [("ttlInSeconds", "4294968")]);
        let expiration = |outgoing: Outgoing| outgoing.properties.expiration().clone();
        let most: Option<ShortString> = Some("4294967000".into());
        assert_eq!(expiration(outgoing(&longest, &[]).unwrap()), most);
        assert_eq!(expiration(outgoing(&longer, &longest).unwrap()), most);
        for (of_component, of_message) in [(&longer[..], &[][..]), (&[], &longer)] {
            let error = outgoing(of_component, of_message).map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
            assert!(error.to_string().contains("ttlInSeconds"), "{error}");
        }
    }
}
