//! Commands to brokers, and the meaning of brokers' errors.

use outrigger_component::{Error, Kind};
use pulsar::{
    message::{Message, Payload},
    proto::{
        self, BaseCommand, CommandAck, CommandAuthResponse, CommandCloseConsumer, CommandCloseProducer,
        CommandConnect, CommandFlow, CommandLookupTopic, CommandPartitionedTopicMetadata, CommandPing,
        CommandPong, CommandProducer, CommandRedeliverUnacknowledgedMessages, CommandSend, CommandSubscribe,
        MessageIdData, ServerError, base_command::Type, command_ack::AckType,
    },
};

/// Each connection has one producer or one consumer.
pub(super) const ID: u64 = 0;
/// Protocol version: batches, keys and multiple acknowledgements.
const PROTOCOL: i32 = 19;
const CLIENT: &str = concat!("Outrigger ", env!("CARGO_PKG_VERSION"));

// Boxed, because a message has a field for every command, which takes kilobytes.
macro_rules! command {
    ($kind:ident, $field:ident: $value:expr) => {
        Box::new(Message {
            command: BaseCommand {
                r#type: Type::$kind as i32,
                $field: Some($value),
                ..BaseCommand::default()
            },
            payload: None,
        })
    };
}

/// `method` and `data` are credentials; `broker` is the target of a proxy.
pub(super) fn connect(method: Option<String>, data: Option<Vec<u8>>, broker: Option<String>) -> Box<Message> {
    command!(Connect, connect: CommandConnect {
        client_version: CLIENT.to_owned(),
        auth_method_name: method,
        auth_data: data,
        protocol_version: Some(PROTOCOL),
        proxy_to_broker_url: broker,
        feature_flags: Some(proto::FeatureFlags {
            supports_auth_refresh: Some(true),
            ..proto::FeatureFlags::default()
        }),
        ..CommandConnect::default()
    })
}

pub(super) fn auth_response(method: Option<String>, data: Option<Vec<u8>>) -> Box<Message> {
    command!(AuthResponse, auth_response: CommandAuthResponse {
        client_version: Some(CLIENT.to_owned()),
        response: Some(proto::AuthData {
            auth_method_name: method,
            auth_data: data,
        }),
        protocol_version: Some(PROTOCOL),
    })
}

pub(super) fn ping() -> Box<Message> {
    command!(Ping, ping: CommandPing {})
}

pub(super) fn pong() -> Box<Message> {
    command!(Pong, pong: CommandPong {})
}

pub(super) fn partitions(topic: &str, request: u64) -> Box<Message> {
    command!(PartitionedMetadata, partition_metadata: CommandPartitionedTopicMetadata {
        topic: topic.to_owned(),
        request_id: request,
        ..CommandPartitionedTopicMetadata::default()
    })
}

pub(super) fn lookup(topic: &str, authoritative: bool, request: u64) -> Box<Message> {
    command!(Lookup, lookup_topic: CommandLookupTopic {
        topic: topic.to_owned(),
        request_id: request,
        authoritative: Some(authoritative),
        ..CommandLookupTopic::default()
    })
}

pub(super) fn producer(topic: &str, request: u64) -> Box<Message> {
    command!(Producer, producer: CommandProducer {
        topic: topic.to_owned(),
        producer_id: ID,
        request_id: request,
        ..CommandProducer::default()
    })
}

pub(super) fn send(sequence: u64, messages: i32, payload: Payload) -> Box<Message> {
    let mut message = command!(Send, send: CommandSend {
        producer_id: ID,
        sequence_id: sequence,
        num_messages: Some(messages),
        ..CommandSend::default()
    });
    message.payload = Some(payload);
    message
}

pub(super) fn close_producer(request: u64) -> Box<Message> {
    command!(CloseProducer, close_producer: CommandCloseProducer {
        producer_id: ID,
        request_id: request,
    })
}

pub(super) fn subscribe(command: CommandSubscribe) -> Box<Message> {
    command!(Subscribe, subscribe: command)
}

pub(super) fn flow(permits: u32) -> Box<Message> {
    command!(Flow, flow: CommandFlow {
        consumer_id: ID,
        message_permits: permits,
    })
}

pub(super) fn acknowledge(ids: Vec<MessageIdData>) -> Box<Message> {
    command!(Ack, ack: CommandAck {
        consumer_id: ID,
        ack_type: AckType::Individual as i32,
        message_id: ids,
        ..CommandAck::default()
    })
}

/// Requests redelivery of these messages to any consumer.
pub(super) fn redeliver(ids: Vec<MessageIdData>) -> Box<Message> {
    command!(
        RedeliverUnacknowledgedMessages,
        redeliver_unacknowledged_messages: CommandRedeliverUnacknowledgedMessages {
            consumer_id: ID,
            message_ids: ids,
            ..CommandRedeliverUnacknowledgedMessages::default()
        }
    )
}

pub(super) fn close_consumer(request: u64) -> Box<Message> {
    command!(CloseConsumer, close_consumer: CommandCloseConsumer {
        consumer_id: ID,
        request_id: request,
    })
}

/// A broker's error.
pub(super) fn refused(what: &str, code: i32, text: &str) -> Error {
    let code = ServerError::try_from(code).unwrap_or(ServerError::UnknownError);
    let kind = match code {
        ServerError::AuthenticationError | ServerError::AuthorizationError => Kind::Denied,
        ServerError::TopicNotFound | ServerError::SubscriptionNotFound => Kind::NotFound,
        ServerError::InvalidTopicName => Kind::InvalidRequest,
        ServerError::IncompatibleSchema
        | ServerError::TopicTerminatedError
        | ServerError::UnsupportedVersionError => Kind::Configuration,
        // Some are permanent, but the broker does not say which.
        _ => Kind::Unavailable,
    };
    let name = code.as_str_name();
    // The rest is a stack trace of the broker.
    let text = text.lines().next().unwrap_or_default();
    Error::new(kind, format!("{what}: the broker answered {name}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_broker_errors() {
        for (code, kind) in [
            (ServerError::AuthenticationError, Kind::Denied),
            (ServerError::TopicNotFound, Kind::NotFound),
            (ServerError::InvalidTopicName, Kind::InvalidRequest),
            (ServerError::ServiceNotReady, Kind::Unavailable),
        ] {
            let error = refused("topic a", code as i32, "why\n\tat org.apache.Pulsar");
            assert_eq!(error.kind(), kind);
            let text = error.to_string();
            assert!(
                text.ends_with(": why") && text.contains(code.as_str_name()),
                "{text}"
            );
        }
        assert_eq!(refused("a", 1000, "").kind(), Kind::Unavailable);
    }
}
