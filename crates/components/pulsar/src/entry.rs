//! An entry, the unit that a broker stores and sends: a message or a batch.

use bytes::Bytes;
use outrigger_component::Pairs;
use outrigger_offload::offload;
use prost::Message as _;
use pulsar::{
    message::Payload,
    proto::{CommandMessage, CompressionType, KeyValue, MessageMetadata, SingleMessageMetadata},
};

use super::packing::unpack;

/// Maximum decompressed payload, bytes.
const UNPACKED: usize = 32 * 1024 * 1024;
/// Maximum messages of a batch.
const MAX_BATCH: usize = 100_000;

/// Position in its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EntryPosition {
    pub(super) ledger: u64,
    pub(super) entry: u64,
}

/// A message of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Index within the entry.
    pub(super) index: u32,
    pub(super) data: Bytes,
    pub(super) key: Option<Bytes>,
    pub(super) properties: Pairs,
}

/// A received entry.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) place: EntryPosition,
    /// Number of earlier deliveries.
    pub(super) redelivered: u32,
    /// Whether it is a batch.
    pub(super) is_batch: bool,
    /// Messages not yet acknowledged.
    pub(super) parts: Vec<Part>,
}

/// Number of permits that an entry uses.
pub(super) fn permits(payload: &Payload) -> u32 {
    let count = payload.metadata.num_messages_in_batch.unwrap_or(1);
    u32::try_from(count).unwrap_or(1).max(1)
}

/// Bytes processed when reading it: received and decompressed.
fn size(payload: &Payload) -> usize {
    let unpacked = payload.metadata.uncompressed_size.unwrap_or(0);
    let unpacked = usize::try_from(unpacked).unwrap_or(usize::MAX);
    payload.data.len().saturating_add(unpacked)
}

impl Entry {
    /// Decodes the entry of `command`, offloaded if large. The error says why it is unreadable.
    pub(super) async fn read(
        command: CommandMessage,
        payload: Payload,
    ) -> (CommandMessage, Result<Self, String>) {
        let size = size(&payload);
        let work = move || {
            let entry = Self::of(&command, payload);
            (command, entry)
        };
        offload(size, work).await
    }

    /// # Errors
    /// Why the entry is unreadable.
    fn of(command: &CommandMessage, payload: Payload) -> Result<Self, String> {
        let Payload { metadata, data } = payload;
        if !metadata.encryption_keys.is_empty() {
            return Err("it is encrypted from end to end, which is not supported".to_owned());
        }
        if metadata.num_chunks_from_msg.is_some_and(|count| count > 1) {
            return Err("it is a part of a larger message, which is not supported".to_owned());
        }
        let data = match metadata.compression {
            None => data,
            Some(kind) if kind == CompressionType::None as i32 => data,
            Some(kind) => {
                let size = metadata.uncompressed_size.unwrap_or(0);
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if size > UNPACKED {
                    return Err(format!(
                        "its decompressed size of {size} bytes exceeds the limit of {UNPACKED}"
                    ));
                }
                unpack(kind, &data, size)?
            }
        };
        let place = EntryPosition {
            ledger: command.message_id.ledger_id,
            entry: command.message_id.entry_id,
        };
        let batch = metadata.num_messages_in_batch;
        let data = Bytes::from(data);
        let mut parts = match batch {
            None => vec![alone(metadata, data)],
            Some(count) => split_batch(count, &data)?,
        };
        // One bit per message, set if unacknowledged.
        let words = &command.ack_set;
        parts.retain(|part| {
            let (word, bit) = (part.index / 64, part.index % 64);
            let word = usize::try_from(word).ok().and_then(|word| words.get(word));
            words.is_empty() || word.is_some_and(|word| word >> bit & 1 == 1)
        });
        Ok(Self {
            place,
            redelivered: command.redelivery_count.unwrap_or(0),
            is_batch: batch.is_some(),
            parts,
        })
    }
}

fn pairs(properties: Vec<KeyValue>) -> Pairs {
    properties
        .into_iter()
        .map(|pair| (pair.key, pair.value))
        .collect()
}

fn alone(metadata: MessageMetadata, data: Bytes) -> Part {
    Part {
        index: 0,
        data,
        key: metadata.partition_key.map(Bytes::from),
        properties: pairs(metadata.properties),
    }
}

