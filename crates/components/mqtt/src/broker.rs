//! `pubsub.mqtt3` and `pubsub.mqtt5`: one connection for publishing and all subscriptions, as in Dapr. The
//! broker keeps the session of its client id.
//!
//! A message is acknowledged when the app has handled it. A returned message stays here unacknowledged and is
//! redelivered after a delay. After a reconnect the broker resends unacknowledged messages; those the app
//! still holds are not delivered twice.

mod consumer;
mod filter;
mod in_flight;
mod properties;
mod session;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outrigger_component::{
    Error, PubSub, Result,
    pubsub::{Features, Publish, Subscribe, Subscription, flag, property},
};
use rumqttc::QoS;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    consumer::Consumer,
    filter::Filter,
    session::{Command, Route, Session},
};
use super::{
    client::{self, Outgoing, Retained, SubscribeOptions},
    link::Link,
    publisher::Sender,
    settings::{PubSubSettings, Version},
};

/// Delay before a returned message is redelivered.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);
/// Maximum messages held or queued by subscriptions; beyond it the connection is not read.
const MAX_IN_FLIGHT: usize = 8192;
/// Their maximum memory in bytes. Further messages stay at the broker, which resends them.
const MAX_IN_FLIGHT_BYTES: usize = 32 << 20;

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    sender: Sender,
    commands: mpsc::UnboundedSender<Command>,
    /// Clients with this name share subscriptions.
    group: Option<String>,
    next_route: AtomicU64,
    closed: CancellationToken,
    consumers: TaskTracker,
}

pub(super) struct MqttBroker {
    shared: Arc<BrokerInner>,
    session: Mutex<Option<JoinHandle<()>>>,
}

pub(super) async fn open(settings: PubSubSettings) -> Result<MqttBroker> {
    let PubSubSettings { connection, group } = settings;
    connection.check_reachable().await?;
    let (client, events) = client::open(&connection, &connection.client)?;
    let (state, link) = watch::channel(Link::Down(None));
    let stop = CancellationToken::new();
    let session = Session::new(client.clone(), state, stop.clone(), &connection);
    let shared = BrokerInner {
        commands: session.commands(),
        sender: Sender {
            client,
            connection,
            link,
            stop,
        },
        group,
        next_route: AtomicU64::new(0),
        closed: CancellationToken::new(),
        consumers: TaskTracker::new(),
    };
    let broker = MqttBroker {
        shared: Arc::new(shared),
        session: Mutex::new(Some(tokio::spawn(session.run(events)))),
    };
    // Reports a rejected login at once.
    let connected = broker.shared.sender.persist(|| broker.shared.sender.connected());
    if let Err(error) = connected.await {
        broker.close().await;
        return Err(broker.named(error));
    }
    Ok(broker)
}

impl MqttBroker {
    fn check_open(&self) -> Result<()> {
        if self.shared.closed.is_cancelled() {
            return Err(Error::closed().of(&self.shared.sender.connection.component));
        }
        Ok(())
    }

    fn named(&self, error: Error) -> Error {
        error.of(&self.shared.sender.connection.component)
    }
}

impl BrokerInner {
    /// Subscribes and waits for the broker's answer.
    async fn ask(&self, filter: &Filter, options: SubscribeOptions) -> Result<()> {
        let limits = self.sender.connected().await?;
        limits.check_filter(&filter.asked)?;
        let mut options = options;
        options.number = options.number.filter(|_| limits.numbers);
        let Sender {
            client, connection, ..
        } = &self.sender;
        let asked = client.subscribe(&filter.asked, connection.qos, options).await;
        let what = format!("the subscription to {:?}", filter.asked);
        asked.map_err(|failure| self.sender.failed(&what, failure))
    }

    /// The filter for a topic; shared by a group if replicas share.
    fn filter(&self, topic: &str) -> Filter {
        match &self.group {
            Some(group) if !topic.starts_with("$share/") => Filter::new(&format!("$share/{group}/{topic}")),
            _ => Filter::new(topic),
        }
    }
}

/// Which retained messages a subscription gets.
fn retained(request: &Subscribe) -> Result<Retained> {
    Ok(match property(&request.metadata, "retainHandling") {
        None | Some("new") => Retained::New,
        Some("always") => Retained::Always,
        Some("never") => Retained::Never,
        Some(other) => {
            let text = format!(
                "invalid value {other:?} for the metadata property retainHandling: use new, always or never"
            );
            return Err(Error::invalid_request(text));
        }
    })
}

#[async_trait]
impl PubSub for MqttBroker {
    fn features(&self) -> Features {
        let connection = &self.shared.sender.connection;
        Features {
            ttl: matches!(connection.version, Version::V5(_)),
            wildcards: true,
            at_least_once: connection.qos != QoS::AtMostOnce,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        let sender = &self.shared.sender;
        let connection = &sender.connection;
        let properties = match connection.version {
            Version::V3 { .. } => None,
            Version::V5(_) => {
                let properties = properties::of(message).map_err(|error| self.named(error))?;
                Some(Box::new(properties))
            }
        };
        let outgoing = Outgoing {
            topic: message.topic.clone(),
            payload: message.data.clone(),
            qos: connection.qos,
            retain: flag(&message.metadata, "retain").unwrap_or(connection.retain),
            properties,
        };
        let published = sender.publish(outgoing).await;
        published.map_err(|error| self.named(error))
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let forget = flag(&request.metadata, "unsubscribeOnClose") == Some(true);
        let retained = match self.shared.sender.connection.version {
            Version::V3 { .. } => Retained::default(),
            Version::V5(_) => retained(&request).map_err(|error| self.named(error))?,
        };
        let filter = self.shared.filter(&request.topic);
        let id = self.shared.next_route.fetch_add(1, Ordering::Relaxed);
        let options = SubscribeOptions {
            number: Some(filter.number()),
            retained,
        };
        let (messages, incoming) = mpsc::unbounded_channel();
        let route = Route {
            id,
            filter: filter.clone(),
            options,
            messages,
        };
        let consumer = Consumer {
            shared: Arc::clone(&self.shared),
            route: route.id,
            unsubscribe: forget.then(|| filter.clone()),
            incoming,
        };
        // Registered first, so that the earliest messages have a route.
        let (added, taken) = oneshot::channel();
        let _gone = self.shared.commands.send(Command::Add(route, added));
        // The session may be about to unsubscribe the same filter; that request must come first.
        let _ended = taken.await;
        let under_way = self.shared.consumers.token();
        let asking = self.shared.sender.persist(|| self.shared.ask(&filter, options));
        asking.await.map_err(|error| self.named(error))?;
        Ok(Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.shared.sender.connection.check_reachable().await
    }

    async fn close(&self) {
        self.shared.closed.cancel();
        // Acknowledgements are written before disconnecting.
        self.shared.consumers.close();
        self.shared.consumers.wait().await;
        self.shared.sender.stop.cancel();
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session {
            // The session ends by itself; its result is irrelevant here.
            let _ended = session.await;
        }
    }
}
