//! Converts a broker's message to the event for the app.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use outrigger_cloudevents::{Event, content_type, member};
use outrigger_component::Pairs;
use outrigger_component::pubsub::Message;
use outrigger_delivery::Verdict;
use outrigger_go_json::repaired;
use outrigger_offload::{INLINE, offload};
use outrigger_policy::routing::Routes;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::headers;
use serde_json::Value;

use super::{AppSubscription, LOG};

/// Metadata key of the component name.
pub(super) const PUBSUB_NAME: &str = "pubsubName";
/// Header with the component name.
const PUBSUB_HEADER: HeaderName = HeaderName::from_static("pubsubname");
/// Metadata key of the message's media type.
pub(super) const CONTENT_TYPE: &str = "content-type";
/// Prefix of event attributes in the metadata of a binary-mode message.
const ATTRIBUTE: &str = "ce_";

/// An event being delivered to the app.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Event id of the envelope; used in log lines and to match responses.
    pub(super) id: String,
    /// The name that apps use.
    pub(super) topic: Arc<str>,
    /// Path of the matching route.
    pub(super) path: String,
    /// The envelope; in binary mode the payload.
    pub(super) data: Bytes,
    /// The message as received from the broker.
    pub(super) payload: Bytes,
    /// The metadata as received from the broker.
    pub(super) metadata: Pairs,
    /// Media type of the payload, if the broker provides it.
    pub(super) content_type: Option<String>,
    /// Trace of the publisher.
    pub(super) trace: Parent,
    /// Whether the event has trace attributes, even if empty.
    pub(super) names_trace: bool,
    /// Publish time in the envelope.
    pub(super) published: Option<Timestamp>,
    /// In binary mode: the attributes from the metadata, as JSON.
    pub(super) binary: Option<Vec<(String, String)>>,
}

impl Incoming {
    /// A minimal event for tests.
    #[cfg(test)]
    pub(super) fn of(data: Bytes) -> Self {
        Self {
            id: "7".to_owned(),
            topic: "t".into(),
            path: "/a".to_owned(),
            data,
            payload: Bytes::new(),
            metadata: Pairs::new(),
            content_type: None,
            trace: Parent::default(),
            names_trace: false,
            published: None,
            binary: None,
        }
    }

    /// The headers for the app: metadata, content type and component name.
    pub(super) fn headers(&self, pubsub: &str) -> HeaderMap {
        let mut headers = headers::from_pairs(&self.metadata);
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        };
        if let Some(content_type) = &self.content_type {
            set(http::header::CONTENT_TYPE, content_type);
        }
        set(PUBSUB_HEADER, pubsub);
        headers
    }

    /// The trace context sent to the app, derived from that of the delivery. As in Dapr, an untraced event
    /// has ids of zeros, but only if it has trace attributes.
    pub(super) fn app_trace(&self, delivery: Parent) -> Parent {
        if self.names_trace {
            delivery.of_event()
        } else {
            delivery.without_made_up()
        }
    }
}

const EXPIRED: Verdict = Verdict::Drop {
    why: "it has expired",
    by_app: false,
};
const NO_ROUTE: Verdict = Verdict::Drop {
    why: "no route matches it",
    by_app: true,
};

/// Like [`prepare`], off the serving thread if the message is large.
pub(super) async fn prepared(
    wanted: &Arc<AppSubscription>,
    pubsub: &str,
    topic: Arc<str>,
    message: &Message,
) -> Result<Box<Incoming>, Verdict> {
    let size = message.data.len();
    if size <= INLINE {
        return prepare(wanted, pubsub, topic, message);
    }
    let (wanted, pubsub, message) = (Arc::clone(wanted), pubsub.to_owned(), message.clone());
    offload(size, move || prepare(&wanted, &pubsub, topic, &message)).await
}

/// The event of `message` from the broker `pubsub`.
///
/// # Errors
/// The verdict, if the event is not to be delivered.
fn prepare(
    wanted: &AppSubscription,
    pubsub: &str,
    topic: Arc<str>,
    message: &Message,
) -> Result<Box<Incoming>, Verdict> {
    let said = message.content_type.as_ref();
    let said = said.or_else(|| message.metadata.get(CONTENT_TYPE));
    let mut incoming = Incoming {
        id: String::new(),
        path: String::new(),
        data: message.data.clone(),
        payload: message.data.clone(),
        content_type: message.content_type.clone(),
        trace: Parent::default(),
        names_trace: false,
        published: None,
        binary: None,
        topic,
        metadata: message.metadata.clone(),
    };
    if wanted.raw {
        incoming.data = synthetic(&incoming, pubsub).into();
    } else if let Some(octets) = said.filter(|said| content_type::is_octets(said)) {
        incoming.binary = Some(attributes(&incoming.metadata, octets));
    }
    examine(&wanted.routes, incoming)
}

