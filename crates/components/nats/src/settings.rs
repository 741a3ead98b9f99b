use std::{num::NonZeroUsize, path::Path, time::Duration};

use async_nats::{
    Client, ConnectOptions, ServerAddr,
    jetstream::{
        self, Context,
        consumer::{self, AckPolicy, DeliverPolicy, push},
    },
};
use outrigger_backoff::Backoff;
use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Unit};
use outrigger_tls::client_config;
use time::OffsetDateTime;

use super::CALL_TIMEOUT;

const URL: &[&str] = &["natsURL"];
const CERTIFICATE: &str = "tls_client_cert";
const KEY: &str = "tls_client_key";
const NAME: &str = "dapr.io - pubsub.jetstream";
/// Client buffer per subscription. Messages beyond it are dropped and redelivered by the server.
const CLIENT_BUFFER: usize = 8192;
/// Ping interval; after two unanswered pings the connection is considered dead.
const PING: Duration = Duration::from_secs(5);
/// Backoff of reconnects.
const RECONNECT_PAUSES: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// Time after which the server redelivers an unacknowledged message.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// The properties of `pubsub.jetstream` except credentials.
pub(super) struct Settings {
    pub(super) url: Vec<ServerAddr>,
    pub(super) stream: Option<String>,
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Consumer configuration.
    pub(super) consumer: push::Config,
    domain: Option<String>,
    prefix: Option<String>,
}

impl Settings {
    /// Reads the settings, and the connection options with credentials.
    pub(super) fn read(metadata: &Metadata) -> Result<(Self, ConnectOptions)> {
        let servers = metadata.required(URL)?;
        let owned = |name: &str| metadata.filled(&[name]).map(str::to_owned);
        let (stream, domain, prefix) = (owned("streamName"), owned("domain"), owned("apiPrefix"));
        let concurrency = match metadata.filled(&["concurrencyMode"]) {
            None | Some("single") => Some(NonZeroUsize::MIN),
            Some("parallel") => None,
            Some(_) => {
                return Err(metadata
                    .wrong(&["concurrencyMode"], "use single or parallel")
                    .into());
            }
        };
        let (mut options, secure) = options(metadata)?;
        let consumer = consumer(metadata)?;
        // Last, because without servers reading stops, and all errors are reported together.
        let url = addresses(metadata, servers)?;
        let tls = url.iter().any(ServerAddr::tls_required);
        if !secure && tls {
            let config = client_config(None, None);
            let config = config.map_err(|error| metadata.wrong(URL, &error.to_string()))?;
            options = options.tls_client_config(config);
        }
        // Applies to all servers: addresses advertised by the first one have no scheme, and would receive
        // credentials in plain text.
        options = options.require_tls(secure || tls);
        let settings = Self {
            url,
            stream,
            concurrency,
            consumer,
            domain,
            prefix,
        };
        Ok((settings, options))
    }

    /// The servers without credentials.
    pub(super) fn at(&self) -> String {
        let servers = self.url.iter();
        let servers: Vec<String> = servers
            .map(|server| format!("{}:{}", server.host(), server.port()))
            .collect();
        servers.join(",")
    }

    pub(super) fn context(&self, client: Client) -> Context {
        let builder = jetstream::ContextBuilder::new()
            .timeout(CALL_TIMEOUT)
            .ack_timeout(CALL_TIMEOUT);
        match (&self.prefix, &self.domain) {
            (Some(prefix), _) => builder.api_prefix(prefix).build(client),
            (None, Some(domain)) => builder.domain(domain).build(client),
            (None, None) => builder.build(client),
        }
    }

