//! Converts MQTT 5 properties to metadata and back.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use outrigger_component::{Error, Pairs, Result, pubsub::Publish};

use crate::{
    client::{MAX_USER_PROPERTIES, Properties},
    link::is_text,
};

const RESPONSE_TOPIC: &str = "responseTopic";
const CORRELATION: &str = "correlationData";
/// Base64 form of correlation data that is not text.
const CORRELATION_BASE64: &str = "correlationDataBase64";
pub(super) const RETAINED: &str = "retained";
/// Metadata names with a special meaning, which are not user properties.
const RESERVED_NAMES: &[&str] = &[
    "ttlInSeconds",
    "ttl",
    "retain",
    RETAINED,
    "rawPayload",
    "contentType",
    "content-type",
    RESPONSE_TOPIC,
    CORRELATION,
    CORRELATION_BASE64,
];
/// Maximum bytes of correlation data, limited by its two-byte length.
const MAX_CORRELATION: usize = 65_535;

/// Properties to publish with a message.
pub(super) fn of(message: &Publish) -> Result<Properties> {
    let text = |name: &str| {
        let value = message.property(name);
        value
            .map(|value| checked(name, value).map(str::to_owned))
            .transpose()
    };
    let content_type = match text("contentType")? {
        Some(named) => Some(named),
        None => message.content_type.clone().or_else(|| message.declared.clone()),
    };
    if let Some(content_type) = &content_type {
        checked("contentType", content_type)?;
    }
    let response_topic = text(RESPONSE_TOPIC)?;
    if let Some(topic) = response_topic
        .as_deref()
        .filter(|topic| topic.contains(['+', '#']))
    {
        let text = format!(
            "the metadata property {RESPONSE_TOPIC} is {topic:?}, which has wildcards: give a topic that can be published to"
        );
        return Err(Error::invalid_request(text));
    }
    let mut user = Vec::new();
    for (name, value) in &message.metadata {
        if !RESERVED_NAMES
            .iter()
            .any(|meant| meant.eq_ignore_ascii_case(name))
        {
            user.push((
                checked("metadata", name)?.to_owned(),
                checked(name, value)?.to_owned(),
            ));
        }
    }
    if user.len() > MAX_USER_PROPERTIES {
        let text = format!(
            "{} metadata properties exceed the limit of {MAX_USER_PROPERTIES}",
            user.len()
        );
        return Err(Error::invalid_request(text));
    }
    Ok(Properties {
        content_type,
        expiry: expiry(message)?,
        response_topic,
        correlation: correlation(message)?,
        user,
        subscriptions: Vec::new(),
    })
}

/// Metadata for the app: user properties, response topic and correlation data.
pub(super) fn metadata(properties: &Properties) -> Pairs {
    let user = properties.user.iter();
    // Publishers cannot set names with a special meaning.
    let user = user.filter(|(name, _)| {
        !RESERVED_NAMES
            .iter()
            .any(|meant| meant.eq_ignore_ascii_case(name))
    });
    let mut metadata: Pairs = user.cloned().collect();
    if let Some(topic) = &properties.response_topic {
        metadata.insert(RESPONSE_TOPIC.to_owned(), topic.clone());
    }
    if let Some(data) = &properties.correlation {
        match std::str::from_utf8(data) {
            Ok(text) => metadata.insert(CORRELATION.to_owned(), text.to_owned()),
            Err(_) => metadata.insert(CORRELATION_BASE64.to_owned(), STANDARD.encode(data)),
        };
    }
    metadata
}

/// Whole seconds, at least one.
fn expiry(message: &Publish) -> Result<Option<u32>> {
    let ttl = message.ttl()?;
    Ok(ttl.map(|ttl| {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }))
}

