//! `pubsub.jetstream`: NATS streams, with consumers like those of Dapr's component, so that sidecars of both
//! can share a stream and a durable consumer.
//!
//! A topic is a subject of an existing stream; the component creates no streams. A consumer group is a
//! durable consumer with a deliver group. The component reports unsettled messages as in progress, so that
//! the server does not redeliver them.

mod consumer;
mod prefetched;
mod progress;
mod settings;

use std::{sync::Arc, time::Duration};

use async_nats::{
    Client, ConnectErrorKind, HeaderMap,
    connection::State,
    header::NATS_MESSAGE_ID,
    jetstream::{
        Context,
        context::{GetStreamByNameErrorKind, PublishErrorKind},
        publish::PublishAck,
        stream::Stream,
    },
};
use async_trait::async_trait;
use outrigger_component::{
    Catalog, Entry, Error, Kind, PubSub, Result, Setup,
    catalog::Version,
    deadline::within,
    pubsub::{DEAD_LETTER_HOPS, Features, Publish, Subscribe, Subscription},
};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{consumer::Consumer, settings::Settings};

const LOG: &str = "dapr.contrib";
/// Timeout of calls to the server.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval while reconnecting.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Attempts to publish a message.
const ATTEMPTS: u32 = 3;

/// Adds the component of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .pubsub
        .add(Entry::new(&["jetstream"], Version::Only, |setup| async move {
            let broker = JetStream::open(&setup).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    client: Client,
    jetstream: Context,
    settings: Settings,
    closed: CancellationToken,
    consumers: TaskTracker,
    component: Arc<str>,
}

struct JetStream(Arc<BrokerInner>);

/// The relevant field of an envelope.
#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
}

impl JetStream {
    async fn open(setup: &Setup) -> Result<Self> {
        let (settings, options) = Settings::read(&setup.metadata)?;
        let connecting = async {
            let connected = options.connect(&settings.url).await;
            connected.map_err(|error| {
                let kind = match error.kind() {
                    ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                        Kind::Denied
                    }
                    ConnectErrorKind::ServerParse => Kind::Configuration,
                    _ => Kind::Unavailable,
                };
                Error::new(kind, format!("NATS at {}: {error}", settings.at()))
            })
        };
        let client = within(CALL_TIMEOUT, "NATS", connecting).await?;
        Ok(Self(Arc::new(BrokerInner {
            jetstream: settings.context(client.clone()),
            client,
            settings,
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
}

impl BrokerInner {
    /// Waits for a connection. Without one, messages would be sent after the caller gave up.
    async fn connected(&self) -> Result<()> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        while self.client.connection_state() != State::Connected {
            if Instant::now() >= deadline {
                let text = format!("NATS at {}: no connection", self.settings.at());
                return Err(Error::new(Kind::Unavailable, text));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The stream of a subject.
    async fn stream(&self, topic: &str) -> Result<Stream> {
        self.connected().await?;
        let name = match &self.settings.stream {
            Some(name) => name.clone(),
            None => self.jetstream.stream_by_subject(topic).await.map_err(|error| {
                let text = match error.kind() {
                    GetStreamByNameErrorKind::NotFound => return no_stream(topic),
                    _ => format!("the stream of {topic:?}: {error}"),
                };
                Error::new(Kind::Unavailable, text)
            })?,
        };
        let stream = self.jetstream.get_stream(&name).await;
        stream.map_err(|error| {
            let text = format!("the stream {name:?}: {error}");
            match error.kind() {
                async_nats::jetstream::context::GetStreamErrorKind::Request => {
                    Error::new(Kind::Unavailable, text)
                }
                _ => Error::new(Kind::Configuration, text),
            }
        })
    }

    /// Publishes with retries. The server deduplicates attempts by message id.
    async fn publish(&self, message: &Publish, headers: HeaderMap) -> Result<PublishAck> {
        for _ in 1..ATTEMPTS {
            match self.attempt(message, headers.clone()).await {
                Err(error) if error.retryable() && !self.closed.is_cancelled() => {}
                other => return other,
            }
        }
        self.attempt(message, headers).await
    }

    async fn attempt(&self, message: &Publish, headers: HeaderMap) -> Result<PublishAck> {
        self.connected().await?;
        let sent = self
            .jetstream
            .publish_with_headers(message.topic.clone(), headers, message.data.clone());
        let acknowledged = match sent.await {
            Ok(acknowledged) => acknowledged.await,
            Err(error) => Err(error),
        };
        acknowledged.map_err(|error| match error.kind() {
            PublishErrorKind::StreamNotFound => no_stream(&message.topic),
            PublishErrorKind::MaxPayloadExceeded => Error::invalid_request(format!(
                "a message of {} bytes is larger than NATS accepts: {error}",
                message.data.len()
            )),
            PublishErrorKind::TimedOut => Error::new(Kind::Timeout, format!("NATS: {error}")),
            PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
                Error::new(Kind::Unavailable, format!("NATS: {error}"))
            }
            _ => Error::new(Kind::Internal, format!("NATS: {error}")),
        })
    }

    /// Whether the presumed duplicate has this topic. Message ids are unique per stream, not per subject, and
    /// a dead letter or an outbox event is published to a second subject under the same id.
    async fn has_in_topic(&self, duplicate: &PublishAck, topic: &str) -> bool {
        let looking = async {
            let stream = self.jetstream.get_stream_no_info(&duplicate.stream).await.ok()?;
            stream.get_raw_message(duplicate.sequence).await.ok()
        };
        let found = timeout(CALL_TIMEOUT, looking).await;
        found.is_ok_and(|found| found.is_some_and(|stored| stored.subject.as_str() == topic))
    }
}

fn no_stream(topic: &str) -> Error {
    let text = format!("no JetStream stream has the subject {topic:?}: create one");
    Error::new(Kind::NotFound, text)
}

#[async_trait]
impl PubSub for JetStream {
    fn features(&self) -> Features {
        Features {
            wildcards: true,
            at_least_once: self.0.settings.acknowledges(),
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        let mut headers = HeaderMap::new();
        // The server deduplicates by the envelope's id.
        if let Ok(Envelope { id: Some(id) }) = serde_json::from_slice(&message.data)
            && !id.contains(['\r', '\n'])
        {
            headers.insert(NATS_MESSAGE_ID, id);
        }
        if let Some(hops) = message.property(DEAD_LETTER_HOPS)
            && !hops.contains(['\r', '\n'])
        {
            headers.insert(DEAD_LETTER_HOPS, hops);
        }
        let named = |error: Error| error.of(&self.0.component);
        let acknowledged = self.0.publish(message, headers.clone()).await.map_err(named)?;
        let Some(id) = headers.get(NATS_MESSAGE_ID).filter(|_| acknowledged.duplicate) else {
            return Ok(());
        };
        if self.0.has_in_topic(&acknowledged, &message.topic).await {
            return Ok(());
        }
        let own = format!("{} {}", id.as_str(), message.topic);
        headers.insert(NATS_MESSAGE_ID, own);
        self.0.publish(message, headers).await.map(drop).map_err(named)
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let joining = Consumer::join(&self.0, &request.topic);
        let consumer = Box::pin(within(CALL_TIMEOUT * 2, "NATS", joining)).await;
        let consumer = consumer.map_err(|error| error.of(&self.0.component))?;
        let under_way = self.0.consumers.token();
        let subscription = Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        });
        Ok(subscription.with_concurrency(self.0.settings.concurrency))
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.0.connected().await
    }

    async fn close(&self) {
        self.0.closed.cancel();
        // Consumers return their messages before the connection closes.
        self.0.consumers.close();
        self.0.consumers.wait().await;
        // Fails if the connection is lost.
        let _gone = timeout(CALL_TIMEOUT, self.0.client.drain()).await;
    }
}
