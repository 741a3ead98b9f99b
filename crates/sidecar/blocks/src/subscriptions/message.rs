//! Converts events to gRPC messages.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outrigger_cloudevents::{Data, Event, content_type, member};
use outrigger_go_json::repaired;
use outrigger_offload::{INLINE, offload};
use outrigger_protojson::from_json;
use outrigger_wire::runtime::v1::{TopicEventCeRequest, TopicEventRequest};
use prost_types::Struct;
use serde_json::Value;

use super::incoming::{Incoming, binary_event, text};

/// Attributes with dedicated fields; others are extensions.
const FIELDS: [&str; 7] = [
    member::ID,
    member::SOURCE,
    member::DATA_CONTENT_TYPE,
    member::TYPE,
    member::SPEC_VERSION,
    member::DATA,
    member::DATA_BASE64,
];

/// Like [`topic_event`], off the serving thread if the event is large.
///
/// # Errors
/// As [`topic_event`].
pub(super) async fn written(incoming: &Arc<Incoming>, pubsub: &str) -> Result<TopicEventRequest, String> {
    let size = incoming.data.len();
    if size <= INLINE {
        return topic_event(incoming, pubsub);
    }
    let (incoming, pubsub) = (Arc::clone(incoming), pubsub.to_owned());
    offload(size, move || topic_event(&incoming, &pubsub)).await
}

/// The gRPC message of an event.
///
/// # Errors
/// If the data do not match the content type.
fn topic_event(incoming: &Incoming, pubsub: &str) -> Result<TopicEventRequest, String> {
    let event = envelope(incoming)?;
    Ok(TopicEventRequest {
        id: event.id,
        source: event.source,
        r#type: event.r#type,
        spec_version: event.spec_version,
        data_content_type: event.data_content_type,
        data: event.data,
        extensions: event.extensions,
        topic: incoming.topic.to_string(),
        pubsub_name: pubsub.to_owned(),
        path: incoming.path.clone(),
    })
}

/// The gRPC message of an event in a bulk. JSON that only Go accepts is repaired.
///
/// # Errors
/// As [`topic_event`].
pub(super) fn envelope(incoming: &Incoming) -> Result<TopicEventCeRequest, String> {
    if let Some(attributes) = &incoming.binary {
        return fields(&binary_event(attributes), Some(&incoming.payload));
    }
    let read = |data: &[u8]| {
        let event = Event::parse(data).map_err(|error| error.to_string())?;
        fields(&event, None)
    };
    read(&incoming.data).or_else(|error| match repaired(&incoming.data) {
        Some(repaired) => read(&repaired),
        None => Err(error),
    })
}

/// `octets`: the payload of a binary-mode event.
fn fields(event: &Event<'_>, octets: Option<&Bytes>) -> Result<TopicEventCeRequest, String> {
    let data_content_type = text(event, member::DATA_CONTENT_TYPE)?;
    let data = match octets {
        Some(octets) => octets.clone(),
        None => payload(event, &data_content_type)?,
    };
    Ok(TopicEventCeRequest {
        id: text(event, member::ID)?,
        source: text(event, member::SOURCE)?,
        r#type: text(event, member::TYPE)?,
        spec_version: text(event, member::SPEC_VERSION)?,
        data_content_type,
        data,
        extensions: Some(extensions(event)?),
    })
}

/// The payload as bytes. For content types other than text and JSON it must be base64, else it is empty.
fn payload(event: &Event<'_>, content_type: &str) -> Result<Bytes, String> {
    let json = match event.data() {
        Data::None => return Ok(Bytes::new()),
        Data::Base64(text) => {
            let bytes = STANDARD.decode(text.as_bytes());
            return bytes
                .map(Bytes::from)
                .map_err(|error| format!("its data_base64 is not base64: {error}"));
        }
        Data::Json(json) => json,
    };
    if content_type::is_text(content_type) {
        let text: String = serde_json::from_str(json).map_err(|_| {
            format!("its data is not a JSON string, which the content type {content_type} needs")
        })?;
        return Ok(text.into());
    }
    if content_type::is_json(content_type) || content_type::is_cloud_event(content_type) {
        return Ok(Bytes::copy_from_slice(json.as_bytes()));
    }
    Ok(Bytes::new())
}

fn extensions(event: &Event<'_>) -> Result<Struct, String> {
    let mut fields = Struct::default().fields;
    for (name, json) in event.members() {
        if FIELDS.contains(&name) {
            continue;
        }
        let value: Value = serde_json::from_str(json)
            .map_err(|error| format!("its attribute {name} cannot be read: {error}"))?;
        fields.insert(name.to_owned(), from_json(value));
    }
    Ok(Struct { fields })
}

#[cfg(test)]
mod tests {
    use prost_types::value::Kind;

    use super::*;

    fn data(json: &str) -> Result<Bytes, String> {
        let event = Event::parse(json.as_bytes()).unwrap();
        let kind = event.text(member::DATA_CONTENT_TYPE).unwrap_or_default();
        payload(&event, &kind)
    }

    #[test]
    fn content_type_selects_data_bytes() {
        for (json, expected) in [
            (r#"{"datacontenttype":"text/plain","data":"a\nb"}"#, Ok("a\nb")),
            (
                r#"{"datacontenttype":"application/json","data":{"b":1.50}}"#,
                Ok(r#"{"b":1.50}"#),
            ),
            (r#"{"datacontenttype":"foo/bar","data":"x"}"#, Ok("")),
            (r#"{"datacontenttype":"foo/bar","data_base64":"eA=="}"#, Ok("x")),
            (r#"{"datacontenttype":"text/plain"}"#, Ok("")),
        ] {
            assert_eq!(
                data(json).as_deref(),
                expected
                    .map(str::as_bytes)
                    .as_ref()
                    .copied()
                    .map_err(|()| unreachable!()),
                "{json}"
            );
        }
        assert!(data(r#"{"datacontenttype":"text/plain","data":1}"#).is_err());
        assert!(data(r#"{"data_base64":"%"}"#).is_err());
    }

    #[test]
    fn repairs_invalid_characters_as_go_does() {
        let written = |data: &'static [u8]| {
            let incoming = Incoming::of(Bytes::from_static(data));
            topic_event(&incoming, "broker").unwrap()
        };
        for data in [
            &br#"{"id":"\ud800","datacontenttype":"text/plain","data":"a\udc00","x":"\ud800"}"#[..],
            b"{\"id\":\"\xff\",\"datacontenttype\":\"text/plain\",\"data\":\"a\xff\",\"x\":\"\xff\"}",
        ] {
            let event = written(data);
            assert_eq!(
                (event.id.as_str(), &event.data[..]),
                ("\u{fffd}", "a\u{fffd}".as_bytes())
            );
            let extension = event.extensions.unwrap().fields.remove("x").unwrap().kind;
            assert_eq!(extension, Some(Kind::StringValue("\u{fffd}".to_owned())));
        }
        let source = written(br#"{"id":"1","source":"\ud800"}"#).source;
        assert_eq!(source, "\u{fffd}");
    }

    #[test]
    fn unknown_attributes_become_extensions() {
        let event = Event::parse(br#"{"id":"1","topic":"t","n":[1,null,{"a":true}],"data":2}"#).unwrap();
        let extensions = extensions(&event).unwrap();
        let mut names: Vec<_> = extensions.fields.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["n", "topic"]);
        assert!(
            matches!(&extensions.fields["n"].kind, Some(Kind::ListValue(list)) if list.values.len() == 3)
        );
    }
}