fn correlation(message: &Publish) -> Result<Option<Bytes>> {
    let data = match (
        message.property(CORRELATION),
        message.property(CORRELATION_BASE64),
    ) {
        (None, None) => return Ok(None),
        (Some(text), _) => Bytes::copy_from_slice(text.as_bytes()),
        (None, Some(text)) => {
            let decoded = STANDARD.decode(text).map_err(|error| {
                let text = format!("the metadata property {CORRELATION_BASE64} is not valid base64");
                Error::invalid_request(text).because(error)
            })?;
            decoded.into()
        }
    };
    if data.len() > MAX_CORRELATION {
        let text = format!(
            "{CORRELATION} has {} bytes, more than the limit of {MAX_CORRELATION}",
            data.len()
        );
        return Err(Error::invalid_request(text));
    }
    Ok(Some(data))
}

fn checked<'t>(name: &str, text: &'t str) -> Result<&'t str> {
    if is_text(text) {
        return Ok(text);
    }
    let start: String = text.chars().take(32).collect();
    let text = format!(
        "the metadata property {name:?} cannot be a property of MQTT: {start:?} has control characters, or \
         more than 65535 bytes"
    );
    Err(Error::invalid_request(text))
}

#[cfg(test)]
mod tests {
    use outrigger_component::Kind;

    use super::*;

    fn publish(metadata: &[(&str, &str)]) -> Publish {
        let pairs = metadata
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Publish {
            metadata: pairs.collect(),
            declared: Some("text/plain".to_owned()),
            ..Publish::default()
        }
    }

    #[test]
    fn metadata_round_trip_as_properties() {
        let given = [
            ("TTLInSeconds", "1500ms"),
            ("responseTopic", "answers/7"),
            ("correlationData", "seven"),
            ("rawPayload", "true"),
            ("retain", "true"),
            ("colour", "red"),
        ];
        let properties = of(&publish(&given)).unwrap();
        let expected = Properties {
            content_type: Some("text/plain".to_owned()),
            expiry: Some(2),
            response_topic: Some("answers/7".to_owned()),
            correlation: Some("seven".into()),
            user: vec![("colour".to_owned(), "red".to_owned())],
            subscriptions: Vec::new(),
        };
        assert_eq!(properties, expected);
        let metadata = metadata(&properties);
        assert_eq!(metadata.len(), 3, "{metadata:?}");
        assert_eq!(metadata["responseTopic"], "answers/7");
        assert_eq!(metadata["correlationData"], "seven");
        assert_eq!(metadata["colour"], "red");
    }

    #[test]
    fn request_metadata_overrides_payload() {
        let properties = of(&publish(&[("contentType", "image/png")])).unwrap();
        assert_eq!(properties.content_type.as_deref(), Some("image/png"));
    }

    #[test]
    fn correlation_data_is_binary() {
        let properties = of(&publish(&[("correlationDataBase64", "/wA=")])).unwrap();
        assert_eq!(properties.correlation.as_deref(), Some(&b"\xff\x00"[..]));
        assert_eq!(metadata(&properties)["correlationDataBase64"], "/wA=");
    }

    #[test]
    fn publishers_cannot_set_reserved_names() {
        let properties = Properties {
            user: vec![("Retained".to_owned(), "true".to_owned())],
            ..Properties::default()
        };
        assert!(metadata(&properties).is_empty());
    }

    #[test]
    fn rejects_invalid_properties() {
        let long = "x".repeat(65_536);
        for (name, value) in [
            ("colour", "red\n"),
            ("col\u{7}our", "red"),
            ("colour", long.as_str()),
            ("contentType", "a\u{0}"),
            ("responseTopic", "answers/+"),
            ("correlationData", long.as_str()),
            ("correlationDataBase64", "*"),
            ("ttl", "soon"),
        ] {
            let error = of(&publish(&[(name, value)])).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidRequest, "{name}");
        }
        let many = Publish {
            metadata: (0..257)
                .map(|number| (number.to_string(), String::new()))
                .collect(),
            ..Publish::default()
        };
        assert!(of(&many).unwrap_err().to_string().contains("257"));
    }
}
