//! One client for MQTT 3.1.1 and MQTT 5. Features missing in a version are left out when sending.

mod v3;
mod v5;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use bytes::Bytes;
use outrigger_component::{Error, Kind, Result};
use rumqttc::QoS;
use tokio::time::Instant;

use super::settings::{Connection, MAX_MESSAGE, Version};

/// Maximum user properties of a published or received message.
pub(crate) const MAX_USER_PROPERTIES: usize = 256;

/// Sends on a connection.
#[derive(Clone)]
pub(crate) enum Client {
    V3(v3::Client),
    V5(v5::Client),
}

/// Maintains a connection, reconnects, and reports events.
pub(crate) enum Events {
    V3(Box<v3::Events>),
    V5(Box<v5::Events>),
}

/// An event of a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// The broker accepted this client.
    Connected {
        /// The broker kept the session.
        resumed: bool,
        limits: Limits,
    },
    Received(Received),
    /// Answer to a subscription.
    Subscribed(Result<(), Refusal>),
    /// Answer to an unsubscription.
    Unsubscribed,
    /// An acknowledgement was written.
    Acknowledged,
    Other,
}

/// Why a connection ended or failed.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) text: String,
    /// The broker's reason.
    pub(crate) refusal: Option<Refusal>,
    /// Disconnected on purpose.
    pub(crate) done: bool,
}

/// A rejection by the broker, with reason and remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The topic is invalid.
    Topic,
    Refused(Refusal),
    /// The connection was lost.
    Lost(Box<dyn StdError + Send + Sync>),
}

/// Limits announced by a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum packet size in bytes.
    pub(crate) packet: usize,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) wildcards: bool,
    pub(crate) shared: bool,
    /// Whether subscription identifiers are supported.
    pub(crate) numbers: bool,
}

/// A message from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) topic: Arc<str>,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Whether it was sent before.
    pub(crate) again: bool,
    /// Packet identifier; 0 if no acknowledgement is needed.
    pub(crate) packet: u16,
    /// Expiry of the message.
    pub(crate) expires: Option<Instant>,
    pub(crate) properties: Option<Box<Properties>>,
}

/// A message to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) properties: Option<Box<Properties>>,
}

/// MQTT 5 properties of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) content_type: Option<String>,
    /// Expiry in seconds.
    pub(crate) expiry: Option<u32>,
    pub(crate) response_topic: Option<String>,
    pub(crate) correlation: Option<Bytes>,
    pub(crate) user: Vec<(String, String)>,
    /// Identifiers of the matching subscriptions.
    pub(crate) subscriptions: Vec<u32>,
}

/// Options of a subscription; only MQTT 5 supports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SubscribeOptions {
    /// Returned with each message; greater than 0.
    pub(crate) number: Option<u32>,
    pub(crate) retained: Retained,
}

/// When a subscription gets retained messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Retained {
    Always,
    /// If the client has no such subscription yet.
    #[default]
    New,
    Never,
}

/// A client named `name`, which connects when its events are polled. The broker disconnects other clients of
/// this name.
///
/// # Errors
/// `Configuration`: the library rejects the settings.
pub(crate) fn open(connection: &Connection, name: &str) -> Result<(Client, Events)> {
    match connection.version {
        Version::V3 { clean } => {
            let (client, events) = v3::open(connection, name, clean).map_err(unusable)?;
            Ok((Client::V3(client), Events::V3(Box::new(events))))
        }
        Version::V5(session) => {
            let (client, events) = v5::open(connection, name, session).map_err(unusable)?;
            Ok((Client::V5(client), Events::V5(Box::new(events))))
        }
    }
}

fn unusable(error: impl StdError + Send + Sync + 'static) -> Error {
    Error::new(Kind::Configuration, "mqtt").because(error)
}

impl Client {
    /// Packet size of a message in bytes.
    pub(crate) fn size(&self, message: &Outgoing) -> usize {
        match self {
            Self::V3(_) => v3::size(message),
            Self::V5(_) => v5::size(message),
        }
    }

    /// Publishes a message and waits for the broker's acknowledgement.
    pub(crate) async fn publish(&self, message: Outgoing) -> Result<(), Failure> {
        match self {
            Self::V3(client) => client.publish(message).await,
            Self::V5(client) => client.publish(message).await,
        }
    }

    /// Subscribes and waits for the broker's answer.
    pub(crate) async fn subscribe(
        &self,
        filter: &str,
        qos: QoS,
        options: SubscribeOptions,
    ) -> Result<(), Failure> {
        match self {
            Self::V3(client) => client.subscribe(filter, qos).await,
            Self::V5(client) => client.subscribe(filter, qos, options).await,
        }
    }

    /// Subscribes; the answer is an event. Returns false if the client cannot send.
    pub(crate) fn try_subscribe(&self, filter: &str, qos: QoS, options: SubscribeOptions) -> bool {
        match self {
            Self::V3(client) => client.try_subscribe(filter, qos),
            Self::V5(client) => client.try_subscribe(filter, qos, options),
        }
    }

    /// Unsubscribes. Returns false if the client cannot send.
    pub(crate) fn try_unsubscribe(&self, filter: &str) -> bool {
        match self {
            Self::V3(client) => client.try_unsubscribe(filter),
            Self::V5(client) => client.try_unsubscribe(filter),
        }
    }

    /// Acknowledges a message of this connection. Returns false if that is impossible or unnecessary.
    pub(crate) fn try_acknowledge(&self, message: &Received) -> bool {
        match self {
            Self::V3(client) => client.try_acknowledge(message.qos, message.packet),
            Self::V5(client) => client.try_acknowledge(message.qos, message.packet),
        }
    }

    /// Disconnects once pending requests are answered, or after `limit`. Returns false if the client cannot
    /// send.
    pub(crate) fn try_disconnect(&self, limit: Duration) -> bool {
        match self {
            Self::V3(client) => client.try_disconnect(limit),
            Self::V5(client) => client.try_disconnect(limit),
        }
    }
}

impl Events {
    /// The next event. Cancel-safe.
    ///
    /// # Errors
    /// The connection ended or failed; the next call reconnects.
    pub(crate) async fn poll(&mut self) -> Result<Event, Lost> {
        match self {
            Self::V3(events) => events.poll().await,
            Self::V5(events) => events.poll().await,
        }
    }

    /// Drops the connection without a disconnect packet; the next poll reconnects.
    pub(crate) fn cut(&mut self) {
        match self {
            Self::V3(events) => events.cut(),
            Self::V5(events) => events.cut(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packet: MAX_MESSAGE,
            qos: QoS::ExactlyOnce,
            retain: true,
            wildcards: true,
            shared: true,
            numbers: true,
        }
    }
}

impl Refusal {
    /// Whether a retry is useless without intervention.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::Denied | Kind::Configuration)
    }
}

impl Received {
    pub(crate) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// Approximate memory size in bytes.
    pub(crate) fn size(&self) -> usize {
        let properties = self.properties.as_deref();
        self.topic.len() + self.payload.len() + properties.map_or(0, Properties::size)
    }
}

impl Properties {
    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let user = self.user.iter();
        size_of::<Self>()
            + text(&self.content_type)
            + text(&self.response_topic)
            + self.correlation.as_ref().map_or(0, Bytes::len)
            + user
                .map(|pair| size_of_val(pair) + pair.0.len() + pair.1.len())
                .sum::<usize>()
    }
}
