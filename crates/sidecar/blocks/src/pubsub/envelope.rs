//! Wraps the payload that an app publishes in an envelope for the broker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{Timestamp, Zoned};
use outrigger_cloudevents::content_type::{TEXT, is_cloud_event, is_json};
use outrigger_cloudevents::{Envelope, Event, Malformed, SOURCE, SPEC_VERSION, TYPE, member};
use outrigger_component::Pairs;
use outrigger_component::pubsub::time_to_live;
use outrigger_go_json::whole;
use outrigger_telemetry::trace::Parent;
use uuid::Builder;

/// Prefix of request metadata that override envelope attributes.
const OVERRIDE: &str = "cloudevent.";

/// The data of an event, with its media type.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// The payload; an event if it is a CloudEvent already.
    pub data: Bytes,
    /// Its media type; empty means `text/plain`.
    pub content_type: String,
    /// Metadata of the request.
    pub metadata: Pairs,
}

/// The publisher attributes of envelopes.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) app_id: Arc<str>,
    pub(super) pubsub: Arc<str>,
    /// The name that apps use.
    pub(super) topic: Arc<str>,
    pub(super) trace: Parent,
    pub(super) baggage: Option<Arc<str>>,
    /// Whether the broker drops expired messages itself.
    pub(super) has_ttl: bool,
}

impl Sender {
    /// The event with the payload.
    pub(super) fn envelope(&self, payload: &Payload) -> Result<Bytes, Malformed> {
        let content_type = match payload.content_type.as_str() {
            "" => TEXT,
            given => given,
        };
        let expiration = self.expiration(&payload.metadata);
        if is_cloud_event(content_type) {
            return self.complete(&whole(&payload.data), expiration.as_deref());
        }
        let data = if is_json(content_type) {
            whole(&payload.data)
        } else {
            payload.data.clone()
        };
        let (parent, state) = self.trace_texts();
        let given = Overrides::read(&payload.metadata);
        let id = match given.id {
            Some(_) => String::new(),
            None => random_id(),
        };
        let parent = given.trace_parent.or(given.trace_id).unwrap_or(&parent);
        let event = Envelope {
            id: given.id.unwrap_or(&id),
            source: given.source.unwrap_or(&self.app_id),
            kind: given.kind.unwrap_or(TYPE),
            topic: &self.topic,
            pubsub: &self.pubsub,
            content_type,
            subject: given.subject,
            time: Some(&event_time()),
            trace_parent: Some(parent),
            trace_state: Some(given.trace_state.unwrap_or(&state)),
            baggage: self.baggage.as_deref(),
            expiration: expiration.as_deref(),
        };
        Ok(event.wrap(&data).into())
    }

    /// Completes a payload that is an event already: sets its destination and adds missing attributes.
    fn complete(&self, data: &[u8], expiration: Option<&str>) -> Result<Bytes, Malformed> {
        let (parent, state) = self.trace_texts();
        let mut event = Event::parse(data)?;
        event.set(member::PUBSUB, &self.pubsub);
        event.set(member::TOPIC, &self.topic);
        event.set_default(member::SOURCE, SOURCE);
        event.set_default(member::TYPE, TYPE);
        event.set_default(member::SPEC_VERSION, SPEC_VERSION);
        event.set_default(member::TIME, &event_time());
        if event.get(member::TRACE_ID).is_none() {
            event.set(member::TRACE_ID, &parent);
            event.set(member::TRACE_PARENT, &parent);
        }
        event.set_default(member::TRACE_STATE, &state);
        if let Some(baggage) = &self.baggage {
            event.set_default(member::BAGGAGE, baggage);
        }
        if let Some(expiration) = expiration {
            event.set(member::EXPIRATION, expiration);
        }
        Ok(event.to_bytes().into())
    }

    /// Adds the trace to the metadata of a payload without an envelope. `even_none`: add empty values if
    /// there is no trace, as an envelope would.
    pub(super) fn raw(&self, metadata: &mut Pairs, even_none: bool) {
        let (parent, state) = self.trace_texts();
        for (name, value) in [(member::TRACE_ID, parent), (member::TRACE_STATE, state)] {
            if even_none || !value.is_empty() {
                metadata.insert(name.to_owned(), value);
            }
        }
    }

    /// Trace parent and trace state; empty without a trace.
    fn trace_texts(&self) -> (String, String) {
        let parent = self
            .trace
            .context
            .map(|context| context.traceparent().as_str().to_owned());
        let state = self.trace.state.as_ref().map(|state| state.as_str().to_owned());
        (parent.unwrap_or_default(), state.unwrap_or_default())
    }

