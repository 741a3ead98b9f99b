use std::{
    num::{NonZeroU16, NonZeroUsize},
    time::Duration,
};

use lapin::ExchangeKind;
use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Setup, Unit};

const RECONNECT_WAIT: Duration = Duration::from_secs(3);

/// The properties of `pubsub.rabbitmq` except those of the connection.
pub(super) struct Options {
    /// Prefix of queue names.
    pub(super) consumer: String,
    pub(super) durable: bool,
    pub(super) delete_when_unused: bool,
    pub(super) auto_ack: bool,
    pub(super) requeue: bool,
    /// 2 means stored on disk.
    pub(super) delivery_mode: u8,
    /// Prefetch count; `None` for the maximum in flight.
    pub(super) prefetch: Option<NonZeroU16>,
    pub(super) reconnect_wait: Duration,
    pub(super) exchange_kind: ExchangeKind,
    pub(super) dead_letter: bool,
    pub(super) max_length: Option<i64>,
    pub(super) max_length_bytes: Option<i64>,
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Default time to live of messages.
    pub(super) ttl: Option<Duration>,
    /// Whether apps get AMQP properties.
    pub(super) tell_properties: bool,
}

impl Options {
    pub(super) fn read(setup: &Setup) -> Result<Self> {
        let metadata: &Metadata = &setup.metadata;
        let seconds = |name: &str| metadata.duration(&[name], Unit::Seconds);
        // Accepted, but confirms are always on.
        let _confirms = metadata.flag(&["publisherConfirm"], true);
        Ok(Self {
            consumer: metadata
                .filled(&["consumerID"])
                .unwrap_or(&setup.app_id)
                .to_owned(),
            durable: metadata.flag(&["durable"], true),
            delete_when_unused: metadata.flag(&["deletedWhenUnused"], true),
            auto_ack: metadata.flag(&["autoAck"], false),
            requeue: metadata.flag(&["requeueInFailure"], false),
            delivery_mode: match metadata.number::<u8>(&["deliveryMode"])? {
                None => 0,
                Some(mode) if mode <= 2 => mode,
                Some(_) => return Err(metadata.wrong(&["deliveryMode"], "use 0, 1 or 2").into()),
            },
            prefetch: metadata.number(&["prefetchCount"])?.and_then(NonZeroU16::new),
            reconnect_wait: seconds("reconnectWaitSeconds")?
                .and_then(GoDuration::positive)
                .unwrap_or(RECONNECT_WAIT),
            exchange_kind: exchange_kind(metadata)?,
            dead_letter: metadata.flag(&["enableDeadLetter"], false),
            max_length: metadata.number(&["maxLen"])?.filter(|most| *most > 0),
            max_length_bytes: metadata.number(&["maxLenBytes"])?.filter(|most| *most > 0),
            concurrency: concurrency(metadata)?,
            ttl: seconds("ttlInSeconds")?.and_then(GoDuration::positive),
            tell_properties: metadata.flag(&["publishMessagePropertiesToMetadata"], false),
        })
    }
}

fn exchange_kind(metadata: &Metadata) -> Result<ExchangeKind, MetadataError> {
    match metadata.filled(&["exchangeKind"]) {
        None | Some("fanout") => Ok(ExchangeKind::Fanout),
        Some("topic") => Ok(ExchangeKind::Topic),
        Some("direct") => Ok(ExchangeKind::Direct),
        Some("headers") => Ok(ExchangeKind::Headers),
        Some(_) => Err(metadata.wrong(&["exchangeKind"], "use fanout, topic, direct or headers")),
    }
}

fn concurrency(metadata: &Metadata) -> Result<Option<NonZeroUsize>, MetadataError> {
    match metadata.filled(&["concurrencyMode"]) {
        None | Some("parallel") => Ok(None),
        Some("single") => Ok(Some(NonZeroUsize::MIN)),
        Some(_) => Err(metadata.wrong(&["concurrencyMode"], "use parallel or single")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &[(&str, &str)]) -> Result<Options> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Options::read(&Setup {
            metadata: Metadata::new("broker", owned).unwrap(),
            app_id: "app".to_owned(),
        })
    }

    #[test]
    fn defaults_match_dapr() {
        let options = read(&[]).unwrap();
        assert_eq!(options.consumer, "app");
        assert!(options.durable && options.delete_when_unused);
        assert!(!options.auto_ack && !options.requeue && !options.dead_letter);
        assert_eq!(options.exchange_kind, ExchangeKind::Fanout);
        assert_eq!(options.reconnect_wait, Duration::from_secs(3));
        assert_eq!((options.prefetch, options.concurrency), (None, None));
    }

    #[test]
    fn names_invalid_property() {
        for (name, value) in [
            ("deliveryMode", "3"),
            ("exchangeKind", "round"),
            ("concurrencyMode", "double"),
            ("maxLen", "long"),
            ("prefetchCount", "-1"),
            ("ttlInSeconds", "soon"),
        ] {
            let error = read(&[(name, value)]).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
