//! Converts messages to Kafka records and back, in the form of Dapr's components.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use krafka::{ConsumerRecord, Record};
use outrigger_component::{
    Error, Pairs, Result,
    pubsub::{Message, OrderingKey, PARTITION_KEY, property},
};
use url::form_urlencoded::byte_serialize;

use super::settings::Headers;

/// Metadata name of the key, in both directions.
const KEY: &str = "__key";

/// Metadata of requests and subscriptions: the schema type of payloads.
const SCHEMA: &str = "valueSchemaType";

/// Payload of a record without a value.
const NULL_PAYLOAD: &[u8] = b"null";

/// Encoding of payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Unchanged.
    None,
    /// Avro with a schema of the registry.
    Avro,
}

impl Encoding {
    /// The encoding named by the metadata.
    ///
    /// # Errors
    /// `InvalidRequest` for an unknown schema type.
    pub(super) fn of(metadata: &Pairs) -> Result<Self> {
        match property(metadata, SCHEMA).map(str::to_lowercase).as_deref() {
            None | Some("none") => Ok(Self::None),
            Some("avro") => Ok(Self::Avro),
            Some(other) => Err(Error::invalid_request(format!(
                "error parsing schema type. '{other}' is not a supported value"
            ))),
        }
    }
}

/// Whether a payload is published as a record without a value, which reads as the same payload.
pub(super) fn is_nothing(payload: &[u8]) -> bool {
    payload == NULL_PAYLOAD
}

/// A record for `topic`; a tombstone if `value` is `None`. Every metadata entry becomes a header, including
/// the key.
pub(super) fn outgoing(topic: &str, value: Option<Bytes>, metadata: &Pairs, headers: &Headers) -> Record {
    let mut record = Record::new(topic, value.clone().unwrap_or_default());
    record.value = value;
    if let Some(key) = metadata.get(PARTITION_KEY).or_else(|| metadata.get(KEY)) {
        record = record.key(key.clone());
    }
    let mut names: Vec<&String> = metadata.keys().filter(|name| headers.passes(name)).collect();
    names.sort_unstable();
    for name in names {
        record = record.header(name.clone(), metadata[name].clone());
    }
    record
}

/// The payload; `null` for a tombstone.
pub(super) fn payload(record: &ConsumerRecord) -> Bytes {
    record.value.clone().unwrap_or(Bytes::from_static(NULL_PAYLOAD))
}

/// Metadata of a record for the app.
pub(super) fn metadata(record: &ConsumerRecord, headers: &Headers) -> Pairs {
    let shown = |bytes: &[u8]| -> String {
        if headers.escape {
            byte_serialize_go(bytes)
        } else {
            String::from_utf8_lossy(bytes).into_owned()
        }
    };
    let mut metadata = Pairs::from([
        ("__offset".to_owned(), record.offset.to_string()),
        ("__topic".to_owned(), record.topic.to_string()),
        ("__timestamp".to_owned(), record.timestamp.to_string()),
        ("__partition".to_owned(), record.partition.to_string()),
    ]);
    if let Some(key) = &record.key {
        metadata.insert(KEY.to_owned(), shown(key));
    }
    for (name, value) in &record.headers {
        if headers.passes(name) {
            metadata.insert(name.clone(), shown(value.as_deref().unwrap_or_default()));
        }
    }
    metadata
}

/// Converts a record to a message with the payload `data`.
pub(super) fn incoming(
    topic: &Arc<str>,
    record: &ConsumerRecord,
    data: Bytes,
    headers: &Headers,
    redelivered: Option<u32>,
) -> Message {
    Message {
        topic: Arc::clone(topic),
        data,
        content_type: None,
        metadata: metadata(record, headers),
        ordering_key: Some(OrderingKey {
            partition: u32::try_from(record.partition).ok(),
            key: record.key.clone(),
        }),
        redelivered,
    }
}

