use std::{num::NonZeroUsize, path::Path, time::Duration};

use async_nats::{
    Client, ConnectOptions, ServerAddr,
    jetstream::{
        self, Context,
        consumer::{AckPolicy, DeliverPolicy, push},
    },
};
use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Unit};
use outrigger_tls::client_config;
use time::OffsetDateTime;

use super::CALL_TIMEOUT;

const NAME: &str = "dapr.io - pubsub.jetstream";
/// Messages of a subscription that the client keeps until they are taken. Beyond it they are dropped here, and sent again
/// by the server.
const WAITING: usize = 8192;
/// Between two pings: a server that leaves two without an answer is gone.
const PING: Duration = Duration::from_secs(5);
/// Until the server sends a message again that nobody acknowledged.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// Largest file of a certificate or a key, bytes.
const MAX_FILE: usize = 1 << 20;

/// The properties of `pubsub.jetstream` besides the credentials.
pub(super) struct Settings {
    pub(super) url: Vec<ServerAddr>,
    pub(super) stream: Option<String>,
    pub(super) concurrency: Option<NonZeroUsize>,
    /// What a consumer is made like.
    pub(super) consumer: push::Config,
    domain: Option<String>,
    prefix: Option<String>,
}

impl Settings {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        const URL: &[&str] = &["natsURL"];
        let servers = metadata.required(URL)?.split(',').map(str::trim);
        let url = servers
            .map(str::parse)
            .collect::<Result<Vec<ServerAddr>, _>>()
            .map_err(|error| {
                metadata.wrong(URL, &format!("a URL like nats://host:4222 is expected: {error}"))
            })?;
        let owned = |name: &str| metadata.filled(&[name]).map(str::to_owned);
        Ok(Self {
            url,
            stream: owned("streamName"),
            concurrency: match metadata.filled(&["concurrencyMode"]) {
                None | Some("single") => Some(NonZeroUsize::MIN),
                Some("parallel") => None,
                Some(_) => {
                    return Err(metadata
                        .wrong(&["concurrencyMode"], "use single or parallel")
                        .into());
                }
            },
            consumer: consumer(metadata)?,
            domain: owned("domain"),
            prefix: owned("apiPrefix"),
        })
    }

    /// The servers, without credentials.
    pub(super) fn at(&self) -> String {
        let servers = self.url.iter();
        let servers: Vec<String> = servers
            .map(|server| format!("{}:{}", server.host(), server.port()))
            .collect();
        servers.join(",")
    }

    /// How to connect, and who this is.
    pub(super) fn options(&self, metadata: &Metadata) -> Result<ConnectOptions> {
        let given = |name: &str| metadata.filled(&[name]);
        let mut options = ConnectOptions::new()
            .name(given("name").unwrap_or(NAME))
            .connection_timeout(CALL_TIMEOUT)
            .request_timeout(Some(CALL_TIMEOUT))
            .ping_interval(PING)
            .subscription_capacity(WAITING)
            .reconnect_delay_callback(|attempts| {
                let doubled = 1_u32.checked_shl(u32::try_from(attempts).unwrap_or(u32::MAX));
                (Duration::from_millis(50) * doubled.unwrap_or(64).min(64)).min(Duration::from_secs(2))
            });
        let mut identity = None;
        if let (Some(jwt), Some(seed)) = (given("jwt"), given("seedKey")) {
            let credentials = format!(
                "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
                 -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
            );
            options = options
                .credentials(&credentials)
                .map_err(|error| metadata.wrong(&["seedKey", "jwt"], &error.to_string()))?;
        } else if let (Some(_), Some(_)) = (given("tls_client_cert"), given("tls_client_key")) {
            identity = Some((
                file(metadata, "tls_client_cert")?,
                file(metadata, "tls_client_key")?,
            ));
        } else if let Some(token) = given("token") {
            options = options.token(token.to_owned());
        }
        if identity.is_some() || self.url.iter().any(|server| server.tls_required()) {
            let identity = identity
                .as_ref()
                .map(|(chain, key)| (chain.as_slice(), key.as_slice()));
            let config = client_config(None, identity)
                .map_err(|error| metadata.wrong(&["tls_client_cert"], &error))?;
            options = options.tls_client_config(config);
        }
        Ok(options)
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

    /// Whether the server waits for acknowledgements.
    pub(super) fn acknowledges(&self) -> bool {
        self.consumer.ack_policy != AckPolicy::None
    }
}

fn file(metadata: &Metadata, name: &str) -> Result<Vec<u8>, MetadataError> {
    let path = metadata.required(&[name])?;
    outrigger_files::read(Path::new(path), MAX_FILE)
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

/// How often the server is told that messages are in progress.
pub(super) fn renewal(ack_wait: Duration) -> Duration {
    let wait = if ack_wait.is_zero() { ACK_WAIT } else { ack_wait };
    (wait / 3).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &[(&str, &str)]) -> Result<Settings> {
        let mut properties = vec![("natsURL".to_owned(), "nats://user:secret@a:1,b".to_owned())];
        properties.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        Settings::read(&Metadata::new("broker", properties).unwrap())
    }

    #[test]
    fn defaults_are_those_of_dapr() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.at(), "a:1,b:4222");
        assert_eq!(settings.consumer.deliver_policy, DeliverPolicy::All);
        assert!(settings.acknowledges());
        assert_eq!(settings.concurrency, NonZeroUsize::new(1));
        assert_eq!(settings.consumer.durable_name, None);
    }

    #[test]
    fn consumers_are_made_as_the_settings_say() {
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
    fn a_key_file_that_is_none_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let large = folder.path().join("large");
        std::fs::write(&large, vec![b'x'; MAX_FILE + 1]).unwrap();
        for (file, why) in [
            (&pipe, "it is a named pipe (FIFO), not a regular file"),
            (&large, "larger than"),
        ] {
            let file = file.to_str().unwrap();
            let properties = [
                ("natsURL", "nats://a"),
                ("tls_client_cert", file),
                ("tls_client_key", file),
            ];
            let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let metadata = Metadata::new("broker", properties.to_vec()).unwrap();
            let error = Settings::read(&metadata).unwrap().options(&metadata).map(drop);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains("tls_client_cert") && error.contains(why),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
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
