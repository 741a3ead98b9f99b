//! The properties of `pubsub.kafka` and `bindings.kafka`.

use std::{sync::Arc, time::Duration};

use krafka::{
    Compression,
    consumer::{AutoOffsetReset, IsolationLevel, PartitionAssignmentStrategy},
    producer::Acks,
};
use outrigger_component::{Error, GoDuration, Kind, Metadata, MetadataError, Result, Setup, Unit};
use regex::Regex;

use super::{LOG, registry::Registry, retry::Retry, security::Security};

/// Client id of Dapr's sidecars.
const CLIENT_ID: &str = "sarama";
/// Default timeout of connecting to a broker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Default timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Default number of retries of a publish.
const RETRIES: u32 = 5;
/// Maximum number of retries of a publish.
const MAX_RETRIES: u32 = 3600;
/// Time for one retry.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Default maximum message size in bytes.
const DEFAULT_MAX_MESSAGE: usize = 1024 * 1024;
/// Maximum bytes of a fetch, unless `consumerFetchDefault` is larger.
const MIN_FETCH: i32 = 16 * 1024 * 1024;

/// Settings shared by publishers and consumers of a component.
pub(super) struct Settings {
    pub(super) brokers: String,
    pub(super) client_id: String,
    pub(super) security: Security,
    pub(super) group: String,
    /// Maximum size of key, value and headers, bytes.
    pub(super) max_message: usize,
    pub(super) compression: Compression,
    pub(super) acks: Acks,
    /// Timeout of connecting to a broker.
    pub(super) dial: Duration,
    /// Timeout of one request.
    pub(super) request: Duration,
    /// How long a publish waits for the metadata of its topic.
    pub(super) metadata: Duration,
    /// How long a publish is retried before it fails.
    pub(super) delivery: Duration,
    pub(super) refresh: Duration,
    pub(super) keep_alive: Option<Duration>,
    pub(super) headers: Headers,
    /// Schema registry, if configured.
    pub(super) registry: Option<Arc<Registry>>,
    pub(super) consumer: ConsumerSettings,
}

/// Which metadata become headers, and the form of header values for the app.
#[derive(Default)]
pub(super) struct Headers {
    pub(super) escape: bool,
    exclude: Option<Regex>,
}

impl Headers {
    /// Whether a header is passed between records and app.
    pub(super) fn passes(&self, name: &str) -> bool {
        self.exclude
            .as_ref()
            .is_none_or(|exclude| !exclude.is_match(name))
    }
}

pub(super) struct ConsumerSettings {
    pub(super) initial_offset: AutoOffsetReset,
    pub(super) isolation: IsolationLevel,
    pub(super) strategy: PartitionAssignmentStrategy,
    pub(super) heartbeat: Duration,
    pub(super) session: Duration,
    pub(super) fetch_min: i32,
    pub(super) fetch_partition: i32,
    pub(super) fetch_most: i32,
    /// Records that the client prefetches.
    pub(super) buffer: i32,
    /// Delay before rejoining the group after an error.
    pub(super) rejoin: Duration,
    /// Redelivery policy of returned records; `None` disables redelivery.
    pub(super) retry: Option<Retry>,
    /// The consumer keeps the order of records without a key: a failed one is returned with the later ones.
    pub(super) returns_keys: bool,
}

