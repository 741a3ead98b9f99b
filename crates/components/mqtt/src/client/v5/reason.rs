//! MQTT 5 reason codes (section 2.4 of the specification) as errors, with names and remedies.

use outrigger_component::Kind;
use rumqttc5::{
    ConnectReturnCode, ConnectionError, DisconnectReasonCode, Error as PacketError, PubAck, PubRec,
    StateError, SubscribeReasonCode,
};

use super::Refusal;

/// Code, name, error kind and remedy.
type Row = (u8, &'static str, Kind, &'static str);

const LOG: &str = "see the log of the broker";
const LATER: &str = "it is tried again";

const ROWS: &[Row] = &[
    (0x80, "unspecified error", Kind::Internal, LOG),
    (0x81, "malformed packet", Kind::Internal, LOG),
    (0x82, "protocol error", Kind::Internal, LOG),
    (0x83, "implementation specific error", Kind::Internal, LOG),
    (
        0x84,
        "unsupported protocol version",
        Kind::Configuration,
        "the broker does not speak MQTT 5: use pubsub.mqtt3",
    ),
    (
        0x85,
        "client identifier not valid",
        Kind::Configuration,
        "set clientID to a name that the broker accepts",
    ),
    (
        0x86,
        "bad user name or password",
        Kind::Denied,
        "check user and password in url",
    ),
    (
        0x87,
        "not authorized",
        Kind::Denied,
        "check user and password in url, and the permissions of this client at the broker",
    ),
    (0x88, "server unavailable", Kind::Unavailable, LATER),
    (0x89, "server busy", Kind::Unavailable, LATER),
    (
        0x8A,
        "banned",
        Kind::Denied,
        "this client is banned at the broker: ask its operator",
    ),
    (0x8B, "server shutting down", Kind::Unavailable, LATER),
    (
        0x8C,
        "bad authentication method",
        Kind::Configuration,
        "only user and password in url, or clientCert, are supported",
    ),
    (0x8D, "keep alive timeout", Kind::Unavailable, LATER),
    (
        0x8E,
        "session taken over",
        Kind::Unavailable,
        "another client connects with this id: give every replica its own clientID",
    ),
    (
        0x8F,
        "topic filter invalid",
        Kind::InvalidRequest,
        "the broker refuses this topic",
    ),
    (
        0x90,
        "topic name invalid",
        Kind::InvalidRequest,
        "the broker refuses this topic",
    ),
    (0x91, "packet identifier in use", Kind::Unavailable, LATER),
    (0x93, "receive maximum exceeded", Kind::Unavailable, LATER),
    (0x94, "topic alias invalid", Kind::Internal, LOG),
    (
        0x95,
        "packet too large",
        Kind::InvalidRequest,
        "make messages smaller, or raise the limit of the broker",
    ),
    (
        0x96,
        "message rate too high",
        Kind::Unavailable,
        "publish more slowly, or raise the limit of the broker",
    ),
    (
        0x97,
        "quota exceeded",
        Kind::Unavailable,
        "publish less, or raise the quota at the broker",
    ),
    (0x98, "administrative action", Kind::Unavailable, LATER),
    (
        0x99,
        "payload format invalid",
        Kind::InvalidRequest,
        "the payload does not match its properties",
    ),
    (
        0x9A,
        "retain not supported",
        Kind::InvalidRequest,
        "publish without retain",
    ),
    (
        0x9B,
        "QoS not supported",
        Kind::Configuration,
        "set qos to one that the broker supports",
    ),
    (
        0x9C,
        "use another server",
        Kind::Unavailable,
        "set url to the broker that takes over",
    ),
    (
        0x9D,
        "server moved",
        Kind::Configuration,
        "set url to its new address",
    ),
    (
        0x9E,
        "shared subscriptions not supported",
        Kind::Unsupported,
        "set sharedSubscriptions to false",
    ),
    (0x9F, "connection rate exceeded", Kind::Unavailable, LATER),
    (0xA0, "maximum connect time", Kind::Unavailable, LATER),
    (
        0xA1,
        "subscription identifiers not supported",
        Kind::Internal,
        LOG,
    ),
    (
        0xA2,
        "wildcard subscriptions not supported",
        Kind::Unsupported,
        "subscribe to topics without + and #",
    ),
];

/// The meaning of a code; `None` below 0x80, which means success. `text` is the broker's reason string.
pub(super) fn refusal(code: u8, text: Option<&str>) -> Option<Refusal> {
    if code < 0x80 {
        return None;
    }
    let row = ROWS.iter().find(|row| row.0 == code);
    let (_, name, kind, remedy) = row
        .copied()
        .unwrap_or((code, "unknown reason", Kind::Internal, LOG));
    let said = text.map(|text| format!(" ({text:?})")).unwrap_or_default();
    Some(Refusal {
        kind,
        text: format!("{name}, reason code {code:#04X}{said}: {remedy}"),
    })
}

pub(super) fn of_puback(answer: &PubAck) -> Option<Refusal> {
    let text = answer.properties.as_ref();
    let text = text.and_then(|properties| properties.reason_string.as_deref());
    refusal(answer.reason as u8, text)
}

pub(super) fn of_pubrec(answer: &PubRec) -> Option<Refusal> {
    let text = answer.properties.as_ref();
    let text = text.and_then(|properties| properties.reason_string.as_deref());
    refusal(answer.reason as u8, text)
}

