//! Wrapping a payload in an envelope.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

use crate::{SPEC_VERSION, content_type, member};

/// Approximate bytes of the attributes of an envelope.
const ATTRIBUTES: usize = 512;

/// The attributes of a new event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Envelope<'a> {
    /// Unique per source.
    pub id: &'a str,
    /// The attribute `source`: app ID of the publisher.
    pub source: &'a str,
    /// The attribute `type`.
    pub kind: &'a str,
    /// The attribute `topic`, as named by apps.
    pub topic: &'a str,
    /// The attribute `pubsubname`: name of the pub/sub component.
    pub pubsub: &'a str,
    /// The media type of the payload, which decides its form.
    pub content_type: &'a str,
    /// The attribute `subject`.
    pub subject: Option<&'a str>,
    /// The attribute `time`, in RFC 3339.
    pub time: Option<&'a str>,
    /// The publisher's trace context; may be empty.
    pub trace_parent: Option<&'a str>,
    /// The publisher's trace state; may be empty.
    pub trace_state: Option<&'a str>,
    /// The publisher's baggage.
    pub baggage: Option<&'a str>,
    /// Expiration time, RFC 3339.
    pub expiration: Option<&'a str>,
}

impl Envelope<'_> {
    /// The event with payload `data`, as JSON with sorted members. A JSON payload is embedded verbatim, or
    /// as a string if it is invalid; text as a string; other data in base64.
    pub fn wrap(&self, data: &[u8]) -> Vec<u8> {
        let mut object = Object::new(ATTRIBUTES + data.len() + data.len() / 3);
        object.optional(member::BAGGAGE, self.baggage);
        match self.form(data) {
            Form::Json(text) => object.raw(member::DATA, text),
            Form::Text(text) => object.text(member::DATA, text),
            Form::Octets => object.text(member::DATA_BASE64, &STANDARD.encode(data)),
        }
        object.text(member::DATA_CONTENT_TYPE, self.content_type);
        object.optional(member::EXPIRATION, self.expiration);
        object.text(member::ID, self.id);
        object.text(member::PUBSUB, self.pubsub);
        object.text(member::SOURCE, self.source);
        object.text(member::SPEC_VERSION, SPEC_VERSION);
        object.optional(member::SUBJECT, self.subject);
        object.optional(member::TIME, self.time);
        object.text(member::TOPIC, self.topic);
        object.optional(member::TRACE_ID, self.trace_parent);
        object.optional(member::TRACE_PARENT, self.trace_parent);
        object.optional(member::TRACE_STATE, self.trace_state);
        object.text(member::TYPE, self.kind);
        object.end()
    }

    fn form<'d>(&self, data: &'d [u8]) -> Form<'d> {
        if content_type::is_octets(self.content_type)
            || content_type::is_protobuf_event(self.content_type, data)
        {
            return Form::Octets;
        }
        match str::from_utf8(data) {
            Ok(text) if content_type::is_json(self.content_type) && is_json(text) => {
                Form::Json(text.trim_ascii())
            }
            Ok(text) => Form::Text(text),
            // As a string it would not survive a round trip.
            Err(_) => Form::Octets,
        }
    }
}