/// Parses the event. JSON that Go accepts but our parser does not is repaired, also for the app.
fn examine(routes: &Routes, mut incoming: Incoming) -> Result<Box<Incoming>, Verdict> {
    let mut decided = decide(routes, &mut incoming);
    if decided.is_err()
        && incoming.binary.is_none()
        && let Some(repaired) = repaired(&incoming.data)
    {
        incoming.data = repaired.into();
        decided = decide(routes, &mut incoming);
    }
    match decided {
        Ok(None) => Ok(Box::new(incoming)),
        Ok(Some(verdict)) => Err(verdict),
        Err(error) => Err(Verdict::Reject(error)),
    }
}

/// Fills in event attributes, or returns why it is dropped.
fn decide(routes: &Routes, incoming: &mut Incoming) -> Result<Option<Verdict>, String> {
    let data = incoming.data.clone();
    let event = match &incoming.binary {
        Some(attributes) => binary_event(attributes),
        None => Event::parse(&data).map_err(|error| error.to_string())?,
    };
    incoming.id = text(&event, member::ID)?;
    incoming.trace = trace(&event, &incoming.metadata);
    incoming.names_trace = names_trace(&event, &incoming.metadata);
    incoming.published = event.text(member::TIME).and_then(|text| text.parse().ok());
    if event.is_expired(Timestamp::now()) {
        tracing::warn!(
            target: LOG,
            "dropping expired pub/sub event {} as of {}",
            incoming.id,
            event.text(member::EXPIRATION).unwrap_or_default()
        );
        return Ok(Some(EXPIRED));
    }
    let Some(path) = route(routes, &event, incoming)? else {
        tracing::debug!(
            target: LOG,
            "no matching route for event {} of topic {}; skipping",
            incoming.id,
            incoming.topic
        );
        return Ok(Some(NO_ROUTE));
    };
    incoming.path = path;
    Ok(None)
}

/// The string value of an attribute; empty if it is absent.
///
/// # Errors
/// If the value contains a lone surrogate.
pub(super) fn text(event: &Event<'_>, name: &str) -> Result<String, String> {
    match event.text(name) {
        Some(text) => Ok(text.into_owned()),
        None if event.is_broken(name) => Err(format!("its attribute {name} cannot be read")),
        None => Ok(String::new()),
    }
}

fn route(routes: &Routes, event: &Event<'_>, incoming: &Incoming) -> Result<Option<String>, String> {
    let shown = || -> Result<_, String> {
        let mut attributes = serde_json::Map::new();
        for (name, json) in event.members() {
            let value = serde_json::from_str(json).map_err(|error| format!("its member {name}: {error}"))?;
            attributes.insert(name.to_owned(), value);
        }
        if incoming.binary.is_some() {
            let text = String::from_utf8_lossy(&incoming.payload);
            attributes.insert(member::DATA.to_owned(), Value::String(text.into_owned()));
        }
        Ok(attributes)
    };
    if !routes.need_event() {
        let found = routes.find(&serde_json::Map::new());
        return found
            .map(|path| path.map(str::to_owned))
            .map_err(|error| error.to_string());
    }
    let found = routes.find(&shown()?);
    found
        .map(|path| path.map(str::to_owned))
        .map_err(|error| error.to_string())
}

/// The publisher's trace, from the envelope or else from the message metadata.
fn trace(event: &Event<'_>, metadata: &Pairs) -> Parent {
    let (parent, state) = event.trace();
    let value = |name| metadata.get(name).map_or("", String::as_str);
    let first = |options: [&str; 3]| {
        let filled = options.into_iter().find(|text| !text.is_empty());
        filled.unwrap_or_default().to_owned()
    };
    let parent = first([&parent, value(member::TRACE_PARENT), value(member::TRACE_ID)]);
    let state = first([&state, value(member::TRACE_STATE), ""]);
    Parent::from_text(&parent, &state)
}

fn names_trace(event: &Event<'_>, metadata: &Pairs) -> bool {
    [member::TRACE_PARENT, member::TRACE_ID].into_iter().any(|name| {
        let named = event.get(name).is_some_and(|json| json != "null");
        named || metadata.contains_key(name)
    })
}

