//! MQTT 5.

mod fresh;
mod reason;

use std::time::Duration;

use rumqttc5::{
    AckMode, AsyncClient, ClientBuildError, ClientError, ConnAck, ConnectionError, DisconnectProperties,
    DisconnectReasonCode, EventLoop, ManualAck, MqttOptions, NoticeFailureReason, Outgoing as Sent, Packet,
    PubAck, PubRec, Publish, PublishNoticeError, PublishOptions, PublishProperties, PublishResult, QoS,
    RetainForwardRule, StateError, SubAck, SubscribeFilter, SubscribeProperties,
};

use tokio::time::Instant;

use self::fresh::Fresh;
use super::{
    Event, Failure, Limits, Lost, MAX_USER_PROPERTIES, Outgoing, Properties, Received, Refusal, Retained,
    SubscribeOptions,
};
use crate::settings::{Connection, KEEP_ALIVE, MAX_MESSAGE, Session};

#[derive(Clone)]
pub(crate) struct Client {
    client: AsyncClient,
    /// Discard the session on a clean disconnect.
    forget: bool,
}

pub(crate) struct Events(EventLoop);

pub(super) fn open(
    connection: &Connection,
    name: &str,
    session: Session,
) -> Result<(Client, Events), ClientBuildError> {
    let broker = &connection.broker;
    let mut options = MqttOptions::new(name, (broker.host.clone(), broker.port));
    options
        .set_clean_start(session.clean_start)
        .set_keep_alive(KEEP_ALIVE)
        .set_session_expiry_interval(Some(session.expiry))
        .set_receive_maximum(Some(session.window))
        .set_max_packet_size(u32::try_from(MAX_MESSAGE).ok())
        .set_outgoing_inflight_upper_limit(connection.max_unacked)
        .set_ack_mode(AckMode::Manual)
        .set_session_store(Fresh::new(name, connection));
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
    // Senders bound the queue, as in 3.1.1.
    let (client, events) = AsyncClient::builder(options).unbounded().try_build()?;
    let forget = session.forget;
    Ok((Client { client, forget }, Events(events)))
}

pub(super) fn size(message: &Outgoing) -> usize {
    let properties = properties(message);
    let mut packet = Publish::new(
        message.topic.as_str(),
        message.qos,
        message.payload.clone(),
        properties,
    );
    packet.pkid = 1;
    packet.size()
}

impl Client {
    pub(super) async fn publish(&self, message: Outgoing) -> Result<(), Failure> {
        let mut options = PublishOptions::new(message.qos).retain(message.retain);
        if let Some(properties) = properties(&message) {
            options = options.properties(properties);
        }
        let sent = self
            .client
            .publish_tracked(message.topic, message.payload, options)
            .await;
        let refusal = match sent.map_err(unsent)?.wait_async().await {
            Ok(PublishResult::Qos1(answer)) => reason::of_puback(&answer),
            Ok(PublishResult::Qos2PubRecRejected(answer)) => reason::of_pubrec(&answer),
            // Whatever the reason code of a PUBCOMP, the broker has the message.
            Ok(PublishResult::Qos0Flushed | PublishResult::Qos2Completed(_)) => None,
            Err(PublishNoticeError::RetainNotSupported) => reason::refusal(0x9A, None),
            Err(error) => return Err(Failure::Lost(error.into())),
        };
        refusal.map_or(Ok(()), |refusal| Err(Failure::Refused(refusal)))
    }

    pub(super) async fn subscribe(
        &self,
        filter: &str,
        qos: QoS,
        options: SubscribeOptions,
    ) -> Result<(), Failure> {
        let (filter, properties) = asked(filter, qos, options);
        let sent = self
            .client
            .subscribe_many_with_properties_tracked([filter], properties);
        let answer = sent
            .await
            .map_err(unsent)?
            .wait_async()
            .await
            .map_err(|error| Failure::Lost(error.into()))?;
        accepted(&answer).map_err(Failure::Refused)
    }

    pub(super) fn try_subscribe(&self, filter: &str, qos: QoS, options: SubscribeOptions) -> bool {
        let (filter, properties) = asked(filter, qos, options);
        let sent = self
            .client
            .try_subscribe_many_with_properties([filter], properties);
        sent.is_ok()
    }

    pub(super) fn try_unsubscribe(&self, filter: &str) -> bool {
        self.client.try_unsubscribe(filter).is_ok()
    }

    pub(super) fn try_acknowledge(&self, qos: QoS, packet: u16) -> bool {
        let acknowledgement = match qos {
            QoS::AtMostOnce => return false,
            QoS::AtLeastOnce => ManualAck::PubAck(PubAck::new(packet, None)),
            QoS::ExactlyOnce => ManualAck::PubRec(PubRec::new(packet, None)),
        };
        self.client.try_manual_ack(acknowledgement).is_ok()
    }

    pub(super) fn try_disconnect(&self, limit: Duration) -> bool {
        if !self.forget {
            return self.client.try_disconnect_with_timeout(limit).is_ok();
        }
        let properties = DisconnectProperties {
            session_expiry_interval: Some(0),
            reason_string: None,
            user_properties: Vec::new(),
            server_reference: None,
        };
        let reason = DisconnectReasonCode::NormalDisconnection;
        self.client
            .try_disconnect_with_properties_timeout(reason, properties, limit)
            .is_ok()
    }
}