impl Settings {
    /// `pubsub`: the engine takes the records, and failed ones are redelivered by default. Otherwise a
    /// binding takes them.
    pub(super) fn read(setup: &Setup, pubsub: bool) -> Result<Self> {
        let metadata = &setup.metadata;
        let group = metadata.filled(&["consumerGroup"]);
        let group = group.or_else(|| metadata.filled(&["consumerID"]));
        let span = |name: &str, default: Duration| -> Result<Duration, MetadataError> {
            let given = metadata.duration(&[name], Unit::Seconds)?;
            Ok(given.and_then(GoDuration::positive).unwrap_or(default))
        };
        // Accepted without effect: versions are negotiated with the broker.
        let _version = metadata.filled(&["version"]);
        let max_message = metadata.number::<usize>(&["maxMessageBytes"])?;
        // The client has one timeout for both.
        let read = span("readTimeout", REQUEST_TIMEOUT)?;
        let request = span("writeTimeout", REQUEST_TIMEOUT)?.max(read);
        let retries = metadata.number::<u32>(&["producerRetryMax"])?;
        Ok(Self {
            brokers: metadata.required(&["brokers"])?.to_owned(),
            client_id: metadata.filled(&["clientID"]).unwrap_or(CLIENT_ID).to_owned(),
            group: group.unwrap_or(&setup.app_id).to_owned(),
            max_message: max_message
                .filter(|most| *most > 0)
                .unwrap_or(DEFAULT_MAX_MESSAGE),
            compression: compression(metadata)?,
            acks: acks(metadata)?,
            dial: span("dialTimeout", CONNECT_TIMEOUT)?,
            request,
            metadata: span("metadataTimeout", request)?,
            delivery: request + RETRY_TIME * retries.unwrap_or(RETRIES).min(MAX_RETRIES),
            refresh: span(
                "clientConnectionTopicMetadataRefreshInterval",
                Duration::from_secs(8 * 60),
            )?,
            keep_alive: metadata
                .duration(&["clientConnectionKeepAliveInterval"], Unit::Seconds)?
                .and_then(GoDuration::positive),
            headers: Headers {
                escape: metadata.flag(&["escapeHeaders"], false),
                exclude: metadata
                    .filled(&["excludeHeaderMetaRegex"])
                    .map(Regex::new)
                    .transpose()
                    .map_err(|error| metadata.wrong(&["excludeHeaderMetaRegex"], &error.to_string()))?,
            },
            registry: Registry::read(metadata)?.map(Arc::new),
            consumer: consumer(metadata, span, pubsub)?,
            // Last, because without authType reading stops, and all errors are reported together.
            security: Security::read(metadata)?,
        })
    }

    /// The schema registry.
    ///
    /// # Errors
    /// No registry is configured.
    pub(super) fn registry(&self) -> Result<&Arc<Registry>> {
        self.registry.as_ref().ok_or_else(|| {
            let text = "valueSchemaType Avro needs a schema registry: set schemaRegistryURL";
            Error::new(Kind::Configuration, text)
        })
    }
}

fn consumer(
    metadata: &Metadata,
    span: impl Fn(&str, Duration) -> Result<Duration, MetadataError>,
    pubsub: bool,
) -> Result<ConsumerSettings> {
    let bytes = |name: &str, default: i32| -> Result<i32, MetadataError> {
        match metadata.number::<i32>(&[name])? {
            None => Ok(default),
            Some(bytes) if bytes > 0 => Ok(bytes),
            Some(_) => Err(metadata.wrong(&[name], "it must be more than zero")),
        }
    };
    let fetch_partition = bytes("consumerFetchDefault", 1024 * 1024)?;
    let session = span("sessionTimeout", Duration::from_secs(10))?;
    let heartbeat = span("heartbeatInterval", Duration::from_secs(3))?;
    if heartbeat >= session {
        return Err(metadata
            .wrong(&["heartbeatInterval"], "it must be less than sessionTimeout")
            .into());
    }
    Ok(ConsumerSettings {
        initial_offset: match metadata.filled(&["initialOffset"]) {
            None => AutoOffsetReset::Latest,
            Some(text) if text.eq_ignore_ascii_case("newest") => AutoOffsetReset::Latest,
            Some(text) if text.eq_ignore_ascii_case("oldest") => AutoOffsetReset::Earliest,
            Some(_) => return Err(metadata.wrong(&["initialOffset"], "use newest or oldest").into()),
        },
        isolation: match metadata.filled(&["isolationLevel"]) {
            None => IsolationLevel::ReadUncommitted,
            Some(text) if text.eq_ignore_ascii_case("readCommitted") => IsolationLevel::ReadCommitted,
            Some(text) if text.eq_ignore_ascii_case("readUncommitted") => IsolationLevel::ReadUncommitted,
            Some(_) => {
                let expected = "use readCommitted or readUncommitted";
                return Err(metadata.wrong(&["isolationLevel"], expected).into());
            }
        },
        strategy: strategy(metadata),
        heartbeat,
        session,
        fetch_min: bytes("consumerFetchMin", 1)?,
        fetch_partition,
        fetch_most: MIN_FETCH.max(fetch_partition),
        buffer: bytes("channelBufferSize", 256)?,
        rejoin: metadata
            .duration(&["consumeRetryInterval"], Unit::Milliseconds)?
            .and_then(GoDuration::positive)
            .unwrap_or(Duration::from_millis(100)),
        retry: {
            let policy = Retry::read(metadata)?;
            metadata.flag(&["consumeRetryEnabled"], pubsub).then_some(policy)
        },
        returns_keys: pubsub,
    })
}