/// An envelope for a message without one.
fn synthetic(incoming: &Incoming, pubsub: &str) -> Vec<u8> {
    let id = uuid::Uuid::new_v4().to_string();
    let data = STANDARD.encode(&incoming.payload);
    let mut event = Event::default();
    event.set(member::DATA_BASE64, &data);
    for (name, value) in [
        (member::DATA_CONTENT_TYPE, content_type::OCTET_STREAM),
        (member::ID, &id),
        (member::PUBSUB, pubsub),
        (member::SOURCE, outrigger_cloudevents::SOURCE),
        (member::SPEC_VERSION, outrigger_cloudevents::SPEC_VERSION),
        (member::TOPIC, &incoming.topic),
        (member::TYPE, outrigger_cloudevents::TYPE),
    ] {
        event.set(name, value);
    }
    for name in [member::TRACE_ID, member::TRACE_PARENT, member::TRACE_STATE] {
        if let Some(value) = incoming.metadata.get(name) {
            event.set(name, value);
        }
    }
    if let Some(parent) = incoming.metadata.get(member::TRACE_PARENT) {
        event.set(member::TRACE_ID, parent);
    }
    event.to_bytes()
}

/// The event attributes in the metadata of a binary-mode message, sorted by name; values are JSON.
fn attributes(metadata: &Pairs, content_type: &str) -> Vec<(String, String)> {
    let json = |value: &str| Value::from(value).to_string();
    let named = metadata.iter().filter_map(|(name, value)| {
        let name = name.to_lowercase();
        Some((name.strip_prefix(ATTRIBUTE)?.to_owned(), json(value)))
    });
    let mut all: Vec<_> = named
        .filter(|(name, _)| name != member::DATA_CONTENT_TYPE && name != member::DATA)
        .collect();
    all.push((member::DATA_CONTENT_TYPE.to_owned(), json(content_type)));
    all.sort_unstable();
    all
}

/// A binary-mode event without its payload.
pub(super) fn binary_event(attributes: &[(String, String)]) -> Event<'_> {
    let mut event = Event::default();
    for (name, json) in attributes {
        event.set_json(name, json.into());
    }
    event
}

#[cfg(test)]
mod tests {
    use outrigger_offload::done_at_once;
    use outrigger_resources::subscription;
    use serde_json::json;

    use super::*;

    fn message(data: &str, metadata: &[(&str, &str)]) -> Message {
        let pairs = metadata.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Message {
            topic: "t".into(),
            data: data.to_owned().into(),
            content_type: None,
            metadata: pairs.collect(),
            ordering_key: None,
            redelivered: None,
        }
    }

    fn ready(wanted: &AppSubscription, message: &Message) -> Incoming {
        *prepare(wanted, "broker", "t".into(), message).unwrap()
    }

    #[test]
    fn keeps_envelope_unchanged() {
        let wanted = AppSubscription::to_path("broker", "t", "/a");
        let text =
            r#"{"id":"7", "data":1e400,"traceid":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#;
        let incoming = ready(&wanted, &message(text, &[]));
        assert_eq!(
            (incoming.data.as_ref(), incoming.id.as_str()),
            (text.as_bytes(), "7")
        );
        assert_eq!(incoming.headers("broker")["pubsubname"], "broker");
        assert!(incoming.metadata.is_empty());
        assert!(incoming.trace.context.is_some());
    }

    #[tokio::test]
    async fn converts_large_events_off_thread() {
        let wanted = Arc::new(AppSubscription::to_path("broker", "t", "/a"));
        let frame = r#"{"id":"7","data":""}"#.len();
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let text = format!(r#"{{"id":"7","data":"{}"}}"#, "x".repeat(size - frame));
            let message = message(&text, &[]);
            let reading = prepared(&wanted, "broker", "t".into(), &message);
            let (was_at_once, read) = done_at_once(reading).await;
            assert_eq!(was_at_once, at_once, "{size}");
            let incoming = read.unwrap();
            assert_eq!(incoming.data, text);
            let incoming = Arc::from(incoming);
            let writing = crate::subscriptions::message::written(&incoming, "broker");
            let (was_at_once, written) = done_at_once(writing).await;
            assert_eq!(was_at_once, at_once, "{size}");
            assert_eq!(written.unwrap().id, "7");
        }
    }

    #[test]
    fn reports_invalid_events() {
        let wanted = AppSubscription::to_path("broker", "t", "/a");
        for text in ["", "[]", "{", "text"] {
            let prepared = prepare(&wanted, "broker", "t".into(), &message(text, &[]));
            assert!(
                matches!(prepared, Err(Verdict::Reject(_))),
                "{text}: {prepared:?}"
            );
        }
    }

