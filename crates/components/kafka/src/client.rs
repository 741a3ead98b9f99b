//! Connections to the brokers, and their errors.

use std::time::Duration;

use krafka::{Kafka, KrafkaError, ProtocolErrorKind, error::ErrorCode, producer::Producer};
use outrigger_component::{Error, Kind, Result};

use super::{partition::ByKey, settings::Settings};

/// Default keepalive of an idle connection: Go's dialer uses this for Dapr's default, 0.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

impl Settings {
    /// Opens separate connections, because a broker answers the requests of one connection in order, and a
    /// consumer's fetch may block it.
    pub(super) async fn connect(&self) -> Result<Kafka> {
        let connecting = Kafka::builder(&self.brokers)
            .client_id(&self.client_id)
            .security(self.security.config())
            .connect_timeout(self.dial)
            .request_timeout(self.request)
            .metadata_max_age(self.refresh)
            .tcp_keepalive(Some(self.keep_alive.unwrap_or(KEEP_ALIVE)))
            .allow_auto_create_topics(true)
            .connect();
        Box::pin(connecting).await.map_err(|error| self.failure(&error))
    }

    /// By default a publish succeeds once every in-sync replica has the record. Batches of a partition are sent one at a
    /// time, so that retries keep the order.
    pub(super) async fn producer(&self, kafka: &Kafka) -> Result<Producer> {
        let producer = kafka
            .producer()
            .acks(self.acks)
            .idempotent(false)
            .compression(self.compression)
            .linger(Duration::ZERO)
            .delivery_timeout(self.delivery)
            .max_block(self.metadata)
            .partitioner(ByKey)
            .metrics_push(false)
            .build();
        Box::pin(producer).await.map_err(|error| self.failure(&error))
    }

    /// Converts an error of the client.
    pub(super) fn failure(&self, error: &KrafkaError) -> Error {
        let brokers = outrigger_redact::addresses(&self.brokers);
        Error::new(kind(error), format!("Kafka at {brokers}: {error}"))
    }

    /// Converts an error of the client about a topic.
    pub(super) fn failure_of(&self, topic: &str, error: &KrafkaError) -> Error {
        let brokers = outrigger_redact::addresses(&self.brokers);
        let text = format!("Kafka at {brokers}: topic {topic:?}: {error}");
        Error::new(kind(error), text)
    }
}

fn kind(error: &KrafkaError) -> Kind {
    match error {
        KrafkaError::Network(_) => Kind::Unavailable,
        KrafkaError::Timeout { .. } | KrafkaError::DeliveryTimeout { .. } => Kind::Timeout,
        KrafkaError::Auth { .. } => Kind::Denied,
        KrafkaError::UnknownTopic { .. } => Kind::NotFound,
        KrafkaError::Config { .. } => Kind::Configuration,
        KrafkaError::Protocol {
            kind: ProtocolErrorKind::UnknownApiVersion,
            ..
        } => Kind::Unsupported,
        // An invalid topic name, or too many headers.
        KrafkaError::Protocol {
            kind: ProtocolErrorKind::InvalidValue,
            ..
        } => Kind::InvalidRequest,
        KrafkaError::Broker { code, .. } => match code {
            ErrorCode::TopicAuthorizationFailed
            | ErrorCode::GroupAuthorizationFailed
            | ErrorCode::ClusterAuthorizationFailed
            | ErrorCode::SaslAuthenticationFailed => Kind::Denied,
            ErrorCode::UnknownTopicOrPartition => Kind::NotFound,
            ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge | ErrorCode::InvalidTopic => {
                Kind::InvalidRequest
            }
            code if code.is_retriable() => Kind::Unavailable,
            _ => Kind::Internal,
        },
        error if error.is_retriable() => Kind::Unavailable,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_errors_are_retryable() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (error, expected) in [
            (KrafkaError::network(refused), Kind::Unavailable),
            (KrafkaError::timeout("produce"), Kind::Timeout),
            (KrafkaError::delivery_timeout(true, "late"), Kind::Timeout),
            (KrafkaError::auth("password"), Kind::Denied),
            (KrafkaError::unknown_topic("t"), Kind::NotFound),
            (
                KrafkaError::broker(ErrorCode::GroupAuthorizationFailed, ""),
                Kind::Denied,
            ),
            (
                KrafkaError::broker(ErrorCode::MessageTooLarge, ""),
                Kind::InvalidRequest,
            ),
            (
                KrafkaError::broker(ErrorCode::NotEnoughReplicas, ""),
                Kind::Unavailable,
            ),
        ] {
            assert_eq!(kind(&error), expected, "{error}");
        }
    }
}
