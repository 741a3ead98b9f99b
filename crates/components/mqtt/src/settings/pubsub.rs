use std::time::Duration;

use outrigger_component::{Metadata, MetadataError, Result, Setup, Unit};
use rumqttc::QoS;

use super::{Connection, Session, URL, Version, v3};

/// Maximum receive window requested from a broker.
const WINDOW: u16 = 1024;
/// Session expiry of a client with a configured name.
const SESSION_EXPIRY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Session expiry of a client with a generated name.
const SESSION_EXPIRY_NAMELESS: Duration = Duration::from_secs(5 * 60);

/// Settings of a pub/sub component.
pub(crate) struct PubSubSettings {
    pub(crate) connection: Connection,
    /// Clients with this name share subscriptions.
    pub(crate) group: Option<String>,
}

impl PubSubSettings {
    /// `pubsub.mqtt3`.
    pub(crate) fn v3(setup: &Setup) -> Result<Self> {
        let metadata = &setup.metadata;
        let url = metadata.required(URL)?;
        let consumer = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
        Ok(Self {
            connection: Connection::read(metadata, url, consumer, v3(metadata), qos(metadata)?)?,
            group: None,
        })
    }

    /// `pubsub.mqtt5`.
    pub(crate) fn v5(setup: &Setup) -> Result<Self> {
        const WINDOW_NAME: &[&str] = &["receiveMaximum"];
        let metadata = &setup.metadata;
        let url = metadata.required(URL)?;
        let consumer = metadata.filled(&["consumerID"]).unwrap_or(&setup.app_id);
        let shares = metadata.flag(&["sharedSubscriptions"], false);
        if shares && consumer.contains(['/', '+', '#']) {
            let text = "with sharedSubscriptions it names a group, which cannot contain /, + or #";
            return Err(metadata.wrong(&["consumerID"], text).into());
        }
        let named = metadata.filled(&["clientID"]);
        let nameless = shares && named.is_none();
        let client = match named {
            Some(name) => name.to_owned(),
            None if shares => format!("{consumer}-{}", uuid::Uuid::new_v4().simple()),
            None => consumer.to_owned(),
        };
        let session = Session {
            clean_start: metadata.flag(&["cleanStart"], false),
            expiry: expiry(
                metadata,
                if nameless {
                    SESSION_EXPIRY_NAMELESS
                } else {
                    SESSION_EXPIRY
                },
            )?,
            window: match metadata.number::<u16>(WINDOW_NAME)? {
                None => WINDOW,
                Some(0) => return Err(metadata.wrong(WINDOW_NAME, "use 1 to 65535").into()),
                Some(window) => window,
            },
            forget: nameless,
        };
        let version = Version::V5(session);
        Ok(Self {
            connection: Connection::read(metadata, url, &client, version, qos(metadata)?)?,
            group: shares.then(|| consumer.to_owned()),
        })
    }
}

fn qos(metadata: &Metadata) -> Result<QoS, MetadataError> {
    Ok(match metadata.number::<u8>(&["qos"])? {
        None | Some(1) => QoS::AtLeastOnce,
        Some(0) => QoS::AtMostOnce,
        Some(2) => QoS::ExactlyOnce,
        Some(_) => return Err(metadata.wrong(&["qos"], "use 0, 1 or 2")),
    })
}

/// In seconds, as in MQTT.
fn expiry(metadata: &Metadata, default: Duration) -> Result<u32, MetadataError> {
    const NAME: &[&str] = &["sessionExpiryInterval"];
    let given = metadata.duration(NAME, Unit::Seconds)?;
    let nanos = given.map_or(default.as_nanos(), |given| {
        u128::try_from(given.nanos).unwrap_or(u128::MAX)
    });
    if nanos == u128::MAX {
        return Err(metadata.wrong(NAME, "it cannot be less than zero"));
    }
    let seconds = nanos.div_ceil(Duration::from_secs(1).as_nanos());
    Ok(u32::try_from(seconds).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(properties: &[(&str, &str)]) -> Result<PubSubSettings> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let url = ("url".to_owned(), "tcp://broker".to_owned());
        PubSubSettings::v5(&Setup {
            metadata: Metadata::new("events", owned.chain([url]))?,
            app_id: "app".to_owned(),
        })
    }

    fn session(properties: &[(&str, &str)]) -> Session {
        match wanted(properties).unwrap().connection.version {
            Version::V5(session) => session,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn named_client_keeps_session() {
        let plain = wanted(&[]).unwrap();
        assert_eq!((plain.connection.client.as_str(), plain.group), ("app", None));
        assert_eq!(plain.connection.qos, QoS::AtLeastOnce);
        let expected = Session {
            clean_start: false,
            expiry: 7 * 24 * 3600,
            window: 1024,
            forget: false,
        };
        assert_eq!(session(&[]), expected);
        let shared = [
            ("sharedSubscriptions", "true"),
            ("consumerID", "group"),
            ("clientID", "app-0"),
        ];
        let named = wanted(&shared).unwrap();
        assert_eq!(named.connection.client, "app-0");
        assert_eq!(named.group.as_deref(), Some("group"));
        assert_eq!(session(&shared), expected);
    }

    #[test]
    fn unnamed_sharing_clients_leave_no_session() {
        let shared = [("sharedSubscriptions", "true")];
        let (one, two) = (wanted(&shared).unwrap(), wanted(&shared).unwrap());
        assert_eq!(one.group.as_deref(), Some("app"));
        assert!(one.connection.client.starts_with("app-"));
        assert_ne!(one.connection.client, two.connection.client);
        let session = session(&shared);
        assert!(session.forget);
        assert_eq!(session.expiry, 300);
    }

    #[test]
    fn session_expiry_is_configurable() {
        for (text, seconds) in [
            ("0", 0),
            ("30", 30),
            ("1h", 3600),
            ("1ms", 1),
            ("2000000h", u32::MAX),
        ] {
            let parsed = session(&[("sessionExpiryInterval", text)]);
            assert_eq!(parsed.expiry, seconds, "{text}");
            let connection = wanted(&[("sessionExpiryInterval", text)]).unwrap().connection;
            assert_eq!(connection.discards_unacknowledged(), seconds == 0, "{text}");
        }
        assert!(session(&[("cleanStart", "true")]).clean_start);
        assert_eq!(session(&[("receiveMaximum", "5")]).window, 5);
    }

    #[test]
    fn names_invalid_property() {
        for (name, properties) in [
            ("qos", &[("qos", "3")][..]),
            ("receiveMaximum", &[("receiveMaximum", "0")]),
            ("receiveMaximum", &[("receiveMaximum", "65536")]),
            ("sessionExpiryInterval", &[("sessionExpiryInterval", "-1s")]),
            ("sessionExpiryInterval", &[("sessionExpiryInterval", "soon")]),
            (
                "consumerID",
                &[("sharedSubscriptions", "true"), ("consumerID", "a/b")],
            ),
        ] {
            let error = wanted(properties).map(drop).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
