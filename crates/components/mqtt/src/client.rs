//! MQTT 3.1.1 and MQTT 5 behind one client: what publishers and readers need of either. What a version lacks is left out
//! on the way.

mod v3;
mod v5;

use std::{error::Error as StdError, sync::Arc, time::Duration};

use bytes::Bytes;
use outrigger_component::{Error, Kind, Result};
use rumqttc::QoS;
use tokio::time::Instant;

use super::settings::{Connection, MAX_MESSAGE, Version};

/// User properties of a message that is published, or kept of one that comes.
pub(crate) const MAX_USER_PROPERTIES: usize = 256;

/// Sends on a connection.
#[derive(Clone)]
pub(crate) enum Client {
    V3(v3::Client),
    V5(v5::Client),
}

/// Keeps a connection, making it anew when it breaks, and tells what comes.
pub(crate) enum Events {
    V3(Box<v3::Events>),
    V5(Box<v5::Events>),
}

/// What happened on a connection.
#[derive(Debug)]
pub(crate) enum Event {
    /// The broker has accepted this client.
    Connected {
        /// It kept the session.
        resumed: bool,
        limits: Limits,
    },
    Received(Received),
    /// The answer to a subscription.
    Subscribed(Result<(), Refusal>),
    /// The answer to the end of one.
    Unsubscribed,
    /// An acknowledgement was written.
    Acknowledged,
    Other,
}

/// Why a connection ended, or was not made.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) text: String,
    /// The broker's own word.
    pub(crate) refusal: Option<Refusal>,
    /// It ended on purpose.
    pub(crate) done: bool,
}

/// A broker's no, with its reason and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The topic cannot be one.
    Topic,
    Refused(Refusal),
    /// With the connection.
    Lost(Box<dyn StdError + Send + Sync>),
}

/// What a broker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The largest packet, bytes.
    pub(crate) packet: usize,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) wildcards: bool,
    pub(crate) shared: bool,
    /// Subscriptions may have numbers.
    pub(crate) numbers: bool,
}

/// A message from the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) topic: Arc<str>,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// It was sent before.
    pub(crate) again: bool,
    /// Which packet of its connection it is; 0 where no acknowledgement is wanted.
    pub(crate) packet: u16,
    /// When nobody wants it any more.
    pub(crate) expires: Option<Instant>,
    pub(crate) properties: Option<Box<Properties>>,
}

/// A message for the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) properties: Option<Box<Properties>>,
}

/// What MQTT 5 says of a message beside its payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) content_type: Option<String>,
    /// Seconds until it is dropped.
    pub(crate) expiry: Option<u32>,
    pub(crate) response_topic: Option<String>,
    pub(crate) correlation: Option<Bytes>,
    pub(crate) user: Vec<(String, String)>,
    /// The numbers of the subscriptions that it came by.
    pub(crate) subscriptions: Vec<u32>,
}

/// Options of a subscription; only MQTT 5 has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SubscribeOptions {
    /// Comes back with each message; more than 0.
    pub(crate) number: Option<u32>,
    pub(crate) retained: Retained,
}

/// When a subscription gets the messages that the broker retains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Retained {
    Always,
    /// When the broker has no such subscription of this client yet.
    #[default]
    New,
    Never,
}

/// A client named `name`, which connects when its events are polled. A broker ends the connection of another client of
/// this name.
///
/// # Errors
/// `Configuration`: the library does not take the settings.
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
    /// How large the packet of a message is, bytes.
    pub(crate) fn size(&self, message: &Outgoing) -> usize {
        match self {
            Self::V3(_) => v3::size(message),
            Self::V5(_) => v5::size(message),
        }
    }

    /// Sends a message, and waits until the broker has it.
    pub(crate) async fn publish(&self, message: Outgoing) -> Result<(), Failure> {
        match self {
            Self::V3(client) => client.publish(message).await,
            Self::V5(client) => client.publish(message).await,
        }
    }

    /// Subscribes, and waits for the broker's word.
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

    /// Subscribes; the answer is an event. Whether that was possible.
    pub(crate) fn try_subscribe(&self, filter: &str, qos: QoS, options: SubscribeOptions) -> bool {
        match self {
            Self::V3(client) => client.try_subscribe(filter, qos),
            Self::V5(client) => client.try_subscribe(filter, qos, options),
        }
    }

    /// Ends a subscription. Whether that was possible.
    pub(crate) fn try_unsubscribe(&self, filter: &str) -> bool {
        match self {
            Self::V3(client) => client.try_unsubscribe(filter),
            Self::V5(client) => client.try_unsubscribe(filter),
        }
    }

    /// Acknowledges a message of this connection. Whether that was possible, and wanted.
    pub(crate) fn try_acknowledge(&self, message: &Received) -> bool {
        match self {
            Self::V3(client) => client.try_acknowledge(message.qos, message.packet),
            Self::V5(client) => client.try_acknowledge(message.qos, message.packet),
        }
    }

    /// Ends the connection on purpose, once what is under way has been answered or `limit` is over. Whether that was
    /// possible.
    pub(crate) fn try_disconnect(&self, limit: Duration) -> bool {
        match self {
            Self::V3(client) => client.try_disconnect(limit),
            Self::V5(client) => client.try_disconnect(limit),
        }
    }
}

impl Events {
    /// What happens next. Can be abandoned.
    ///
    /// # Errors
    /// The connection ended, or was not made; polled again, it is made anew.
    pub(crate) async fn poll(&mut self) -> Result<Event, Lost> {
        match self {
            Self::V3(events) => events.poll().await,
            Self::V5(events) => events.poll().await,
        }
    }

    /// Ends the connection without a word; polled again, it is made anew.
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
    /// Whether trying again is in vain until somebody changes something.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self.kind, Kind::Denied | Kind::Configuration)
    }
}

impl Received {
    pub(crate) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// What it takes in memory, about; bytes.
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