pub(super) fn of_subscription(code: SubscribeReasonCode, text: Option<&str>) -> Option<Refusal> {
    let code = match code {
        SubscribeReasonCode::Success(_) => return None,
        SubscribeReasonCode::Failure | SubscribeReasonCode::Unspecified => 0x80,
        SubscribeReasonCode::ImplementationSpecific => 0x83,
        SubscribeReasonCode::NotAuthorized => 0x87,
        SubscribeReasonCode::TopicFilterInvalid => 0x8F,
        SubscribeReasonCode::PkidInUse => 0x91,
        SubscribeReasonCode::QuotaExceeded => 0x97,
        SubscribeReasonCode::SharedSubscriptionsNotSupported => 0x9E,
        SubscribeReasonCode::SubscriptionIdNotSupported => 0xA1,
        SubscribeReasonCode::WildcardSubscriptionsNotSupported => 0xA2,
    };
    refusal(code, text)
}

pub(super) fn of_connection(code: ConnectReturnCode) -> Option<Refusal> {
    let code = match code {
        ConnectReturnCode::Success => return None,
        ConnectReturnCode::UnspecifiedError => 0x80,
        ConnectReturnCode::MalformedPacket => 0x81,
        ConnectReturnCode::ProtocolError => 0x82,
        ConnectReturnCode::ImplementationSpecificError => 0x83,
        // The first is the 3.1.1 return code.
        ConnectReturnCode::RefusedProtocolVersion | ConnectReturnCode::UnsupportedProtocolVersion => 0x84,
        ConnectReturnCode::BadClientId | ConnectReturnCode::ClientIdentifierNotValid => 0x85,
        ConnectReturnCode::BadUserNamePassword => 0x86,
        ConnectReturnCode::NotAuthorized => 0x87,
        ConnectReturnCode::ServiceUnavailable | ConnectReturnCode::ServerUnavailable => 0x88,
        ConnectReturnCode::ServerBusy => 0x89,
        ConnectReturnCode::Banned => 0x8A,
        ConnectReturnCode::BadAuthenticationMethod => 0x8C,
        ConnectReturnCode::TopicNameInvalid => 0x90,
        ConnectReturnCode::PacketTooLarge => 0x95,
        ConnectReturnCode::QuotaExceeded => 0x97,
        ConnectReturnCode::PayloadFormatInvalid => 0x99,
        ConnectReturnCode::RetainNotSupported => 0x9A,
        ConnectReturnCode::QoSNotSupported => 0x9B,
        ConnectReturnCode::UseAnotherServer => 0x9C,
        ConnectReturnCode::ServerMoved => 0x9D,
        ConnectReturnCode::ConnectionRateExceeded => 0x9F,
    };
    refusal(code, None)
}

/// Whether a sent packet caused the disconnect and would be resent.
pub(super) fn blames_a_packet(error: &ConnectionError) -> bool {
    let ConnectionError::MqttState(error) = error else {
        return false;
    };
    match error {
        StateError::OutgoingPacketTooLarge { .. }
        | StateError::Deserialization(PacketError::OutgoingPacketTooLarge { .. }) => true,
        StateError::ServerDisconnect { reason_code, .. } => matches!(
            reason_code,
            DisconnectReasonCode::MalformedPacket
                | DisconnectReasonCode::ProtocolError
                | DisconnectReasonCode::TopicNameInvalid
                | DisconnectReasonCode::PacketTooLarge
                | DisconnectReasonCode::PayloadFormatInvalid
                | DisconnectReasonCode::RetainNotSupported
                | DisconnectReasonCode::QoSNotSupported
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rumqttc5::{PubAckProperties, PubAckReason, QoS};

    use super::*;

    #[test]
    fn no_subscribers_is_success() {
        for reason in [PubAckReason::Success, PubAckReason::NoMatchingSubscribers] {
            let mut answer = PubAck::new(1, None);
            answer.reason = reason;
            assert_eq!(of_puback(&answer), None, "{reason:?}");
        }
        let granted = SubscribeReasonCode::Success(QoS::AtLeastOnce);
        assert_eq!(of_subscription(granted, None), None);
    }

    #[test]
    fn errors_have_reason_code_and_remedy() {
        let mut answer = PubAck::new(
            1,
            Some(PubAckProperties {
                reason_string: Some("full".to_owned()),
                user_properties: Vec::new(),
            }),
        );
        answer.reason = PubAckReason::QuotaExceeded;
        let refusal = of_puback(&answer).unwrap();
        assert_eq!(refusal.kind, Kind::Unavailable);
        for part in ["quota exceeded", "0x97", "\"full\"", "raise the quota"] {
            assert!(refusal.text.contains(part), "{part}: {}", refusal.text);
        }
        let denied = of_connection(ConnectReturnCode::NotAuthorized).unwrap();
        assert_eq!(denied.kind, Kind::Denied);
        assert!(denied.text.contains("not authorized") && denied.text.contains("permissions"));
    }

    fn ended(reason_code: DisconnectReasonCode) -> ConnectionError {
        ConnectionError::MqttState(StateError::ServerDisconnect {
            reason_code,
            reason_string: None,
        })
    }

    #[test]
    fn does_not_resend_fatal_packet() {
        assert!(blames_a_packet(&ended(DisconnectReasonCode::PacketTooLarge)));
        assert!(!blames_a_packet(&ended(DisconnectReasonCode::SessionTakenOver)));
        let taken = refusal(DisconnectReasonCode::SessionTakenOver as u8, None).unwrap();
        assert!(taken.text.contains("taken over") && taken.text.contains("clientID"));
        assert!(!taken.is_permanent());
    }

    #[test]
    fn codes_are_unique() {
        assert!(ROWS.is_sorted_by(|a, b| a.0 < b.0));
        let unknown = refusal(0xEE, None).unwrap();
        assert!(unknown.text.contains("0xEE"), "{}", unknown.text);
    }
}
