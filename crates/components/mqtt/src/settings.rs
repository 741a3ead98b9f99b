mod pubsub;

use std::{io, sync::Arc};

use outrigger_component::{Error, Kind, Metadata, MetadataError, Result};
use percent_encoding::percent_decode_str;
use rumqttc::QoS;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

pub(super) use self::pubsub::PubSubSettings;
use super::{CALL_TIMEOUT, LOG};

const URL: &[&str] = &["url"];
/// Ping interval in seconds; a broker that does not answer before the next ping is considered dead.
pub(crate) const KEEP_ALIVE: u16 = 10;
/// Maximum message size in both directions, bytes.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

/// Maximum unacknowledged publishes.
const MAX_UNACKED: u16 = 100;
/// The same with QoS 2: Mosquitto loses messages beyond its own limit of 20.
const MAX_UNACKED_QOS_2: u16 = 16;

/// The broker's address and the client's identity.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) broker: Broker,
    /// Client id, or the prefix of those of a binding.
    pub(crate) client: String,
    pub(crate) version: Version,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    /// Maximum unacknowledged publishes.
    pub(crate) max_unacked: u16,
    pub(crate) component: Arc<str>,
}

/// Protocol version and session of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 3.1.1. `clean`: the session ends with the connection.
    V3 {
        clean: bool,
    },
    V5(Session),
}

/// The session of an MQTT 5 client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    /// The first connection starts a new session.
    pub(crate) clean_start: bool,
    /// Session expiry after a disconnect in seconds; `u32::MAX` for none.
    pub(crate) expiry: u32,
    /// Unacknowledged messages the broker may send; greater than 0.
    pub(crate) window: u16,
    /// Closing the component ends the session.
    pub(crate) forget: bool,
}

/// Settings of a binding.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) connection: Connection,
    pub(super) topic: String,
    /// Maximum retries of a refused event; `None` for no limit.
    pub(super) retries: Option<u32>,
}

#[derive(Clone)]
pub(crate) struct Broker {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// User and password, which may be empty.
    pub(crate) account: Option<(String, String)>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Settings {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        if metadata.filled(&["qos"]).is_some() {
            tracing::warn!(
                target: LOG,
                "mqtt binding {}: the property qos is ignored; it is 1",
                metadata.component()
            );
        }
        let url = metadata.required(URL)?;
        let consumer = metadata.required(&["consumerID"])?;
        let topic = metadata.required(&["topic"])?;
        let retries = metadata.number::<i32>(&["backOffMaxRetries"])?.unwrap_or(0);
        Ok(Self {
            connection: Connection::read(metadata, url, consumer, v3(metadata), QoS::AtLeastOnce)?,
            topic: topic.to_owned(),
            retries: u32::try_from(retries).ok(),
        })
    }
}

fn v3(metadata: &Metadata) -> Version {
    Version::V3 {
        clean: metadata.flag(&["cleanSession"], false),
    }
}

impl Connection {
    /// Called last: an error in `url` ends the reading, and all errors are reported together.
    fn read(metadata: &Metadata, url: &str, client: &str, version: Version, qos: QoS) -> Result<Self> {
        Ok(Self {
            client: client.to_owned(),
            version,
            qos,
            retain: metadata.flag(&["retain"], false),
            max_unacked: match qos {
                QoS::ExactlyOnce => MAX_UNACKED_QOS_2,
                QoS::AtMostOnce | QoS::AtLeastOnce => MAX_UNACKED,
            },
            component: metadata.component().clone(),
            broker: Broker::read(metadata, url)?,
        })
    }

    /// Whether the broker discards unacknowledged messages on disconnect.
    pub(super) fn discards_unacknowledged(&self) -> bool {
        match self.version {
            Version::V3 { clean } => clean,
            Version::V5(session) => session.expiry == 0,
        }
    }

    /// Checks that the broker is reachable.
    pub(super) async fn check_reachable(&self) -> Result<()> {
        match tokio::time::timeout(CALL_TIMEOUT, self.broker.connect()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.unreachable(Kind::Unavailable).because(error)),
            Err(_) => Err(self.unreachable(Kind::Timeout)),
        }
    }

    pub(super) fn unreachable(&self, kind: Kind) -> Error {
        Error::new(kind, self.place()).of(&self.component)
    }

    /// The broker's address for errors.
    pub(super) fn place(&self) -> String {
        format!("mqtt broker at {}:{}", self.broker.host, self.broker.port)
    }
}

/// A byte stream to the broker.
pub(crate) trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Sync + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Sync + Unpin> Stream for T {}