/// Go's query escaping: that of forms, except for the asterisk and the tilde.
fn byte_serialize_go(bytes: &[u8]) -> String {
    let parts = byte_serialize(bytes).map(|part| match part {
        "*" => Cow::Borrowed("%2A"),
        "%7E" => Cow::Borrowed("~"),
        part => Cow::Owned(part.replace('*', "%2A")),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use outrigger_component::{Kind, Metadata};

    use super::*;

    fn pairs(entries: &[(&str, &str)]) -> Pairs {
        let owned = entries
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        owned.collect()
    }

    fn headers(escape: &str, exclude: &str) -> Headers {
        let properties = [
            ("brokers", "one"),
            ("authType", "none"),
            ("escapeHeaders", escape),
            ("excludeHeaderMetaRegex", exclude),
        ];
        let owned = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let setup = outrigger_component::Setup {
            metadata: Metadata::new("broker", owned).unwrap(),
            app_id: "app".to_owned(),
        };
        super::super::settings::Settings::read(&setup, true)
            .unwrap()
            .headers
    }

    fn names(record: &Record) -> Vec<&str> {
        record.headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn metadata_becomes_headers_and_key() {
        let metadata = pairs(&[("partitionKey", "k"), ("other", "o"), ("secret-1", "s")]);
        let record = outgoing(
            "t",
            Some(Bytes::from_static(b"d")),
            &metadata,
            &headers("", "^secret"),
        );
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(names(&record), ["other", "partitionKey"]);
        let record = outgoing(
            "t",
            Some(Bytes::new()),
            &pairs(&[("__key", "k")]),
            &Headers::default(),
        );
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(record.value.as_deref(), Some(&b""[..]), "empty is not none");
        let record = outgoing("t", None, &Pairs::new(), &Headers::default());
        assert!(record.key.is_none() && record.value.is_none() && record.headers.is_empty());
        assert!(is_nothing(b"null") && !is_nothing(b"") && !is_nothing(b"\"null\""));
    }

    #[test]
    fn metadata_selects_encoding() {
        let of = |value| Encoding::of(&pairs(&[("valueSchemaType", value)])).map_err(|error| error.kind());
        assert_eq!((of("None"), of("")), (Ok(Encoding::None), Ok(Encoding::None)));
        assert_eq!((of("Avro"), of("AVRO")), (Ok(Encoding::Avro), Ok(Encoding::Avro)));
        assert_eq!(of("xml"), Err(Kind::InvalidRequest));
        assert_eq!(Encoding::of(&Pairs::new()).unwrap(), Encoding::None);
    }

    fn consumed(key: Option<&'static [u8]>) -> ConsumerRecord {
        let key = key.map(Bytes::from_static);
        let mut record = ConsumerRecord::new("t", 3, 42, key, Some(Bytes::from_static(b"d")));
        record.timestamp = 1_700_000_000_123;
        record.headers = vec![
            ("name".to_owned(), Some(Bytes::from_static("ä b*~".as_bytes()))),
            ("none".to_owned(), None),
            ("secret-1".to_owned(), Some(Bytes::from_static(b"s"))),
        ];
        record
    }

    #[test]
    fn metadata_has_offset_key_and_headers() {
        let found = metadata(&consumed(Some(b"a/b")), &headers("", "^secret"));
        let expected = pairs(&[
            ("__key", "a/b"),
            ("__offset", "42"),
            ("__topic", "t"),
            ("__timestamp", "1700000000123"),
            ("__partition", "3"),
            ("name", "ä b*~"),
            ("none", ""),
        ]);
        assert_eq!(found, expected);
        let found = metadata(&consumed(None), &headers("true", ""));
        assert_eq!(found["name"], "%C3%A4+b%2A~");
        assert!(!found.contains_key("__key"));
    }

    #[test]
    fn ordering_key_is_partition_and_key() {
        let topic: Arc<str> = "t".into();
        let record = consumed(Some(b"k"));
        let message = incoming(&topic, &record, payload(&record), &Headers::default(), Some(2));
        let ordering_key = message.ordering_key.unwrap();
        assert_eq!(
            (ordering_key.partition, ordering_key.key.as_deref()),
            (Some(3), Some(&b"k"[..]))
        );
        assert_eq!((message.redelivered, message.content_type), (Some(2), None));
        let mut tombstone = consumed(None);
        tombstone.value = None;
        assert_eq!(payload(&tombstone), "null");
    }
}