impl Events {
    pub(super) async fn poll(&mut self) -> Result<Event, Lost> {
        let event = match self.0.poll().await {
            Ok(event) => event,
            Err(error) => return Err(self.lost(&error)),
        };
        Ok(match event {
            rumqttc5::Event::Incoming(Packet::ConnAck(answer)) => self.connected(&answer),
            rumqttc5::Event::Incoming(Packet::SubAck(answer)) => Event::Subscribed(accepted(&answer)),
            rumqttc5::Event::Incoming(Packet::UnsubAck(_)) => Event::Unsubscribed,
            rumqttc5::Event::Incoming(Packet::Publish(publish)) => Event::Received(received(publish)),
            rumqttc5::Event::Outgoing(Sent::PubAck(_) | Sent::PubRec(_)) => Event::Acknowledged,
            _ => Event::Other,
        })
    }

    pub(super) fn cut(&mut self) {
        self.0.clean();
    }

    fn connected(&mut self, answer: &ConnAck) -> Event {
        let options = &mut self.0.options;
        // From here on the library keeps the session and resumes it.
        options.clear_session_store().set_clean_start(false);
        // The broker may want fewer pings, but a dead connection must still be detected.
        if options.keep_alive() > Duration::from_secs(KEEP_ALIVE.into()) {
            options.set_keep_alive(KEEP_ALIVE);
        }
        Event::Connected {
            resumed: answer.session_present,
            limits: limits(answer),
        }
    }

    fn lost(&mut self, error: &ConnectionError) -> Lost {
        let refusal = match error {
            ConnectionError::ConnectionRefused(code) => reason::of_connection(*code),
            ConnectionError::MqttState(StateError::ServerDisconnect {
                reason_code,
                reason_string,
            }) => reason::refusal(*reason_code as u8, reason_string.as_deref()),
            _ => None,
        };
        if reason::blames_a_packet(error) {
            // Resending it would end the next connection too. Its publisher gets the error.
            self.0.drain_pending_as_failed(NoticeFailureReason::SessionReset);
        }
        Lost {
            text: refusal
                .as_ref()
                .map_or_else(|| error.to_string(), |refusal| refusal.text.clone()),
            refusal,
            done: matches!(error, ConnectionError::RequestsDone),
        }
    }
}

fn limits(answer: &ConnAck) -> Limits {
    let Some(properties) = &answer.properties else {
        return Limits::default();
    };
    let packet = properties
        .max_packet_size
        .and_then(|size| usize::try_from(size).ok());
    let has = |available: Option<u8>| available != Some(0);
    Limits {
        packet: packet.unwrap_or(MAX_MESSAGE).min(MAX_MESSAGE),
        qos: match properties.max_qos {
            Some(0) => QoS::AtMostOnce,
            Some(1) => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        },
        retain: has(properties.retain_available),
        wildcards: has(properties.wildcard_subscription_available),
        shared: has(properties.shared_subscription_available),
        numbers: has(properties.subscription_identifiers_available),
    }
}

fn asked(filter: &str, qos: QoS, options: SubscribeOptions) -> (SubscribeFilter, SubscribeProperties) {
    let mut filter = SubscribeFilter::new(filter, qos);
    filter.retain_forward_rule = match options.retained {
        Retained::Always => RetainForwardRule::OnEverySubscribe,
        Retained::New => RetainForwardRule::OnNewSubscribe,
        Retained::Never => RetainForwardRule::Never,
    };
    let properties = SubscribeProperties {
        id: options.number.and_then(|number| usize::try_from(number).ok()),
        user_properties: Vec::new(),
    };
    (filter, properties)
}

fn properties(message: &Outgoing) -> Option<PublishProperties> {
    let properties = message.properties.as_deref()?;
    Some(PublishProperties {
        message_expiry_interval: properties.expiry,
        response_topic: properties.response_topic.clone(),
        correlation_data: properties.correlation.clone(),
        user_properties: properties.user.clone(),
        content_type: properties.content_type.clone(),
        ..PublishProperties::default()
    })
}

fn received(publish: Publish) -> Received {
    let left = publish.properties.as_ref();
    let left = left.and_then(|properties| properties.message_expiry_interval);
    // Brokers count whole seconds: a message they still send has part of its last second left.
    let expires = left.and_then(|left| Instant::now().checked_add(Duration::from_secs(left.max(1).into())));
    let properties = publish.properties.map(|properties| {
        let mut user = properties.user_properties;
        if user.len() > MAX_USER_PROPERTIES {
            user.truncate(MAX_USER_PROPERTIES);
            user.shrink_to_fit();
        }
        let numbers = properties.subscription_identifiers.into_iter();
        Box::new(Properties {
            content_type: properties.content_type,
            expiry: properties.message_expiry_interval,
            response_topic: properties.response_topic,
            correlation: properties.correlation_data,
            user,
            subscriptions: numbers
                .filter_map(|number| u32::try_from(number).ok())
                .take(MAX_USER_PROPERTIES)
                .collect(),
        })
    });
    Received {
        topic: String::from_utf8_lossy(&publish.topic).into(),
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        again: publish.dup,
        packet: publish.pkid,
        expires,
        properties,
    }
}

fn unsent(error: ClientError) -> Failure {
    match error {
        ClientError::InvalidRequest(_) => Failure::Topic,
        other => Failure::Lost(other.into()),
    }
}

fn accepted(answer: &SubAck) -> Result<(), Refusal> {
    let text = answer.properties.as_ref();
    let text = text.and_then(|properties| properties.reason_string.as_deref());
    let mut refusals = answer
        .return_codes
        .iter()
        .filter_map(|code| reason::of_subscription(*code, text));
    refusals.next().map_or(Ok(()), Err)
}
