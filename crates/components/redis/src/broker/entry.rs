use std::sync::Arc;

use ::redis::Value;
use bytes::Bytes;
use outrigger_component::{
    Pairs,
    pubsub::{Message, OrderingKey, PARTITION_KEY, property},
};

/// An entry of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: String,
    /// Whether a part was dropped because of the answer limit.
    pub(super) cut: bool,
    data: Bytes,
    metadata: Pairs,
}

/// An unacknowledged entry of a group.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) id: String,
    /// Idle time in milliseconds.
    pub(super) idle: u64,
    pub(super) deliveries: u32,
}

impl Entry {
    /// `redelivered`: as in [`Message`].
    pub(super) fn message(self, topic: &Arc<str>, redelivered: u32) -> Message {
        let key = property(&self.metadata, PARTITION_KEY).map(|key| Bytes::copy_from_slice(key.as_bytes()));
        Message {
            topic: Arc::clone(topic),
            data: self.data,
            content_type: None,
            metadata: self.metadata,
            ordering_key: key.map(|key| OrderingKey {
                partition: None,
                key: Some(key),
            }),
            redelivered: Some(redelivered),
        }
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Int(number) => u64::try_from(*number).unwrap_or(0),
        _ => 0,
    }
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Parses the answer of `XREADGROUP` for one stream; empty if nothing arrived.
pub(super) fn read(value: Value) -> Vec<Entry> {
    let streams = match value {
        // In RESP3 this is a map.
        Value::Map(streams) => streams.into_iter().map(|(_, entries)| entries).collect(),
        value => items(value)
            .into_iter()
            .filter_map(|stream| items(stream).into_iter().nth(1))
            .collect::<Vec<_>>(),
    };
    streams.into_iter().flat_map(entries).collect()
}

/// Parses the answer of `XCLAIM`, skipping deleted entries.
pub(super) fn entries(value: Value) -> Vec<Entry> {
    items(value).into_iter().filter_map(entry).collect()
}

fn entry(value: Value) -> Option<Entry> {
    let mut parts = items(value).into_iter();
    let id = text(&parts.next()?)?;
    let mut fields = match parts.next()? {
        Value::Array(fields) => fields.into_iter(),
        error @ Value::ServerError(_) => vec![Value::Nil, error].into_iter(),
        // Deleted.
        _ => return None,
    };
    let (mut data, mut metadata, mut cut) = (Bytes::new(), Pairs::new(), false);
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match (text(&name).as_deref(), value) {
            (Some("data"), Value::BulkString(bytes)) => data = bytes.into(),
            // Invalid metadata of another writer is dropped; the message is kept.
            (Some("metadata"), Value::BulkString(bytes)) => {
                metadata = serde_json::from_slice(&bytes).unwrap_or_default();
            }
            (_, Value::ServerError(_)) => cut = true,
            _ => {}
        }
    }
    Some(Entry {
        id,
        cut,
        data,
        metadata,
    })
}

/// Parses the extended answer of `XPENDING`.
pub(super) fn pending(value: Value) -> Vec<Pending> {
    let one = |value| {
        let parts = items(value);
        let [id, _consumer, idle, deliveries] = parts.as_slice() else {
            return None;
        };
        Some(Pending {
            id: text(id)?,
            idle: number(idle),
            deliveries: u32::try_from(number(deliveries)).unwrap_or(u32::MAX),
        })
    };
    items(value).into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn written(id: &str) -> Value {
        let fields = [
            bulk("data"),
            bulk("x"),
            bulk("metadata"),
            bulk(r#"{"partitionKey":"k"}"#),
        ];
        Value::Array(vec![bulk(id), Value::Array(fields.to_vec())])
    }

    #[test]
    fn parses_resp2_and_resp3_entries() {
        let stream = Value::Array(vec![written("1-0"), written("2-0")]);
        let second = Value::Array(vec![Value::Array(vec![bulk("orders"), stream.clone()])]);
        let third = Value::Map(vec![(bulk("orders"), stream)]);
        for value in [second, third] {
            let read = read(value);
            let ids: Vec<_> = read.iter().map(|entry| entry.id.as_str()).collect();
            assert_eq!(ids, ["1-0", "2-0"]);
            let message = read.into_iter().next().unwrap().message(&"orders".into(), 0);
            assert_eq!(message.data, "x");
            assert_eq!(message.ordering_key.unwrap().key.unwrap(), "k");
        }
        assert!(read(Value::Nil).is_empty());
    }

    #[test]
    fn detects_cut_entries() {
        let error = || ::redis::parse_redis_value(b"-TOOLARGE no\r\n").unwrap();
        let without_data = Value::Array(vec![bulk("data"), error()]);
        let without_fields = error();
        for fields in [without_data, without_fields] {
            let read = entries(Value::Array(vec![
                Value::Array(vec![bulk("1-0"), fields]),
                written("2-0"),
            ]));
            let cut: Vec<_> = read.iter().map(|entry| entry.cut).collect();
            assert_eq!(cut, [true, false]);
        }
    }

    #[test]
    fn skips_deleted_entries() {
        let gone = Value::Array(vec![bulk("1-0"), Value::Nil]);
        let claimed = entries(Value::Array(vec![Value::Nil, gone, written("2-0")]));
        assert_eq!(claimed.len(), 1);
    }
}
