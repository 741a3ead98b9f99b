//! Outbox events and marker names.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use outrigger_cloudevents::content_type::{TEXT, is_json};
use outrigger_cloudevents::{Envelope, Event, TYPE, member};
use outrigger_component::state::{Set, Value};
use outrigger_go_json::{from_slice, whole};
use outrigger_telemetry::trace::Parent;
use uuid::{Builder, Uuid};

use crate::pubsub::event_time;

/// Prefix of marker names.
const PREFIX: &str = "outbox-";
/// Metadata key of a value's media type.
const CONTENT_TYPE: &str = "contentType";

/// A new marker name. Unlike Dapr's, it contains the time: see [`age`].
pub(super) fn marker() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let millis = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    let id = Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid();
    format!("{PREFIX}{id}")
}

/// Whether a text is a marker name. Only such keys are looked up or deleted.
pub(super) fn is_marker(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|id| Uuid::try_parse(id).is_ok())
}

/// The age of a marker; `None` if its name has no time, as with Dapr's.
pub(super) fn age(marker: &str, now: SystemTime) -> Option<Duration> {
    let id = Uuid::try_parse(marker.strip_prefix(PREFIX)?).ok()?;
    if id.get_version_num() != 7 {
        return None;
    }
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    let named = SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))?;
    Some(now.duration_since(named).unwrap_or_default())
}

/// The publisher attributes of outbox events.
pub(super) struct RequestContext<'a> {
    pub(super) app_id: &'a str,
    /// The broker of the internal topic.
    pub(super) pubsub: &'a str,
    /// The span of the request.
    pub(super) trace: &'a Parent,
}

impl RequestContext<'_> {
    /// The event of a value: `payload` is `set` or its projection. Metadata of `set` override envelope
    /// attributes.
    pub(super) fn event(&self, marker: &str, set: &Set, payload: &Set) -> Bytes {
        let content_type = content_type(set, payload);
        let parent = self.trace.context.map(|context| context.traceparent());
        let parent = parent.as_ref().map_or("", |parent| parent.as_str());
        let envelope = Envelope {
            id: marker,
            source: self.app_id,
            kind: TYPE,
            pubsub: self.pubsub,
            content_type,
            time: Some(&event_time()),
            trace_parent: Some(parent),
            trace_state: Some(self.trace.state.as_ref().map_or("", |state| state.as_str())),
            ..Envelope::default()
        };
        let wrapped = envelope.wrap(&data(&payload.value, content_type));
        if set.metadata.is_empty() {
            return wrapped.into();
        }
        let overlaid = Event::parse(&wrapped).map(|mut event| {
            let own = [member::DATA, member::ID];
            for (name, value) in &set.metadata {
                if !own.contains(&name.as_str()) {
                    event.set(name, value);
                }
            }
            event.to_bytes()
        });
        // An envelope that was built here parses.
        overlaid.map(Bytes::from).unwrap_or_else(|_| wrapped.into())
    }
}

/// The media type of the payload, or the one in the overriding metadata.
fn content_type<'a>(set: &'a Set, payload: &'a Set) -> &'a str {
    let of = |set: &'a Set, name: &str| set.metadata.get(name).map(String::as_str);
    let said = [
        payload
            .content_type
            .as_deref()
            .or_else(|| of(payload, CONTENT_TYPE)),
        of(set, member::DATA_CONTENT_TYPE),
        of(payload, member::DATA_CONTENT_TYPE),
    ];
    let mut said = said.into_iter().flatten();
    said.find(|kind| !kind.is_empty()).unwrap_or(TEXT)
}

/// The payload: the content of a JSON string unless the media type is JSON.
fn data(value: &Value, content_type: &str) -> Bytes {
    match value {
        Value::Bytes(bytes) => bytes.clone(),
        Value::Json(json) | Value::Canonical(json) if is_json(content_type) => whole(json),
        // Only JSON that may be a string is parsed and repaired.
        Value::Json(json) | Value::Canonical(json) if json.trim_ascii_start().starts_with(b"\"") => {
            from_slice::<String>(json).map_or_else(|_| json.clone(), Bytes::from)
        }
        Value::Json(json) | Value::Canonical(json) => json.clone(),
    }
}