    /// The expiration of an event if the broker has no TTL. As in Dapr, an invalid TTL is ignored.
    fn expiration(&self, metadata: &Pairs) -> Option<String> {
        if self.has_ttl || metadata.is_empty() {
            return None;
        }
        let ttl: Duration = time_to_live(metadata).ok()??;
        let moment = Timestamp::now().checked_add(ttl).ok()?;
        Some(moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

/// Moves metadata members of an event, such as `cloudevent.type`, to the attributes that they override.
pub(crate) fn apply_overrides(event: &mut Event<'_>) {
    let is_override = |name: &str| {
        let start = name.get(..OVERRIDE.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(OVERRIDE))
    };
    let given: Pairs = event
        .members()
        .filter(|(name, _)| is_override(name))
        .map(|(name, _)| {
            let value = event.text(name).unwrap_or_default();
            (name.to_owned(), value.into_owned())
        })
        .collect();
    for name in given.keys() {
        event.remove(name);
    }
    let given = Overrides::read(&given);
    let parent = given.trace_parent.or(given.trace_id);
    for (name, value) in [
        (member::ID, given.id),
        (member::SOURCE, given.source),
        (member::TYPE, given.kind),
        (member::SUBJECT, given.subject),
        (member::TRACE_PARENT, parent),
        (member::TRACE_ID, parent),
        (member::TRACE_STATE, given.trace_state),
    ] {
        if let Some(value) = value {
            event.set(name, value);
        }
    }
}

/// Attribute overrides from request metadata; names in any case.
#[derive(Default)]
struct Overrides<'a> {
    id: Option<&'a str>,
    source: Option<&'a str>,
    kind: Option<&'a str>,
    subject: Option<&'a str>,
    trace_parent: Option<&'a str>,
    trace_id: Option<&'a str>,
    trace_state: Option<&'a str>,
}

impl<'a> Overrides<'a> {
    fn read(metadata: &'a Pairs) -> Self {
        let mut given = Self::default();
        for (name, value) in metadata {
            let parts = name.split_at_checked(OVERRIDE.len());
            let Some((_, attribute)) = parts.filter(|(start, _)| start.eq_ignore_ascii_case(OVERRIDE)) else {
                continue;
            };
            let place = match attribute.to_ascii_lowercase().as_str() {
                member::ID => &mut given.id,
                member::SOURCE => &mut given.source,
                member::TYPE => &mut given.kind,
                member::SUBJECT => &mut given.subject,
                member::TRACE_PARENT => &mut given.trace_parent,
                member::TRACE_ID => &mut given.trace_id,
                member::TRACE_STATE => &mut given.trace_state,
                _ => continue,
            };
            *place = Some(value.as_str()).filter(|value| !value.is_empty());
        }
        given
    }
}

/// A random id. It need not be unpredictable, so it avoids the system call.
pub(super) fn random_id() -> String {
    Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

/// The current time in the format of envelopes.
pub fn event_time() -> String {
    time(&Zoned::now())
}

/// RFC 3339 as Go formats it: UTC is `Z`.
fn time(now: &Zoned) -> String {
    let format = if now.offset().is_zero() {
        "%Y-%m-%dT%H:%M:%SZ"
    } else {
        "%Y-%m-%dT%H:%M:%S%:z"
    };
    now.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn replaces_lone_surrogates() {
        let event = |content_type: &str, data: &'static str| {
            let payload = Payload {
                data: Bytes::from_static(data.as_bytes()),
                content_type: content_type.to_owned(),
                ..Payload::default()
            };
            sender().envelope(&payload).unwrap()
        };
        let given = r#"{"id":"a\ud800","data":{"k\udc00":"\ud83d\ude00"}}"#;
        // A strict parser accepts both.
        let own: Value = serde_json::from_slice(&event("application/cloudevents+json", given)).unwrap();
        assert_eq!(own["id"], "a\u{fffd}");
        assert_eq!(own["data"], json!({"k\u{fffd}": "😀"}));
        let wrapped: Value = serde_json::from_slice(&event("application/json", given)).unwrap();
        assert_eq!(wrapped["data"]["id"], "a\u{fffd}");
        let text: Value = serde_json::from_slice(&event("text/plain", given)).unwrap();
        assert_eq!(text["data"], given, "what is no JSON stays as it is");
    }

    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn sender() -> Sender {
        Sender {
            app_id: "app".into(),
            pubsub: "broker".into(),
            topic: "orders".into(),
            trace: Parent::from_text(TRACE, "a=b"),
            baggage: None,
            has_ttl: false,
        }
    }

    fn envelope(sender: &Sender, content_type: &str, data: &'static str, metadata: &[(&str, &str)]) -> Value {
        let owned = metadata.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        let payload = Payload {
            data: Bytes::from_static(data.as_bytes()),
            content_type: content_type.to_owned(),
            metadata: owned.collect(),
        };
        serde_json::from_slice(&sender.envelope(&payload).unwrap()).unwrap()
    }

    #[test]
    fn fills_envelope_attributes() {
        let event = envelope(&sender(), "", "x", &[("foo", "bar")]);
        let id: uuid::Uuid = event["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(id.get_version_num(), 4);
        let sent: Timestamp = event["time"].as_str().unwrap().parse().unwrap();
        assert!(Timestamp::now().duration_since(sent).as_secs().abs() < 60);
        for (name, value) in [
            ("data", "x"),
            ("datacontenttype", "text/plain"),
            ("source", "app"),
            ("type", "com.dapr.event.sent"),
            ("specversion", "1.0"),
            ("topic", "orders"),
            ("pubsubname", "broker"),
            ("traceid", TRACE),
            ("traceparent", TRACE),
            ("tracestate", "a=b"),
        ] {
            assert_eq!(event[name], value, "{name}");
        }
        assert_eq!(event.as_object().unwrap().len(), 12);
    }

    #[test]
    fn metadata_overrides_attributes() {
        let given = [
            ("cloudevent.id", "I"),
            ("CloudEvent.Source", "S"),
            ("cloudevent.TYPE", "T"),
            ("cloudevent.subject", "about"),
            ("cloudevent.traceid", "tid"),
            ("cloudevent.tracestate", "ts"),
            ("cloudevent.topic", "no"),
            ("cloudevent.é", "no"),
        ];
        let event = envelope(&sender(), "application/json", "{}", &given);
        for (name, value) in [
            ("id", "I"),
            ("source", "S"),
            ("type", "T"),
            ("subject", "about"),
            ("traceid", "tid"),
            ("traceparent", "tid"),
            ("tracestate", "ts"),
            ("topic", "orders"),
        ] {
            assert_eq!(event[name], value, "{name}");
        }
    }

    #[test]
    fn override_members_become_attributes() {
        let text =
            br#"{"id":"1","type":"t","CloudEvent.Type":"own","cloudevent.id":"2","cloudevent.traceid":"p",
            "cloudevent.subject":"","cloudevent.other":"x","cloud":1}"#;
        let mut event = Event::parse(text).unwrap();
        apply_overrides(&mut event);
        let event: Value = serde_json::from_slice(&event.to_bytes()).unwrap();
        let expected = json!({"id": "2", "type": "own", "traceid": "p", "traceparent": "p", "cloud": 1});
        assert_eq!(event, expected);
    }

    #[test]
    fn completes_event() {
        let data = r#"{"id":"1","topic":"no","data":{"z":1},"foo":[1],"traceid":"t"}"#;
        let kind = "application/cloudevents+json; charset=utf-8";
        let mut event = envelope(&sender(), kind, data, &[("cloudevent.id", "9")]);
        assert!(event.as_object_mut().unwrap().remove("time").is_some());
        assert_eq!(
            event,
            json!({
                "id": "1", "topic": "orders", "data": {"z": 1}, "foo": [1], "traceid": "t", "tracestate": "a=b",
                "pubsubname": "broker", "source": "Dapr", "specversion": "1.0", "type": "com.dapr.event.sent",
            })
        );
        let payload = Payload {
            data: Bytes::from_static(b"null"),
            content_type: kind.to_owned(),
            ..Payload::default()
        };
        assert!(sender().envelope(&payload).is_err());
    }

    #[test]
    fn ttl_sets_expiration_without_broker_ttl() {
        let metadata = [("ttlInSeconds", "60")];
        let event = envelope(&sender(), "", "x", &metadata);
        let moment: Timestamp = event["expiration"].as_str().unwrap().parse().unwrap();
        let left = moment.duration_since(Timestamp::now()).as_secs();
        assert!((1..=60).contains(&left), "{left}");
        let broker = Sender {
            has_ttl: true,
            ..sender()
        };
        assert!(envelope(&broker, "", "x", &metadata).get("expiration").is_none());
        assert!(
            envelope(&sender(), "", "x", &[("ttlInSeconds", "soon")])
                .get("expiration")
                .is_none()
        );
    }

    #[test]
    fn raw_payload_carries_trace() {
        let mut metadata = Pairs::new();
        sender().raw(&mut metadata, false);
        assert_eq!((&*metadata["traceid"], &*metadata["tracestate"]), (TRACE, "a=b"));
        let untraced = Sender {
            trace: Parent::default(),
            ..sender()
        };
        let mut none = Pairs::new();
        untraced.raw(&mut none, false);
        assert!(none.is_empty());
        untraced.raw(&mut none, true);
        assert_eq!((&*none["traceid"], &*none["tracestate"]), ("", ""));
    }

    #[test]
    fn event_carries_baggage() {
        let with = Sender {
            baggage: Some("k=v".into()),
            ..sender()
        };
        assert_eq!(envelope(&with, "", "x", &[])["baggage"], "k=v");
        let kind = "application/cloudevents+json";
        assert_eq!(envelope(&with, kind, "{}", &[])["baggage"], "k=v");
        assert_eq!(
            envelope(&with, kind, r#"{"baggage":"own"}"#, &[])["baggage"],
            "own"
        );
    }
}
