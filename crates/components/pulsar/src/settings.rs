//! The properties of `pubsub.pulsar`.

use std::{num::NonZeroU32, time::Duration};

use outrigger_component::{
    Error, GoDuration, Metadata, MetadataError, Pairs, Result, Setup, Unit, pubsub::property,
};
use pulsar::proto::command_subscribe::{InitialPosition, SubType};
use url::Url;

use super::{auth::Credentials, packing::Compression};

const HOST: &[&str] = &["host"];
/// Features of Dapr's component that are not supported, with the reason.
const REFUSED: [(&str, &str); 3] = [
    ("publicKey", "encryption from end to end is not supported"),
    ("privateKey", "encryption from end to end is not supported"),
    ("keys", "encryption from end to end is not supported"),
];
/// Suffixes of unsupported per-topic properties.
const SCHEMAS: [&str; 3] = [".jsonschema", ".avroschema", ".protoschema"];

/// Settings shared by publishers and consumers of a component.
pub(super) struct Settings {
    /// Tried in order until one answers.
    pub(super) hosts: Vec<Url>,
    /// Whether broker certificates are verified.
    pub(super) verifies: bool,
    pub(super) credentials: Credentials,
    /// `persistent://tenant/namespace/`, or the non-persistent form.
    prefix: String,
    pub(super) publishing: Publishing,
    pub(super) subscription: String,
    pub(super) durable: bool,
    pub(super) position: InitialPosition,
    pub(super) replicates: bool,
    /// Redelivery delay of a refused message.
    pub(super) again: Duration,
    kind: SubType,
    one_by_one: bool,
    handlers: NonZeroU32,
    /// Maximum messages queued for the app.
    pub(super) queue: u16,
    persistent: bool,
}

/// Settings of publishing.
#[derive(Clone)]
pub(super) struct Publishing {
    /// `None` disables batching.
    pub(super) batches: Option<Batches>,
    pub(super) compression: Compression,
}

/// Limits of a batch; the first one reached sends it.
#[derive(Clone)]
pub(super) struct Batches {
    pub(super) delay: Duration,
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// Settings of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Consuming {
    pub(super) kind: SubType,
    /// Maximum concurrent messages in the app.
    pub(super) concurrency: NonZeroU32,
}

impl Settings {
    pub(super) fn read(setup: &Setup) -> Result<Self> {
        let metadata = &setup.metadata;
        let servers = metadata.required(HOST)?;
        refuse(metadata)?;
        let persistent = metadata.flag(&["persistent"], true);
        let kind = if persistent {
            "persistent"
        } else {
            "non-persistent"
        };
        let tenant = metadata.filled(&["tenant"]).unwrap_or("public");
        let namespace = metadata.filled(&["namespace"]).unwrap_or("default");
        for (name, value) in [("tenant", tenant), ("namespace", namespace)] {
            if value.contains('/') {
                return Err(metadata.wrong(&[name], "it cannot have a / in it").into());
            }
        }
        let handlers = metadata.number::<u32>(&["maxConcurrentHandlers"])?;
        let queue = metadata.number::<u32>(&["receiverQueueSize"])?;
        let queue = queue.filter(|queue| *queue > 0).unwrap_or(1000);
        let again = metadata.duration(&["redeliveryDelay"], Unit::Seconds)?;
        let again = again.and_then(GoDuration::positive);
        Ok(Self {
            verifies: metadata.flag(&["enableTLS"], false),
            credentials: Credentials::read(metadata)?,
            prefix: format!("{kind}://{tenant}/{namespace}/"),
            publishing: publishing(metadata)?,
            subscription: metadata
                .filled(&["consumerID"])
                .unwrap_or(&setup.app_id)
                .to_owned(),
            durable: one_of(metadata, "subscribeMode", DURABLE, true)?,
            position: one_of(
                metadata,
                "subscribeInitialPosition",
                POSITIONS,
                InitialPosition::Latest,
            )?,
            replicates: metadata.flag(&["replicateSubscriptionState"], false),
            again: again.unwrap_or(Duration::from_secs(30)),
            kind: one_of(metadata, "subscribeType", KINDS, SubType::Shared)?,
            one_by_one: one_of(metadata, "processMode", MODES, false)?,
            handlers: handlers.and_then(NonZeroU32::new).unwrap_or(DEFAULT_HANDLERS),
            queue: u16::try_from(queue).unwrap_or(u16::MAX),
            persistent,
            // Last, because without hosts reading stops, and all errors are reported together.
            hosts: hosts(metadata, servers)?,
        })
    }

    /// The full name of a topic.
    ///
    /// # Errors
    /// The name is invalid.
    pub(super) fn topic(&self, name: &str) -> Result<String> {
        if name.is_empty() || name.contains(['/', '\0']) {
            let text = format!("{name:?} cannot be a topic of Pulsar: it must have a name, without a /");
            return Err(Error::invalid_request(text));
        }
        Ok(format!("{}{name}", self.prefix))
    }

