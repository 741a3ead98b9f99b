//! Limits how often an event becomes a dead letter, because dead-letter topics may form a loop. The count
//! travels with the event, so that it works across sidecars.

use std::borrow::Cow;

use bytes::Bytes;
use outrigger_cloudevents::{Event, content_type};
use outrigger_component::Pairs;
use outrigger_component::pubsub::{DEAD_LETTER_HOPS, Message};
use outrigger_offload::{INLINE, offload};

use super::incoming::CONTENT_TYPE;

/// Most times an event may become a dead letter.
pub(super) const MAX_HOPS: u32 = 16;

/// Payload and metadata of a dead letter.
pub(super) type DeadLetter = (Bytes, Pairs);

/// The dead letter of a message with its count: an extension attribute of an event, or metadata of a message
/// without an envelope. `None` if the message has already been one [`MAX_HOPS`] times.
pub(super) async fn next(message: &Message, is_raw: bool) -> Option<DeadLetter> {
    let size = message.data.len();
    if size <= INLINE {
        return counted(message, is_raw);
    }
    let message = message.clone();
    offload(size, move || counted(&message, is_raw)).await
}

fn counted(message: &Message, is_raw: bool) -> Option<DeadLetter> {
    let Message { data, metadata, .. } = message;
    let said = message.content_type.as_ref();
    let said = said.or_else(|| metadata.get(CONTENT_TYPE));
    let has_envelope = !is_raw && !said.is_some_and(|said| content_type::is_octets(said));
    let event = has_envelope.then(|| Event::parse(data).ok()).flatten();
    // Other JSON is a payload without an envelope.
    let event = event.filter(|event| event.get("specversion").is_some());
    let of_event = event.as_ref().and_then(|event| event.get(DEAD_LETTER_HOPS));
    let of_metadata = metadata.get(DEAD_LETTER_HOPS).map(String::as_str);
    // An intermediary may have turned the number into a string.
    let hops = [of_event, of_metadata].into_iter().flatten();
    let hops = hops.filter_map(|hops| hops.trim_matches('"').parse::<u32>().ok());
    let hops = hops.max().unwrap_or(0);
    if hops >= MAX_HOPS {
        return None;
    }
    let (mut metadata, next) = (metadata.clone(), (hops + 1).to_string());
    Some(match event {
        Some(mut event) => {
            event.set_json(DEAD_LETTER_HOPS, Cow::Owned(next));
            (event.to_bytes().into(), metadata)
        }
        None => {
            metadata.insert(DEAD_LETTER_HOPS.to_owned(), next);
            (data.clone(), metadata)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn message(data: &str, content_type: Option<&str>) -> Message {
        Message {
            topic: "orders".into(),
            data: data.to_owned().into(),
            content_type: content_type.map(str::to_owned),
            metadata: Pairs::new(),
            ordering_key: None,
            redelivered: None,
        }
    }

    /// How often a message becomes a dead letter, and the last one.
    async fn passed_on(mut message: Message, is_raw: bool) -> (u32, Message) {
        let mut hops = 0;
        while let Some((data, metadata)) = next(&message, is_raw).await {
            (message.data, message.metadata) = (data, metadata);
            hops += 1;
        }
        (hops, message)
    }

    #[tokio::test]
    async fn event_carries_count_as_extension() {
        for padding in [0, 2 * INLINE] {
            let padding = "x".repeat(padding);
            let text = format!(r#"{{"specversion":"1.0","id":"1","data":{{"b":1e400}},"x":"{padding}"}}"#);
            let (hops, last) = passed_on(message(&text, None), false).await;
            assert_eq!(hops, MAX_HOPS);
            assert!(last.metadata.is_empty());
            let text = str::from_utf8(&last.data).unwrap();
            assert!(text.starts_with(r#"{"data":{"b":1e400},"deadletterhops":16,"id":"1","#));
        }
    }

    #[tokio::test]
    async fn raw_message_carries_count_as_metadata() {
        let event = r#"{"specversion":"1.0","id":"1"}"#;
        for (data, content_type, is_raw) in [
            ("no json", None, false),
            (r#"{"order": 1, "id": "1", "deadletterhops": 9}"#, None, false),
            (event, None, true),
            (event, Some("application/octet-stream"), false),
        ] {
            let (hops, last) = passed_on(message(data, content_type), is_raw).await;
            assert_eq!(hops, MAX_HOPS, "{data}");
            assert_eq!(last.data, data);
            assert_eq!(last.metadata[DEAD_LETTER_HOPS], "16");
        }
    }

    #[tokio::test]
    async fn larger_count_wins() {
        let event = |hops: Value| json!({ "specversion": "1.0", DEAD_LETTER_HOPS: hops }).to_string();
        for (of_event, of_metadata, expected) in [
            (json!(3), "5", 6),
            (json!("7"), "5", 8),
            (json!(-1), "many", 1),
            (json!({}), "", 1),
        ] {
            let mut message = message(&event(of_event), None);
            let metadata = (DEAD_LETTER_HOPS.to_owned(), of_metadata.to_owned());
            message.metadata.extend([metadata]);
            let (data, _) = next(&message, false).await.unwrap();
            let letter: Value = serde_json::from_slice(&data).unwrap();
            assert_eq!(letter[DEAD_LETTER_HOPS], expected);
        }
        for full in [json!(16), json!("16"), json!(4_000_000_000_u32)] {
            assert_eq!(next(&message(&event(full), None), false).await, None);
        }
    }
}