    /// The first difference between the settings and a durable consumer on the server: property, configured
    /// value, server's value.
    pub(super) fn differs(&self, found: &consumer::Config) -> Option<(&'static str, String, String)> {
        let set = &self.consumer;
        let group = |group: &Option<String>| group.clone().unwrap_or_else(|| "none".to_owned());
        let span = |span: Duration| format!("{span:?}");
        // Negative numbers mean no limit.
        let number = |number: i64| number.max(-1).to_string();
        // With `backOff` the server uses its first delay as `ackWait`.
        let waits = !set.ack_wait.is_zero() && (set.backoff.is_empty() || found.backoff.is_empty());
        let spans = |spans: &[Duration]| match spans {
            [] => "none".to_owned(),
            _ => spans.iter().map(|one| span(*one)).collect::<Vec<_>>().join(","),
        };
        // Property, whether it is set, configured value and server's value.
        let properties = [
            (
                "ackPolicy",
                true,
                policy_name(set.ack_policy),
                policy_name(found.ack_policy),
            ),
            (
                "queueGroupName",
                true,
                group(&set.deliver_group),
                group(&found.deliver_group),
            ),
            ("ackWait", waits, span(set.ack_wait), span(found.ack_wait)),
            (
                "backOff",
                !set.backoff.is_empty(),
                spans(&set.backoff),
                spans(&found.backoff),
            ),
            (
                "maxDeliver",
                set.max_deliver != 0,
                number(set.max_deliver),
                number(found.max_deliver),
            ),
            (
                "maxAckPending",
                set.max_ack_pending != 0,
                number(set.max_ack_pending),
                number(found.max_ack_pending),
            ),
            (
                "deliverPolicy",
                true,
                begin_name(&set.deliver_policy),
                begin_name(&found.deliver_policy),
            ),
            (
                "rateLimit",
                set.rate_limit != 0,
                set.rate_limit.to_string(),
                found.rate_limit.to_string(),
            ),
            (
                "replicas",
                set.num_replicas != 0,
                set.num_replicas.to_string(),
                found.num_replicas.to_string(),
            ),
            (
                "heartbeat",
                !set.idle_heartbeat.is_zero(),
                span(set.idle_heartbeat),
                span(found.idle_heartbeat),
            ),
            (
                "memoryStorage",
                set.memory_storage,
                set.memory_storage.to_string(),
                found.memory_storage.to_string(),
            ),
            (
                "flowControl",
                set.flow_control,
                set.flow_control.to_string(),
                found.flow_control.to_string(),
            ),
        ];
        let mut properties = properties.into_iter();
        let differs = properties.find(|(_, given, set, found)| *given && set != found);
        differs.map(|(property, _, set, found)| (property, set, found))
    }

    /// Whether the server expects acknowledgements.
    pub(super) fn acknowledges(&self) -> bool {
        self.consumer.ack_policy != AckPolicy::None
    }
}

fn addresses(metadata: &Metadata, servers: &str) -> Result<Vec<ServerAddr>, MetadataError> {
    let servers = servers.split(',').map(|server| server.trim().parse());
    servers
        .collect::<Result<_, _>>()
        .map_err(|error| metadata.wrong(URL, &format!("a URL like nats://host:4222 is expected: {error}")))
}

/// Connection options, and whether they use a TLS client certificate.
fn options(metadata: &Metadata) -> Result<(ConnectOptions, bool), MetadataError> {
    let given = |name: &str| metadata.filled(&[name]);
    let options = ConnectOptions::new()
        .name(given("name").unwrap_or(NAME))
        .connection_timeout(CALL_TIMEOUT)
        .request_timeout(Some(CALL_TIMEOUT))
        .ping_interval(PING)
        .subscription_capacity(CLIENT_BUFFER)
        .reconnect_delay_callback(|attempts| {
            RECONNECT_PAUSES.after(u32::try_from(attempts).unwrap_or(u32::MAX))
        });
    if let (Some(jwt), Some(seed)) = (given("jwt"), given("seedKey")) {
        let credentials = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let options = options.credentials(&credentials);
        let options = options.map_err(|error| metadata.wrong(&["seedKey", "jwt"], &error.to_string()))?;
        return Ok((options, false));
    }
    if let (Some(_), Some(_)) = (given(CERTIFICATE), given(KEY)) {
        let (chain, key) = (file(metadata, CERTIFICATE)?, file(metadata, KEY)?);
        let config = client_config(None, Some((&chain, &key))).map_err(|error| {
            let property = error.among(CERTIFICATE, CERTIFICATE, KEY);
            metadata.wrong(&[property], &error.to_string())
        })?;
        return Ok((options.tls_client_config(config), true));
    }
    let options = match given("token") {
        Some(token) => options.token(token.to_owned()),
        None => options,
    };
    Ok((options, false))
}

fn file(metadata: &Metadata, name: &str) -> Result<Vec<u8>, MetadataError> {
    let path = metadata.required(&[name])?;
    outrigger_files::read(Path::new(path))
        .map_err(|error| metadata.wrong(&[name], &format!("the file cannot be read: {error}")))
}

