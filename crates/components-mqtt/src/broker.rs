//! `pubsub.mqtt3`: one connection for publishing and for all subscriptions, as Dapr has it. Its client id is the
//! `consumerID`, and the broker keeps the session of that name.
//!
//! A message is acknowledged when the app is done with it. What is returned stays here, unacknowledged, and comes again
//! after a pause; what was not acknowledged when the connection ended is sent again by the broker, and is not delivered
//! twice as long as the app still has it.

mod consumer;
mod filter;
mod held;
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
    Error, Kind, PubSub, Result, Setup,
    pubsub::{Features, Publish, Subscribe, Subscription, flag},
};
use rumqttc::{PublishOptions, QoS, SubscribeReasonCode};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    consumer::Consumer,
    filter::Filter,
    session::{Command, Route, Session},
};
use super::{publisher::Sender, settings::Connection};

/// Before a message that was returned comes again.
const AGAIN: Duration = Duration::from_secs(1);
/// Messages that are with subscriptions or wait for them; beyond it the connection is not read.
const MOST_HELD: usize = 8192;

/// Messages of QoS 2 that are on their way to the broker: Mosquitto loses those beyond its own limit, which is 20.
const AHEAD_EXACTLY_ONCE: u16 = 16;

/// What publishers and consumers of one component share.
struct Shared {
    sender: Sender,
    commands: mpsc::UnboundedSender<Command>,
    qos: QoS,
    next_route: AtomicU64,
    closed: CancellationToken,
    consumers: TaskTracker,
}

pub(super) struct MqttBroker {
    shared: Arc<Shared>,
    session: Mutex<Option<JoinHandle<()>>>,
}

pub(super) async fn open(setup: &Setup) -> Result<MqttBroker> {
    let metadata = &setup.metadata;
    let consumer = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
    let mut connection = Connection::read(metadata, consumer)?;
    let qos = match metadata.number::<u8>(&["qos"])? {
        None | Some(1) => QoS::AtLeastOnce,
        Some(0) => QoS::AtMostOnce,
        Some(2) => QoS::ExactlyOnce,
        Some(_) => return Err(metadata.wrong(&["qos"], "use 0, 1 or 2").into()),
    };
    if qos == QoS::ExactlyOnce {
        connection.ahead = AHEAD_EXACTLY_ONCE;
    }
    connection.reach().await?;
    let (client, events) = connection.client(&connection.consumer)?;
    let (told, online) = watch::channel(false);
    let stop = CancellationToken::new();
    let session = Session::new(client.clone(), told, stop.clone(), &connection, qos);
    let shared = Shared {
        commands: session.commands(),
        sender: Sender {
            client,
            connection,
            online,
            stop,
        },
        qos,
        next_route: AtomicU64::new(0),
        closed: CancellationToken::new(),
        consumers: TaskTracker::new(),
    };
    Ok(MqttBroker {
        shared: Arc::new(shared),
        session: Mutex::new(Some(tokio::spawn(session.run(events)))),
    })
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

impl Shared {
    /// Asks the broker for a topic, and waits for its word.
    async fn ask(&self, topic: &str) -> Result<()> {
        self.sender.connected().await?;
        let sent = self.sender.client.subscribe_tracked(topic, self.qos).await;
        let notice = sent.map_err(|error| match error {
            rumqttc::ClientError::InvalidRequest(_) => {
                Error::invalid_request(format!("{topic:?} is not a topic that can be subscribed to"))
            }
            other => self.sender.lost(other),
        })?;
        let answer = notice
            .wait_async()
            .await
            .map_err(|error| self.sender.lost(error))?;
        if answer.return_codes.contains(&SubscribeReasonCode::Failure) {
            let text = format!(
                "the broker refuses the subscription to {topic:?}: see the rights of this client there"
            );
            return Err(Error::new(Kind::Denied, text));
        }
        Ok(())
    }
}

#[async_trait]
impl PubSub for MqttBroker {
    fn features(&self) -> Features {
        Features {
            wildcards: true,
            at_least_once: self.shared.qos != QoS::AtMostOnce,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        let sender = &self.shared.sender;
        let retain = flag(&message.metadata, "retain").unwrap_or(sender.connection.retain);
        let options = PublishOptions::new(self.shared.qos).retain(retain);
        let published = sender
            .publish(&message.topic, message.data.clone(), options)
            .await;
        published.map_err(|error| self.named(error))
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let forget = flag(&request.metadata, "unsubscribeOnClose") == Some(true);
        let (messages, incoming) = mpsc::unbounded_channel();
        let route = Route {
            id: self.shared.next_route.fetch_add(1, Ordering::Relaxed),
            filter: Filter::new(&request.topic),
            messages,
        };
        let consumer = Consumer {
            shared: Arc::clone(&self.shared),
            route: route.id,
            unsubscribe: forget.then(|| request.topic.clone()),
            incoming,
        };
        // What comes as soon as the broker knows has a place to go.
        let _gone = self.shared.commands.send(Command::Add(route));
        let under_way = self.shared.consumers.token();
        let asking = self.shared.sender.persist(|| self.shared.ask(&request.topic));
        asking.await.map_err(|error| self.named(error))?;
        Ok(Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        }))
    }

    async fn ping(&self) -> Result<()> {
        self.check_open()?;
        self.shared.sender.connection.reach().await
    }

    async fn close(&self) {
        self.shared.closed.cancel();
        // Acknowledgements are written before the connection ends.
        self.shared.consumers.close();
        self.shared.consumers.wait().await;
        self.shared.sender.stop.cancel();
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session {
            // It ends by itself; how does not matter any more.
            let _ended = session.await;
        }
    }
}