    /// Settings from a subscription's metadata.
    ///
    /// # Errors
    /// An unsupported value.
    pub(super) fn consuming(&self, metadata: &Pairs) -> Result<Consuming> {
        let kind = chosen(metadata, "subscribeType", KINDS)?.unwrap_or(self.kind);
        let one_by_one = chosen(metadata, "processMode", MODES)?.unwrap_or(self.one_by_one);
        Ok(Consuming {
            kind,
            concurrency: if one_by_one {
                NonZeroU32::MIN
            } else {
                self.handlers
            },
        })
    }

    /// Whether messages are kept while consumers are away.
    pub(super) fn keeps(&self) -> bool {
        self.persistent && self.durable
    }
}

/// Default number of concurrent handlers.
const DEFAULT_HANDLERS: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

type Choices<T> = &'static [(&'static str, T)];

const KINDS: Choices<SubType> = &[
    ("shared", SubType::Shared),
    ("exclusive", SubType::Exclusive),
    ("failover", SubType::Failover),
    ("key_shared", SubType::KeyShared),
];
const POSITIONS: Choices<InitialPosition> = &[
    ("latest", InitialPosition::Latest),
    ("earliest", InitialPosition::Earliest),
];
const DURABLE: Choices<bool> = &[("durable", true), ("non_durable", false)];
/// Whether messages are handled one by one.
const MODES: Choices<bool> = &[("async", false), ("sync", true)];

fn find<T: Copy>(text: &str, choices: Choices<T>) -> Result<T, String> {
    let found = choices.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("use {}", names.join(", "))
    })
}

fn one_of<T: Copy>(
    metadata: &Metadata,
    name: &str,
    choices: Choices<T>,
    default: T,
) -> Result<T, MetadataError> {
    let given = metadata.filled(&[name]);
    let found = given.map(|text| find(text, choices)).transpose();
    found
        .map(|found| found.unwrap_or(default))
        .map_err(|expected| metadata.wrong(&[name], &expected))
}

fn chosen<T: Copy>(metadata: &Pairs, name: &str, choices: Choices<T>) -> Result<Option<T>> {
    let given = property(metadata, name);
    given
        .map(|text| find(text, choices))
        .transpose()
        .map_err(|expected| {
            let text =
                format!("invalid value for the metadata property {name} of a subscription: {expected}");
            Error::invalid_request(text)
        })
}

fn refuse(metadata: &Metadata) -> Result<(), MetadataError> {
    for (name, why) in REFUSED {
        if metadata.filled(&[name]).is_some() {
            return Err(metadata.wrong(&[name], why));
        }
    }
    for name in metadata.unused().into_iter().map(|unused| unused.name) {
        let lower = name.to_lowercase();
        if SCHEMAS.iter().any(|schema| lower.ends_with(schema)) {
            let why =
                "schemas of topics are not supported; remove it to publish and receive the bytes as they are";
            return Err(metadata.wrong(&[&name], why));
        }
    }
    Ok(())
}

fn hosts(metadata: &Metadata, servers: &str) -> Result<Vec<Url>, MetadataError> {
    let (mut hosts, mut scheme) = (Vec::new(), "pulsar");
    for host in servers.split(',').map(str::trim) {
        let text = match host.split_once("://") {
            // All hosts have the scheme of the first.
            None => format!("{scheme}://{host}"),
            Some(_) => host.to_owned(),
        };
        let wrong = |why: &str| metadata.wrong(HOST, why);
        let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
        // Credentials in it are ignored, and addresses appear in logs.
        let _ = (url.set_username(""), url.set_password(None));
        scheme = match url.scheme() {
            "pulsar" => "pulsar",
            "pulsar+ssl" => "pulsar+ssl",
            "http" | "https" => {
                return Err(wrong(
                    "brokers are not looked up by HTTP; use pulsar:// or pulsar+ssl:// with the broker's own port",
                ));
            }
            _ => {
                return Err(wrong(
                    "use host:port, pulsar://host:port or pulsar+ssl://host:port",
                ));
            }
        };
        if url.host_str().is_none_or(str::is_empty) {
            return Err(wrong("there is no host in it"));
        }
        hosts.push(url);
    }
    Ok(hosts)
}

