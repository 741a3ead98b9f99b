//! MQTT 3.1.1.

use std::time::Duration;

use outrigger_component::Kind;
use rumqttc::{
    AckMode, AsyncClient, ClientBuildError, ClientError, ConnectReturnCode, ConnectionError, EventLoop,
    ManualAck, MqttOptions, Outgoing as Sent, Packet, PubAck, PubRec, PublishOptions, QoS, SessionMode,
    SubAck, SubscribeReasonCode,
};

use super::{Event, Failure, Limits, Lost, Outgoing, Received, Refusal};
use crate::settings::{Connection, KEEP_ALIVE, MAX_MESSAGE};

#[derive(Clone)]
pub(crate) struct Client(AsyncClient);

pub(crate) struct Events(EventLoop);

/// `clean`: the broker discards the session with the connection.
pub(super) fn open(
    connection: &Connection,
    name: &str,
    clean: bool,
) -> Result<(Client, Events), ClientBuildError> {
    let broker = &connection.broker;
    let mut options = MqttOptions::new(name, (broker.host.clone(), broker.port));
    options
        .set_session_mode(if clean {
            SessionMode::Clean
        } else {
            SessionMode::Persistent
        })
        .set_keep_alive(KEEP_ALIVE)
        .set_max_packet_size(MAX_MESSAGE, MAX_MESSAGE)
        .set_inflight(connection.max_unacked)
        .set_ack_mode(AckMode::Manual);
    if let Some((user, password)) = &broker.account {
        if password.is_empty() {
            options.set_username(user);
        } else {
            options.set_credentials(user, password.clone().into_bytes());
        }
    }
    let dialled = broker.clone();
    options.set_socket_connector(move |_, _| {
        let broker = dialled.clone();
        async move { broker.connect().await }
    });
    // Senders bound the queue: callers wait for their message, and the broker's window bounds
    // acknowledgements.
    let (client, events) = AsyncClient::builder(options).unbounded().try_build()?;
    Ok((Client(client), Events(events)))
}

pub(super) fn size(message: &Outgoing) -> usize {
    let mut packet =
        rumqttc::Publish::from_bytes(message.topic.as_str(), message.qos, message.payload.clone());
    packet.pkid = 1;
    packet.size()
}

impl Client {
    pub(super) async fn publish(&self, message: Outgoing) -> Result<(), Failure> {
        let options = PublishOptions::new(message.qos).retain(message.retain);
        let sent = self
            .0
            .publish_tracked(message.topic, message.payload, options)
            .await;
        let completed = sent.map_err(unsent)?.wait_completion_async().await;
        completed.map_err(|error| Failure::Lost(error.into()))
    }

    pub(super) async fn subscribe(&self, filter: &str, qos: QoS) -> Result<(), Failure> {
        let notice = self.0.subscribe_tracked(filter, qos).await.map_err(unsent)?;
        let answer = notice
            .wait_async()
            .await
            .map_err(|error| Failure::Lost(error.into()))?;
        accepted(&answer).map_err(Failure::Refused)
    }

    pub(super) fn try_subscribe(&self, filter: &str, qos: QoS) -> bool {
        self.0.try_subscribe(filter, qos).is_ok()
    }

    pub(super) fn try_unsubscribe(&self, filter: &str) -> bool {
        self.0.try_unsubscribe(filter).is_ok()
    }

    pub(super) fn try_acknowledge(&self, qos: QoS, packet: u16) -> bool {
        let acknowledgement = match qos {
            QoS::AtMostOnce => return false,
            QoS::AtLeastOnce => ManualAck::PubAck(PubAck::new(packet)),
            QoS::ExactlyOnce => ManualAck::PubRec(PubRec::new(packet)),
        };
        self.0.try_manual_ack(acknowledgement).is_ok()
    }

    pub(super) fn try_disconnect(&self, limit: Duration) -> bool {
        self.0.try_disconnect_with_timeout(limit).is_ok()
    }
}

impl Events {
    pub(super) async fn poll(&mut self) -> Result<Event, Lost> {
        let event = self.0.poll().await.map_err(|error| lost(&error))?;
        Ok(match event {
            rumqttc::Event::Incoming(Packet::ConnAck(answer)) => Event::Connected {
                resumed: answer.session_present,
                limits: Limits::default(),
            },
            rumqttc::Event::Incoming(Packet::SubAck(answer)) => Event::Subscribed(accepted(&answer)),
            rumqttc::Event::Incoming(Packet::UnsubAck(_)) => Event::Unsubscribed,
            rumqttc::Event::Incoming(Packet::Publish(publish)) => Event::Received(received(publish)),
            rumqttc::Event::Outgoing(Sent::PubAck(_) | Sent::PubRec(_)) => Event::Acknowledged,
            _ => Event::Other,
        })
    }

    pub(super) fn cut(&mut self) {
        self.0.clean();
    }
}

fn received(publish: rumqttc::Publish) -> Received {
    Received {
        topic: String::from_utf8_lossy(&publish.topic).into(),
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        again: publish.dup,
        packet: publish.pkid,
        expires: None,
        properties: None,
    }
}

fn unsent(error: ClientError) -> Failure {
    match error {
        ClientError::InvalidRequest(_) => Failure::Topic,
        other => Failure::Lost(other.into()),
    }
}

fn accepted(answer: &SubAck) -> Result<(), Refusal> {
    if !answer.return_codes.contains(&SubscribeReasonCode::Failure) {
        return Ok(());
    }
    Err(Refusal {
        kind: Kind::Denied,
        text: "check the permissions of this client at the broker".to_owned(),
    })
}

fn lost(error: &ConnectionError) -> Lost {
    let refusal = match error {
        ConnectionError::ConnectionRefused(code) => refusal(*code),
        _ => None,
    };
    Lost {
        text: refusal
            .as_ref()
            .map_or_else(|| error.to_string(), |refusal| refusal.text.clone()),
        refusal,
        done: matches!(error, ConnectionError::RequestsDone),
    }
}

fn refusal(code: ConnectReturnCode) -> Option<Refusal> {
    let (kind, text) = match code {
        ConnectReturnCode::Success => return None,
        ConnectReturnCode::RefusedProtocolVersion => (
            Kind::Configuration,
            "the broker does not speak MQTT 3.1.1: use a component of another version",
        ),
        ConnectReturnCode::BadClientId => (
            Kind::Configuration,
            "the broker refuses the client id: set consumerID to another one",
        ),
        ConnectReturnCode::ServiceUnavailable => (Kind::Unavailable, "the broker is not available yet"),
        ConnectReturnCode::BadUserNamePassword => (
            Kind::Denied,
            "the broker refuses this user and password: check those in url",
        ),
        ConnectReturnCode::NotAuthorized => (
            Kind::Denied,
            "the broker does not authorize this client: check user and password in url, and the permissions of this \
             client at the broker",
        ),
    };
    Some(Refusal {
        kind,
        text: text.to_owned(),
    })
}