/// The form of a payload in its envelope.
enum Form<'d> {
    Json(&'d str),
    Text(&'d str),
    Octets,
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A JSON object under construction.
pub(crate) struct Object(Vec<u8>);

impl Object {
    pub(crate) fn new(capacity: usize) -> Self {
        let mut text = Vec::with_capacity(capacity);
        text.push(b'{');
        Self(text)
    }

    /// Adds a text member.
    pub(crate) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        write_text(&mut self.0, value);
    }

    fn optional(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    /// Adds a member with a JSON value.
    pub(crate) fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.0.extend_from_slice(json.as_bytes());
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(b',');
        }
        write_text(&mut self.0, name);
        self.0.push(b':');
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // Infallible: writing to memory does not fail, and a text always serializes.
    let _infallible = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn wrap(content_type: &str, data: &[u8]) -> Value {
        let envelope = Envelope {
            id: "1",
            source: "app",
            kind: "t",
            topic: "a/b",
            pubsub: "broker",
            content_type,
            ..Envelope::default()
        };
        serde_json::from_slice(&envelope.wrap(data)).unwrap()
    }

    #[test]
    fn sorts_members_and_omits_absent() {
        let envelope = Envelope {
            id: "1",
            source: "app",
            kind: "t",
            topic: "orders",
            pubsub: "broker",
            content_type: "application/json",
            subject: Some("s"),
            time: Some("2026-01-02T03:04:05Z"),
            trace_parent: Some(""),
            trace_state: Some("a=\"b\""),
            baggage: Some("k=v"),
            expiration: Some("2026-01-02T03:04:06Z"),
        };
        let text = String::from_utf8(envelope.wrap(b" {\"b\":1, \"a\":1e400}\n")).unwrap();
        assert_eq!(
            text,
            r#"{"baggage":"k=v","data":{"b":1, "a":1e400},"datacontenttype":"application/json","expiration":"2026-01-02T03:04:06Z","id":"1","pubsubname":"broker","source":"app","specversion":"1.0","subject":"s","time":"2026-01-02T03:04:05Z","topic":"orders","traceid":"","traceparent":"","tracestate":"a=\"b\"","type":"t"}"#
        );
        let plain = wrap("text/plain", b"x");
        assert_eq!(
            plain,
            json!({
                "data": "x", "datacontenttype": "text/plain", "id": "1", "pubsubname": "broker", "source": "app",
                "specversion": "1.0", "topic": "a/b", "type": "t",
            })
        );
    }

    #[test]
    fn content_type_decides_form() {
        let data = |content_type: &str, data: &[u8]| {
            let event = wrap(content_type, data);
            (event.get("data").cloned(), event.get("data_base64").cloned())
        };
        let json = "application/json; charset=utf-8";
        assert_eq!(data(json, b"[1]"), (Some(json!([1])), None));
        for text in ["{", "", "{} x", "nul"] {
            assert_eq!(data(json, text.as_bytes()), (Some(json!(text)), None));
        }
        assert_eq!(data("text/plain", b"[1]"), (Some(json!("[1]")), None));
        assert_eq!(
            data("application/octet-stream", b"[1]"),
            (None, Some(json!("WzFd")))
        );
        assert_eq!(data("image/png", b"\x89PNG"), (None, Some(json!("iVBORw=="))));
        assert_eq!(data(json, b"\"\xff\""), (None, Some(json!("Iv8i"))));
    }

    #[test]
    fn accepts_deep_nesting() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let envelope = Envelope {
            content_type: "application/json",
            ..Envelope::default()
        };
        let text = String::from_utf8(envelope.wrap(deep.as_bytes())).unwrap();
        assert!(text.contains(&format!("\"data\":{deep},")));
    }

    proptest! {
        #[test]
        fn wrapped_data_round_trips(data in proptest::collection::vec(any::<u8>(), 0..64), text in "\\PC*", json in any::<bool>()) {
            let content_type = if json { "application/json" } else { "x" };
            for payload in [&data[..], text.as_bytes()] {
                let bytes = Envelope { id: &text, content_type, ..Envelope::default() }.wrap(payload);
                let event = crate::Event::parse(&bytes).unwrap();
                let id = event.text("id");
                prop_assert_eq!(id.as_deref(), Some(&text[..]));
                let out = match event.data() {
                    crate::Data::Base64(text) => STANDARD.decode(text.as_bytes()).unwrap(),
                    crate::Data::Json(value) if value.starts_with('"') => {
                        let inner = serde_json::from_str::<String>(value).unwrap();
                        if inner.as_bytes() == payload { payload.to_vec() } else { value.as_bytes().to_vec() }
                    }
                    crate::Data::Json(value) => value.as_bytes().to_vec(),
                    crate::Data::None => unreachable!("an envelope has its payload"),
                };
                prop_assert_eq!(out.trim_ascii(), payload.trim_ascii());
            }
        }
    }
}