fn publishing(metadata: &Metadata) -> Result<Publishing, MetadataError> {
    let delay = metadata.duration(&["batchingMaxPublishDelay"], Unit::Seconds)?;
    let messages = metadata.number::<usize>(&["batchingMaxMessages"])?;
    let bytes = metadata.number::<usize>(&["batchingMaxSize"])?;
    let batches = Batches {
        delay: delay
            .and_then(GoDuration::positive)
            .unwrap_or(Duration::from_millis(10)),
        messages: messages.filter(|most| *most > 0).unwrap_or(1000),
        bytes: bytes.filter(|most| *most > 0).unwrap_or(128 * 1024),
    };
    let alone = metadata.flag(&["disableBatching"], false);
    Ok(Publishing {
        batches: (!alone).then_some(batches),
        compression: Compression::read(metadata)?,
    })
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named};

    use super::*;

    fn hosts(settings: &Settings) -> Vec<&str> {
        settings.hosts.iter().map(Url::as_str).collect()
    }

    fn read(more: &[(&str, &str)]) -> Result<Settings> {
        let mut properties = vec![("host".to_owned(), "localhost:6650".to_owned())];
        for (name, value) in more {
            properties.retain(|(other, _)| other != name);
            properties.push(((*name).to_owned(), (*value).to_owned()));
        }
        Settings::read(&Setup {
            metadata: Metadata::new("broker", properties).unwrap(),
            app_id: "app".to_owned(),
        })
    }

    #[test]
    fn defaults_match_dapr() {
        let settings = read(&[]).unwrap();
        assert_eq!(hosts(&settings), ["pulsar://localhost:6650"]);
        assert_eq!(
            settings.topic("orders").unwrap(),
            "persistent://public/default/orders"
        );
        assert_eq!(settings.subscription, "app");
        assert_eq!(settings.again, Duration::from_secs(30));
        assert_eq!((settings.queue, settings.keeps()), (1000, true));
        let batches = settings.publishing.batches.unwrap();
        assert_eq!(
            (batches.delay, batches.messages, batches.bytes),
            (Duration::from_millis(10), 1000, 131_072)
        );
        let consuming = Consuming {
            kind: SubType::Shared,
            concurrency: DEFAULT_HANDLERS,
        };
        assert_eq!(read(&[]).unwrap().consuming(&Pairs::new()).unwrap(), consuming);
        assert_eq!(DEFAULT_HANDLERS.get(), 100);
    }

    #[test]
    fn bare_batch_delay_is_seconds() {
        for (text, millis) in [("2", 2000), ("2ms", 2), ("0", 10)] {
            let settings = read(&[("batchingMaxPublishDelay", text)]).unwrap();
            let delay = settings.publishing.batches.unwrap().delay;
            assert_eq!(delay, Duration::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn builds_full_topic_names() {
        let settings = read(&[("tenant", "t"), ("namespace", "n"), ("persistent", "false")]).unwrap();
        assert_eq!(settings.topic("a b").unwrap(), "non-persistent://t/n/a b");
        assert!(!settings.keeps());
        let settings = read(&[("subscribeMode", "non_durable")]).unwrap();
        assert!(!settings.keeps());
        for topic in ["", "a/b"] {
            settings.topic(topic).unwrap_err();
        }
    }

    #[test]
    fn parses_several_hosts() {
        let settings = read(&[("host", "a")]).unwrap();
        assert_eq!(hosts(&settings), ["pulsar://a"]);
        let settings = read(&[("host", "pulsar://me:hush@a:1")]).unwrap();
        assert_eq!(hosts(&settings), ["pulsar://a:1"]);
        let settings = read(&[("host", "pulsar+ssl://a:1, b:2")]).unwrap();
        assert_eq!(hosts(&settings), ["pulsar+ssl://a:1", "pulsar+ssl://b:2"]);
    }

    #[test]
    fn subscription_metadata_overrides_settings() {
        let settings = read(&[("subscribeType", "failover"), ("maxConcurrentHandlers", "7")]).unwrap();
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
            settings.consuming(&pairs.collect())
        };
        let consuming = of(&[]).unwrap();
        assert_eq!(
            (consuming.kind, consuming.concurrency.get()),
            (SubType::Failover, 7)
        );
        let consuming = of(&[("subscribeType", "Key_Shared"), ("processmode", "sync")]).unwrap();
        assert_eq!(
            (consuming.kind, consuming.concurrency.get()),
            (SubType::KeyShared, 1)
        );
        let error = of(&[("subscribeType", "some")]).unwrap_err().to_string();
        assert!(
            error.contains("subscribeType") && error.contains("key_shared"),
            "{error}"
        );
    }

    /// Including a missing or invalid address.
    #[tokio::test]
    async fn reports_all_errors_together() {
        let wrong = [
            ("tenant", "a/b"),
            ("oauth2TokenURL", "issuer"),
            ("redeliveryDelay", "soon"),
            ("subscribeType", "some"),
            ("compressionType", "snappy"),
        ];
        for address in [None, Some(("host", "http://a:8080"))] {
            let properties: Vec<_> = wrong.into_iter().chain(address).collect();
            let opened = Components::of(crate::add).pubsub("pubsub.pulsar", "v1", &properties);
            let mut told = named(opened.await);
            told.sort();
            let mut expected: Vec<_> = wrong.into_iter().map(|(name, _)| name).chain(["host"]).collect();
            expected.sort_unstable();
            assert_eq!(told, expected, "{address:?}");
        }
    }

    #[test]
    fn names_invalid_or_unsupported_property() {
        for (name, value) in [
            ("host", ""),
            ("host", "http://a:8080"),
            ("host", "pulsar://"),
            ("tenant", "a/b"),
            ("subscribeType", "some"),
            ("subscribeMode", "some"),
            ("subscribeInitialPosition", "some"),
            ("processMode", "some"),
            ("compressionType", "snappy"),
            ("publicKey", "-----BEGIN"),
            ("privateKey", "-----BEGIN"),
            ("keys", "a"),
            ("orders.jsonschema", "{}"),
            ("orders.avroschema", "{}"),
            ("orders.protoschema", "{}"),
            ("redeliveryDelay", "soon"),
        ] {
            let error = read(&[(name, value)]).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
