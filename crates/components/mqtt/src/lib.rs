//! MQTT 3.1.1: `pubsub.mqtt3` and `bindings.mqtt3`, with at-least-once delivery. MQTT 5: `pubsub.mqtt5`,
//! which Dapr does not have. All use one client (`client.rs`) for both versions.

mod broker;
mod client;
mod link;
mod publisher;
mod reader;
mod settings;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Error, InputBinding, Metadata, OutputBinding, PubSub, Result,
    bindings::{EventHandler, Invoke, Invoked},
    catalog::Version,
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use self::{
    client::Outgoing,
    publisher::Publisher,
    settings::{PubSubSettings, Settings},
};

const LOG: &str = "dapr.contrib";
const NAMES: &[&str] = &["mqtt3", "mqtt"];
const NAMES_5: &[&str] = &["mqtt5"];
const TOPIC: &str = "topic";
/// Timeout of calls to the broker.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .input_bindings
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let binding = Mqtt::open(&setup.metadata)?;
            Ok(Arc::new(binding) as Arc<dyn InputBinding>)
        }));
    catalog
        .output_bindings
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let binding = Mqtt::open(&setup.metadata)?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        }));
    catalog
        .pubsub
        .add(Entry::new(NAMES, Version::Only, |setup| async move {
            let broker = broker::open(PubSubSettings::v3(&setup)?).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
    catalog
        .pubsub
        .add(Entry::new(NAMES_5, Version::Only, |setup| async move {
            let broker = broker::open(PubSubSettings::v5(&setup)?).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}

struct Mqtt {
    settings: Settings,
    /// A broker allows one connection per name, so there is one reader at a time.
    reading: Mutex<()>,
    /// Connected on first use.
    publisher: Mutex<Option<Arc<Publisher>>>,
    closed: CancellationToken,
}

impl Mqtt {
    fn open(metadata: &Metadata) -> Result<Self> {
        Ok(Self {
            settings: Settings::read(metadata)?,
            reading: Mutex::default(),
            publisher: Mutex::default(),
            closed: CancellationToken::new(),
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::closed().of(&self.settings.connection.component));
        }
        Ok(())
    }

    async fn publisher(&self) -> Result<Arc<Publisher>> {
        let mut publisher = self.publisher.lock().await;
        self.check_open()?;
        match &*publisher {
            Some(present) => Ok(Arc::clone(present)),
            None => {
                let made = Arc::new(Publisher::start(&self.settings.connection)?);
                Ok(Arc::clone(publisher.insert(made)))
            }
        }
    }

    async fn end(&self) {
        self.closed.cancel();
        if let Some(publisher) = self.publisher.lock().await.take() {
            publisher.stop().await;
        }
        let _read = self.reading.lock().await;
    }
}

#[async_trait]
impl OutputBinding for Mqtt {
    fn operations(&self) -> Vec<&str> {
        vec!["create"]
    }

    async fn invoke(&self, call: &Invoke) -> Result<Option<Invoked>> {
        self.check_open()?;
        if call.operation != "create" {
            let text = format!("unsupported operation {}", call.operation);
            return Err(Error::unsupported(text).of(&self.settings.connection.component));
        }
        let topic = call.metadata.get(TOPIC).filter(|topic| !topic.is_empty());
        let topic = topic.unwrap_or(&self.settings.topic);
        let publisher = self.publisher().await?;
        let connection = &self.settings.connection;
        let message = Outgoing {
            topic: topic.clone(),
            payload: call.data.clone(),
            qos: connection.qos,
            retain: connection.retain,
            properties: None,
        };
        let published = publisher.publish(message).await;
        published.map_err(|error| error.of(&self.settings.connection.component))?;
        Ok(None)
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.settings.connection.check_reachable().await
    }

    async fn close(&self) {
        self.end().await;
    }
}

#[async_trait]
impl InputBinding for Mqtt {
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()> {
        let _alone = self.reading.lock().await;
        self.check_open()?;
        reader::read(&self.settings, handler, &drain, &self.closed).await
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.settings.connection.check_reachable().await
    }

    async fn close(&self) {
        self.end().await;
    }
}