fn compression(metadata: &Metadata) -> Result<Compression, MetadataError> {
    let names = &["compression"];
    match metadata.filled(names).map(str::to_lowercase).as_deref() {
        None | Some("none") => Ok(Compression::None),
        Some("gzip") => Ok(Compression::Gzip),
        Some("snappy") => Ok(Compression::Snappy),
        Some("lz4") => Ok(Compression::Lz4),
        Some("zstd") => Ok(Compression::Zstd),
        Some(_) => Err(metadata.wrong(names, "use none, gzip, snappy, lz4 or zstd")),
    }
}

fn acks(metadata: &Metadata) -> Result<Acks, MetadataError> {
    let names = &["producerRequiredAcks"];
    match metadata.filled(names).map(str::to_lowercase).as_deref() {
        None | Some("all") => Ok(Acks::All),
        Some("local") => Ok(Acks::Leader),
        Some("none") => Ok(Acks::None),
        Some(_) => Err(metadata.wrong(names, "use all, local or none")),
    }
}

/// Like in Dapr, an unknown strategy is logged and means `range`.
fn strategy(metadata: &Metadata) -> PartitionAssignmentStrategy {
    let given = metadata.filled(&["consumerGroupRebalanceStrategy"]);
    match given.map(str::to_lowercase).as_deref() {
        None | Some("range") => PartitionAssignmentStrategy::Range,
        Some("roundrobin") => PartitionAssignmentStrategy::RoundRobin,
        Some("sticky") => PartitionAssignmentStrategy::CooperativeSticky,
        Some(other) => {
            tracing::warn!(
                target: LOG,
                "component {}: invalid consumerGroupRebalanceStrategy {other:?}: use range, roundrobin or sticky; \
                 range is used",
                metadata.component()
            );
            PartitionAssignmentStrategy::Range
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &[(&str, &str)]) -> Result<Settings> {
        let basic = [("brokers", "one:9092,two:9092"), ("authType", "none")];
        let all = basic
            .iter()
            .filter(|(name, _)| !properties.iter().any(|(given, _)| given == name));
        let owned = all
            .chain(properties)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let setup = Setup {
            metadata: Metadata::new("broker", owned).unwrap(),
            app_id: "app".to_owned(),
        };
        Settings::read(&setup, true)
    }

    #[test]
    fn timeouts_bound_publishing() {
        let times = |settings: &Settings| {
            let all = [
                settings.dial,
                settings.request,
                settings.metadata,
                settings.delivery,
            ];
            all.map(|time| time.as_secs())
        };
        let settings = read(&[]).unwrap();
        assert_eq!((times(&settings), settings.acks), ([5, 10, 10, 15], Acks::All));
        let settings = read(&[
            ("dialTimeout", "1s"),
            ("readTimeout", "2s"),
            ("writeTimeout", "3s"),
            ("metadataTimeout", "4s"),
            ("producerRetryMax", "0"),
            ("producerRequiredAcks", "Local"),
        ]);
        let settings = settings.unwrap();
        assert_eq!((times(&settings), settings.acks), ([1, 3, 4, 3], Acks::Leader));
        let zero = read(&[("metadataTimeout", "0"), ("producerRequiredAcks", "none")]).unwrap();
        assert_eq!((zero.metadata.as_secs(), zero.acks), (10, Acks::None));
        let wrong = read(&[("producerRequiredAcks", "some")]).err().unwrap();
        assert!(wrong.to_string().contains("use all, local or none"), "{wrong}");
    }

    #[test]
    fn defaults_match_dapr() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.brokers, "one:9092,two:9092");
        assert_eq!(
            (settings.group.as_str(), settings.client_id.as_str()),
            ("app", "sarama")
        );
        assert_eq!(
            (settings.max_message, settings.compression),
            (1024 * 1024, Compression::None)
        );
        assert_eq!(settings.refresh, Duration::from_secs(480));
        let consumer = settings.consumer;
        assert_eq!(consumer.initial_offset, AutoOffsetReset::Latest);
        assert_eq!(consumer.strategy, PartitionAssignmentStrategy::Range);
        assert_eq!(
            (consumer.heartbeat.as_secs(), consumer.session.as_secs()),
            (3, 10)
        );
        assert_eq!(
            (consumer.fetch_min, consumer.fetch_partition, consumer.buffer),
            (1, 1 << 20, 256)
        );
        assert_eq!(consumer.rejoin, Duration::from_millis(100));
        assert!(consumer.retry.is_some());
    }

    #[test]
    fn consumer_group_overrides_consumer_id() {
        let settings = read(&[("consumerID", "one")]).unwrap();
        assert_eq!(settings.group, "one");
        let settings = read(&[("consumerID", "one"), ("consumerGroup", "two")]).unwrap();
        assert_eq!(settings.group, "two");
    }

    #[test]
    fn bare_number_units_match_dapr() {
        let settings = read(&[("consumeRetryInterval", "250"), ("sessionTimeout", "20")]).unwrap();
        assert_eq!(settings.consumer.rejoin, Duration::from_millis(250));
        assert_eq!(settings.consumer.session, Duration::from_secs(20));
    }

    #[test]
    fn retries_can_be_disabled() {
        let settings = read(&[("consumeRetryEnabled", "false")]).unwrap();
        assert!(settings.consumer.retry.is_none());
    }

    #[test]
    fn unknown_strategy_means_range() {
        let settings = read(&[("consumerGroupRebalanceStrategy", "fair")]).unwrap();
        assert_eq!(settings.consumer.strategy, PartitionAssignmentStrategy::Range);
    }

    #[test]
    fn drops_excluded_headers() {
        let settings = read(&[("excludeHeaderMetaRegex", "^secret-")]).unwrap();
        assert!(settings.headers.passes("open") && !settings.headers.passes("secret-key"));
    }

    #[test]
    fn names_invalid_property() {
        for (name, value) in [
            ("brokers", ""),
            ("initialOffset", "middle"),
            ("isolationLevel", "some"),
            ("compression", "zip"),
            ("excludeHeaderMetaRegex", "("),
            ("maxMessageBytes", "-1"),
            ("consumerFetchMin", "0"),
            ("channelBufferSize", "large"),
            ("heartbeatInterval", "11s"),
            ("consumeRetryInterval", "soon"),
            ("backOffPolicy", "random"),
            ("authType", "kerberos"),
            ("schemaRegistryURL", "registry:8081"),
            ("schemaLatestVersionCacheTTL", "soon"),
        ] {
            let error = read(&[(name, value)]).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
