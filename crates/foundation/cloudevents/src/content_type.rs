//! Media types and the form of a payload in an envelope.

use prost::Message;

/// An event in JSON.
pub const CLOUD_EVENT: &str = "application/cloudevents+json";
/// Binary data.
pub const OCTET_STREAM: &str = "application/octet-stream";
/// JSON.
pub const JSON: &str = "application/json";
/// Default media type of a payload.
pub const TEXT: &str = "text/plain";

/// Whether the payload is already an event.
pub fn is_cloud_event(content_type: &str) -> bool {
    is(content_type, CLOUD_EVENT)
}

/// Whether the payload is JSON.
pub fn is_json(content_type: &str) -> bool {
    is(content_type, JSON)
}

/// Whether the payload is binary.
pub fn is_octets(content_type: &str) -> bool {
    is(content_type, OCTET_STREAM)
}

/// Whether the payload is text.
pub fn is_text(content_type: &str) -> bool {
    let of_text = content_type.as_bytes().get(..5);
    of_text.is_some_and(|start| start.eq_ignore_ascii_case(b"text/")) || is(content_type, "application/xml")
}

/// Whether the payload is an event in Protobuf. With the generic Protobuf type, it must decode as one.
pub(crate) fn is_protobuf_event(content_type: &str, data: &[u8]) -> bool {
    is(content_type, "application/cloudevents+protobuf")
        || (is(content_type, "application/x-protobuf") && ProtobufEvent::decode(data).is_ok())
}

/// Compares a media type without its parameters, ignoring case.
fn is(content_type: &str, expected: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default();
    kind.eq_ignore_ascii_case(expected)
}

/// The part of `io.cloudevents.v1.CloudEvent` that identifies an event.
#[derive(Clone, PartialEq, Message)]
struct ProtobufEvent {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    source: String,
    #[prost(string, tag = "3")]
    spec_version: String,
    #[prost(string, tag = "4")]
    kind: String,
    #[prost(bytes = "vec", repeated, tag = "5")]
    attributes: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "6")]
    binary_data: Vec<u8>,
    #[prost(string, tag = "7")]
    text_data: String,
    #[prost(bytes = "vec", tag = "8")]
    proto_data: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_parameters_and_case() {
        assert!(is_json("Application/JSON; charset=utf-8") && is_json("application/json"));
        assert!(!is_json("application/jsonx") && !is_json("") && !is_json("application/cloudevents+json"));
        assert!(is_cloud_event("application/cloudevents+json;charset=utf-8"));
        assert!(is_text("TEXT/html") && is_text("application/xml") && !is_text("tex") && !is_text(""));
        assert!(is_octets("application/octet-stream"));
    }

    #[test]
    fn inspects_generic_protobuf() {
        let event = ProtobufEvent {
            id: "1".to_owned(),
            ..ProtobufEvent::default()
        };
        assert!(is_protobuf_event(
            "application/x-protobuf",
            &event.encode_to_vec()
        ));
        assert!(!is_protobuf_event("application/x-protobuf", b"\xff\xff"));
        assert!(is_protobuf_event("application/cloudevents+protobuf", b"\xff\xff"));
    }
}