fn consumer(metadata: &Metadata) -> Result<push::Config, MetadataError> {
    let owned = |name: &str| metadata.filled(&[name]).map(str::to_owned);
    let span = |name: &str| -> Result<Duration, MetadataError> {
        let given = metadata.duration(&[name], Unit::Seconds)?;
        Ok(given.and_then(GoDuration::positive).unwrap_or_default())
    };
    let ack_policy = match metadata.filled(&["ackPolicy"]) {
        None | Some("explicit") => AckPolicy::Explicit,
        Some("all") => AckPolicy::All,
        Some("none") => AckPolicy::None,
        Some(_) => return Err(metadata.wrong(&["ackPolicy"], "use explicit, all or none")),
    };
    if ack_policy == AckPolicy::All && metadata.filled(&["queueGroupName"]).is_some() {
        let text = "with queueGroupName use explicit: all would acknowledge messages held by other members";
        return Err(metadata.wrong(&["ackPolicy"], text));
    }
    Ok(push::Config {
        durable_name: owned("durableName"),
        deliver_group: owned("queueGroupName"),
        deliver_policy: policy(metadata)?,
        ack_policy,
        ack_wait: span("ackWait")?,
        max_deliver: metadata.number(&["maxDeliver"])?.unwrap_or(0),
        backoff: spans(metadata, "backOff")?,
        max_ack_pending: metadata.number(&["maxAckPending"])?.unwrap_or(0),
        num_replicas: metadata.number(&["replicas"])?.unwrap_or(0),
        memory_storage: metadata.flag(&["memoryStorage"], false),
        rate_limit: metadata.number(&["rateLimit"])?.unwrap_or(0),
        idle_heartbeat: span("heartbeat")?,
        flow_control: metadata.flag(&["flowControl"], false),
        ..push::Config::default()
    })
}

fn policy(metadata: &Metadata) -> Result<DeliverPolicy, MetadataError> {
    Ok(match metadata.filled(&["deliverPolicy"]) {
        None | Some("all") => DeliverPolicy::All,
        Some("last") => DeliverPolicy::Last,
        Some("new") => DeliverPolicy::New,
        Some("sequence") => {
            let start_sequence = metadata.number(&["startSequence"])?;
            DeliverPolicy::ByStartSequence {
                start_sequence: start_sequence
                    .ok_or_else(|| metadata.wrong(&["startSequence"], "deliverPolicy sequence needs it"))?,
            }
        }
        Some("time") => {
            let wrong = || {
                metadata.wrong(
                    &["startTime"],
                    "deliverPolicy time needs it, in seconds since 1970",
                )
            };
            let seconds = metadata.number(&["startTime"])?.ok_or_else(wrong)?;
            DeliverPolicy::ByStartTime {
                start_time: OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| wrong())?,
            }
        }
        Some(_) => {
            let expected = "use all, last, new, sequence or time";
            return Err(metadata.wrong(&["deliverPolicy"], expected));
        }
    })
}

fn spans(metadata: &Metadata, name: &str) -> Result<Vec<Duration>, MetadataError> {
    let texts = metadata.filled(&[name]).unwrap_or_default().split(',');
    texts
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .map(|text| {
            let nanos = outrigger_resources::value::go_nanos(text).ok();
            let nanos = nanos.and_then(|nanos| u64::try_from(nanos).ok());
            nanos
                .map(Duration::from_nanos)
                .ok_or_else(|| metadata.wrong(&[name], "durations like 1s,5s,1m are expected"))
        })
        .collect()
}

fn policy_name(policy: AckPolicy) -> String {
    let name = match policy {
        AckPolicy::Explicit => "explicit",
        AckPolicy::All => "all",
        AckPolicy::None => "none",
    };
    name.to_owned()
}

/// A deliver policy in the property's notation.
fn begin_name(policy: &DeliverPolicy) -> String {
    match policy {
        DeliverPolicy::All => "all".to_owned(),
        DeliverPolicy::Last => "last".to_owned(),
        DeliverPolicy::New => "new".to_owned(),
        DeliverPolicy::LastPerSubject => "last per subject".to_owned(),
        DeliverPolicy::ByStartSequence { start_sequence } => {
            format!("sequence with startSequence {start_sequence}")
        }
        DeliverPolicy::ByStartTime { start_time } => {
            format!("time with startTime {}", start_time.unix_timestamp())
        }
    }
}