impl Broker {
    fn read(metadata: &Metadata, url: &str) -> Result<Self> {
        let url = Url::parse(url).map_err(|error| {
            metadata.wrong(URL, &format!("a URL like tcp://host:1883 is expected: {error}"))
        })?;
        let (secure, port) = match url.scheme() {
            "tcp" | "mqtt" => (false, 1883),
            "ssl" | "tls" | "mqtts" | "tcps" => (true, 8883),
            other => {
                let expected = format!("{other}:// is not supported; use tcp, mqtt, ssl, tls, mqtts or tcps");
                return Err(metadata.wrong(URL, &expected).into());
            }
        };
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(metadata
                .wrong(URL, "the host is missing; write tcp://host:1883")
                .into());
        }
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let account = (!url.username().is_empty()).then(|| {
            (
                decoded(url.username()),
                decoded(url.password().unwrap_or_default()),
            )
        });
        let tls = secure.then(|| tls(metadata, &host)).transpose()?;
        Ok(Self {
            port: url.port().unwrap_or(port),
            host,
            account,
            tls,
        })
    }

    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
        })
    }
}

fn tls(metadata: &Metadata, host: &str) -> Result<(TlsConnector, ServerName<'static>), MetadataError> {
    let config = metadata.client_tls()?;
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| metadata.wrong(&["url"], &format!("the host: {error}")))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named, tls::Certificates};

    use super::*;

    fn read(properties: &[(&str, &str)]) -> Result<Settings> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Metadata::new("events", owned)?)
    }

    const GOOD: [(&str, &str); 3] = [
        ("url", "tcp://u%40x:p@broker"),
        ("topic", "t"),
        ("consumerID", "c"),
    ];

    #[test]
    fn parses_broker_urls() {
        let settings = read(&GOOD).unwrap();
        let broker = &settings.connection.broker;
        assert_eq!((broker.host.as_str(), broker.port), ("broker", 1883));
        assert_eq!(broker.account, Some(("u@x".to_owned(), "p".to_owned())));
        assert!(broker.tls.is_none());
        let secure = read(&[("url", "mqtts://broker:9"), GOOD[1], GOOD[2]]).unwrap();
        assert_eq!(secure.connection.broker.port, 9);
        assert!(secure.connection.broker.tls.is_some());
    }

    #[test]
    fn names_missing_or_invalid_property() {
        for (properties, name) in [
            (vec![GOOD[1], GOOD[2]], "url"),
            (vec![GOOD[0], GOOD[2]], "topic"),
            (vec![GOOD[0], GOOD[1]], "consumerID"),
            (vec![("url", "ws://broker"), GOOD[1], GOOD[2]], "ws://"),
            (
                vec![("url", "tls://broker"), GOOD[1], GOOD[2], ("caCert", "x")],
                "caCert",
            ),
        ] {
            let error = read(&properties).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    /// Including a missing or invalid address.
    #[tokio::test]
    async fn reports_all_errors_together() {
        let components = || Components::of(crate::add);
        for address in [None, Some(("url", "ws://broker"))] {
            let mut wrong: Vec<_> = [("qos", "3")].into_iter().chain(address).collect();
            let mut told = named(components().pubsub("pubsub.mqtt3", "v1", &wrong).await);
            told.sort();
            assert_eq!(told, ["qos", "url"], "{address:?}");
            wrong.extend([("receiveMaximum", "0"), ("sessionExpiryInterval", "-1s")]);
            let mut told = named(components().pubsub("pubsub.mqtt5", "v1", &wrong).await);
            told.sort();
            let expected = ["qos", "receiveMaximum", "sessionExpiryInterval", "url"];
            assert_eq!(told, expected, "{address:?}");
            wrong.push(("backOffMaxRetries", "x"));
            let mut told = named(components().output("bindings.mqtt3", "v1", &wrong).await);
            told.sort();
            let expected = ["backOffMaxRetries", "consumerID", "topic", "url"];
            assert_eq!(told, expected, "{address:?}");
        }
    }

    #[test]
    fn names_damaged_certificate() {
        let of = Certificates::new();
        let good = [
            ("caCert", &*of.root),
            ("clientCert", &of.client),
            ("clientKey", &of.client_key),
        ];
        for (name, _) in good {
            let mut properties = [&[("url", "tls://broker")][..], &GOOD[1..], &good].concat();
            read(&properties).map(drop).unwrap();
            let damaged = properties.iter_mut().find(|(other, _)| *other == name);
            damaged.unwrap().1 = "-----BEGIN ";
            let error = read(&properties).map(drop).unwrap_err();
            assert_eq!(error.property(), Some(name), "{error}");
        }
    }
}