    #[test]
    fn wraps_raw_messages() {
        let wanted = AppSubscription {
            raw: true,
            ..AppSubscription::to_path("broker", "t", "/a")
        };
        let incoming = ready(&wanted, &message("\u{1}no json", &[("traceparent", "00-a")]));
        let event: Value = serde_json::from_slice(&incoming.data).unwrap();
        assert_eq!(event["data_base64"], json!("AW5vIGpzb24="));
        assert_eq!(
            (&event["traceid"], &event["topic"]),
            (&json!("00-a"), &json!("t"))
        );
        assert_eq!(event["datacontenttype"], json!("application/octet-stream"));
        assert_eq!(incoming.payload.as_ref(), b"\x01no json");
    }

    #[test]
    fn binary_mode_reads_attributes_from_metadata() {
        let routes = subscription::Routes {
            rules: vec![subscription::Rule {
                r#match: "event.type == 'order' && event.data == 'bytes'".to_owned(),
                path: "/orders".to_owned(),
            }],
            default: "/other".to_owned(),
        };
        let wanted = AppSubscription {
            routes: Routes::compile(&routes).unwrap(),
            ..AppSubscription::to_path("broker", "t", "")
        };
        let metadata = [
            ("CE_Type", "order"),
            ("ce_id", "9"),
            ("content-type", "application/octet-stream"),
        ];
        let incoming = ready(&wanted, &message("bytes", &metadata));
        assert_eq!((incoming.path.as_str(), incoming.id.as_str()), ("/orders", "9"));
        assert_eq!(incoming.data.as_ref(), b"bytes");
    }

    #[test]
    fn repairs_invalid_characters_as_go_does() {
        let rule = subscription::Rule {
            r#match: "event.type == 'a\u{fffd}'".to_owned(),
            path: "/a".to_owned(),
        };
        let routes = subscription::Routes {
            rules: vec![rule],
            default: String::new(),
        };
        let wanted = AppSubscription {
            routes: Routes::compile(&routes).unwrap(),
            ..AppSubscription::to_path("broker", "t", "")
        };
        let of_bytes = |data: &'static [u8]| Message {
            data: Bytes::from_static(data),
            ..message("", &[])
        };
        for data in [
            &br#"{"id":"7","type":"a\ud800","data":"\udc00"}"#[..],
            b"{\"id\":\"7\",\"type\":\"a\xff\"}",
        ] {
            let incoming = ready(&wanted, &of_bytes(data));
            assert_eq!((incoming.path.as_str(), incoming.id.as_str()), ("/a", "7"));
            assert!(serde_json::from_slice::<Value>(&incoming.data).is_ok());
            assert_eq!(incoming.payload, data);
        }
        let all = AppSubscription::to_path("broker", "t", "/a");
        let named = ready(&all, &of_bytes(br#"{"id":"\ud800"}"#));
        assert_eq!(named.id, "\u{fffd}");
        // Attributes that are not read are not repaired.
        let data = r#"{"id":"7","data":"\ud800"}"#;
        assert_eq!(ready(&all, &message(data, &[])).data, data);
    }

    #[test]
    fn drops_expired_and_unroutable_events() {
        let wanted = AppSubscription::to_path("broker", "t", "/a");
        let old = message(r#"{"id":"1","expiration":"2001-01-01T00:00:00Z"}"#, &[]);
        let prepared = prepare(&wanted, "broker", "t".into(), &old);
        assert_eq!(prepared.unwrap_err(), EXPIRED);
        let rule = subscription::Rule {
            r#match: "event.type == 'x'".to_owned(),
            path: "/x".to_owned(),
        };
        let routes = subscription::Routes {
            rules: vec![rule],
            default: String::new(),
        };
        let routed = AppSubscription {
            routes: Routes::compile(&routes).unwrap(),
            ..wanted
        };
        let other = message(r#"{"id":"1","type":"y"}"#, &[]);
        let prepared = prepare(&routed, "broker", "t".into(), &other);
        assert_eq!(prepared.unwrap_err(), NO_ROUTE);
        let untyped = message(r#"{"id":"1"}"#, &[]);
        let prepared = prepare(&routed, "broker", "t".into(), &untyped);
        assert!(
            matches!(prepared, Err(Verdict::Reject(_))),
            "the rule cannot be evaluated"
        );
    }
}