/// Interval of in-progress notices; with `backOff`, each delivery has a different deadline.
pub(super) fn renewal(config: &consumer::Config) -> Duration {
    let waits = config.backoff.iter().chain([&config.ack_wait]);
    let shortest = waits.filter(|wait| !wait.is_zero()).min();
    (*shortest.unwrap_or(&ACK_WAIT) / 3).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named};

    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<Settings> {
        let mut properties = vec![("natsURL".to_owned(), "nats://user:secret@a:1,b".to_owned())];
        properties.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        Settings::read(&Metadata::new("broker", properties).unwrap()).map(|(settings, _)| settings)
    }

    /// Including a missing or invalid address.
    #[tokio::test]
    async fn reports_all_errors_together() {
        let wrong = [
            ("concurrencyMode", "double"),
            ("tls_client_cert", "/nowhere"),
            ("tls_client_key", "/nowhere"),
            ("ackPolicy", "some"),
            ("maxDeliver", "many"),
            ("backOff", "soon"),
        ];
        let expected = [
            "natsURL",
            "concurrencyMode",
            "tls_client_cert",
            "ackPolicy",
            "maxDeliver",
            "backOff",
        ];
        for address in [None, Some(("natsURL", "nats://a:b:c"))] {
            let properties: Vec<_> = wrong.into_iter().chain(address).collect();
            let opened = Components::of(crate::add).pubsub("pubsub.jetstream", "v1", &properties);
            let mut told = named(opened.await);
            told.sort_by_key(|told| expected.iter().position(|expected| expected == told));
            assert_eq!(told, expected, "{address:?}");
        }
    }

    #[test]
    fn defaults_match_dapr() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.at(), "a:1,b:4222");
        assert_eq!(settings.consumer.deliver_policy, DeliverPolicy::All);
        assert!(settings.acknowledges());
        assert_eq!(settings.concurrency, NonZeroUsize::new(1));
        assert_eq!(settings.consumer.durable_name, None);
    }

    #[test]
    fn consumer_follows_settings() {
        let settings = read(&[
            ("durableName", "d"),
            ("queueGroupName", "g"),
            ("deliverPolicy", "sequence"),
            ("startSequence", "7"),
            ("ackWait", "2s"),
            ("backOff", "1s, 2m"),
            ("maxAckPending", "3"),
        ])
        .unwrap();
        let consumer = settings.consumer;
        assert_eq!(consumer.durable_name.as_deref(), Some("d"));
        assert_eq!(consumer.deliver_group.as_deref(), Some("g"));
        assert_eq!(
            consumer.deliver_policy,
            DeliverPolicy::ByStartSequence { start_sequence: 7 }
        );
        assert_eq!(
            consumer.backoff,
            [Duration::from_secs(1), Duration::from_secs(120)]
        );
        assert_eq!(
            (consumer.ack_wait, consumer.max_ack_pending),
            (Duration::from_secs(2), 3)
        );
    }

    #[test]
    fn renews_within_shortest_ack_wait() {
        let seconds = |numbers: &[u64]| numbers.iter().copied().map(Duration::from_secs).collect();
        for (ack_wait, backoff, every) in [(0, &[][..], 10), (3, &[], 1), (30, &[30, 6, 60], 2)] {
            let config = consumer::Config {
                ack_wait: Duration::from_secs(ack_wait),
                backoff: seconds(backoff),
                ..consumer::Config::default()
            };
            assert_eq!(renewal(&config), Duration::from_secs(every), "{ack_wait}");
        }
    }

    #[test]
    fn invalid_key_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let file = pipe.to_str().unwrap();
        let properties = [
            ("natsURL", "nats://a"),
            ("tls_client_cert", file),
            ("tls_client_key", file),
        ];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let metadata = Metadata::new("broker", properties.to_vec()).unwrap();
        let error = Settings::read(&metadata).map(drop).unwrap_err().to_string();
        let why = "it is a named pipe (FIFO), not a regular file";
        assert!(
            error.contains("tls_client_cert") && error.contains(why),
            "{error}"
        );
    }

    #[test]
    fn names_invalid_property() {
        for (name, more) in [
            ("ackPolicy", vec![("ackPolicy", "some")]),
            ("startSequence", vec![("deliverPolicy", "sequence")]),
            (
                "startTime",
                vec![("deliverPolicy", "time"), ("startTime", "99999999999999")],
            ),
            ("deliverPolicy", vec![("deliverPolicy", "first")]),
            ("backOff", vec![("backOff", "soon")]),
            ("concurrencyMode", vec![("concurrencyMode", "double")]),
        ] {
            let error = read(&more).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