/// Splits a batch: each message has a four-byte length of its metadata, the metadata and the payload.
fn split_batch(count: i32, data: &Bytes) -> Result<Vec<Part>, String> {
    let wrong = || "its batch is malformed".to_owned();
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_BATCH);
    let count = count.ok_or_else(wrong)?;
    let (mut parts, mut rest) = (Vec::new(), data.clone());
    for index in 0..count {
        let length = rest
            .get(..4)
            .and_then(|four| four.try_into().ok())
            .map(u32::from_be_bytes);
        let length = length
            .and_then(|length| usize::try_from(length).ok())
            .ok_or_else(wrong)?;
        let _length = rest.split_to(4);
        if length > rest.len() {
            return Err(wrong());
        }
        let single = SingleMessageMetadata::decode(&rest.split_to(length)[..]).map_err(|_| wrong())?;
        let size = usize::try_from(single.payload_size).ok();
        let size = size.filter(|size| *size <= rest.len()).ok_or_else(wrong)?;
        let payload = rest.split_to(size);
        // A later message of its key replaced it.
        if !single.compacted_out.unwrap_or(false) {
            parts.push(Part {
                index: u32::try_from(index).unwrap_or(u32::MAX),
                data: payload,
                key: single.partition_key.map(Bytes::from),
                properties: pairs(single.properties),
            });
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use outrigger_offload::{INLINE, done_at_once};
    use pulsar::proto::{EncryptionKeys, MessageIdData};

    use super::*;

    fn command(ack_set: Vec<i64>) -> CommandMessage {
        CommandMessage {
            message_id: MessageIdData {
                ledger_id: 1,
                entry_id: 2,
                ..MessageIdData::default()
            },
            redelivery_count: Some(3),
            ack_set,
            ..CommandMessage::default()
        }
    }

    fn batch(texts: &[&str]) -> Payload {
        let mut data = Vec::new();
        for text in texts {
            let single = SingleMessageMetadata {
                payload_size: i32::try_from(text.len()).unwrap(),
                partition_key: Some(format!("key of {text}")),
                ..SingleMessageMetadata::default()
            };
            data.extend(u32::try_from(single.encoded_len()).unwrap().to_be_bytes());
            single.encode(&mut data).unwrap();
            data.extend(text.as_bytes());
        }
        Payload {
            metadata: MessageMetadata {
                num_messages_in_batch: i32::try_from(texts.len()).ok(),
                ..MessageMetadata::default()
            },
            data,
        }
    }

    fn texts(entry: &Entry) -> Vec<(u32, String)> {
        let parts = entry.parts.iter();
        parts
            .map(|part| (part.index, String::from_utf8(part.data.to_vec()).unwrap()))
            .collect()
    }

    #[test]
    fn splits_batches() {
        let payload = batch(&["a", "", "c"]);
        assert_eq!(permits(&payload), 3);
        let entry = Entry::of(&command(Vec::new()), payload).unwrap();
        assert_eq!(entry.place, EntryPosition { ledger: 1, entry: 2 });
        assert!(entry.is_batch && entry.redelivered == 3);
        let all = [(0, "a".to_owned()), (1, String::new()), (2, "c".to_owned())];
        assert_eq!(texts(&entry), all);
        assert_eq!(entry.parts[2].key.as_deref(), Some(&b"key of c"[..]));
    }

    #[tokio::test]
    async fn offloads_large_entries() {
        for (size, expected) in [(INLINE / 2, true), (INLINE, false)] {
            let mut payload = batch(&[]);
            payload.metadata.num_messages_in_batch = None;
            payload.metadata.compression = Some(CompressionType::Zstd as i32);
            payload.metadata.uncompressed_size = u32::try_from(size).ok();
            payload.data = zstd::bulk::compress(&vec![b'x'; size], 3).unwrap();
            let (at_once, (_, entry)) = done_at_once(Entry::read(command(Vec::new()), payload)).await;
            assert_eq!(at_once, expected, "{size}");
            assert_eq!(entry.unwrap().parts[0].data.len(), size);
        }
    }

    #[test]
    fn skips_acknowledged_messages() {
        let entry = Entry::of(&command(vec![0b101]), batch(&["a", "b", "c"])).unwrap();
        assert_eq!(texts(&entry), [(0, "a".to_owned()), (2, "c".to_owned())]);
    }

    #[test]
    fn rejects_malformed_batch() {
        for cut in [1, 5, 12] {
            let mut payload = batch(&["some text"]);
            payload.data.truncate(payload.data.len() - cut);
            Entry::of(&command(Vec::new()), payload).unwrap_err();
        }
        for count in [-1, 2, i32::MAX] {
            let mut payload = batch(&["some text"]);
            payload.metadata.num_messages_in_batch = Some(count);
            Entry::of(&command(Vec::new()), payload).unwrap_err();
        }
    }

    #[test]
    fn rejects_unsupported_entries() {
        let mut encrypted = batch(&["a"]);
        encrypted.metadata.encryption_keys = vec![EncryptionKeys::default()];
        let mut chunk = batch(&["a"]);
        chunk.metadata.num_chunks_from_msg = Some(2);
        let mut large = batch(&["a"]);
        large.metadata.compression = Some(CompressionType::Lz4 as i32);
        large.metadata.uncompressed_size = Some(u32::MAX);
        for (payload, why) in [
            (encrypted, "encrypted"),
            (chunk, "larger message"),
            (large, "bytes"),
        ] {
            let error = Entry::of(&command(Vec::new()), payload).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
