//! Zipkin v2 JSON.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use http::Uri;
use serde_json::{Map, Value, json};

use crate::trace::{SpanData, SpanKind, Status};

/// The export request for the spans of a service.
pub(super) fn request(service: &str, spans: &[Arc<SpanData>]) -> String {
    let spans = spans.iter().map(|span| zipkin_span(span, service));
    Value::from_iter(spans).to_string()
}

/// Parses the address of a collector, or returns why it is invalid.
pub(super) fn parse(url: &str) -> Result<Uri, String> {
    let uri: Uri = url
        .parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err("no scheme or host".into()),
    }
}

fn zipkin_span(span: &SpanData, service: &str) -> Value {
    let start = span.start.duration_since(UNIX_EPOCH).unwrap_or_default();
    let elapsed = span.end.duration_since(span.start).unwrap_or_default();
    let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let texts = span.attributes.iter();
    let texts = texts.map(|(key, value)| (key.to_string(), value.as_ref().into()));
    // Lists become JSON text, as OpenTelemetry specifies for systems without lists.
    let lists = span.lists.iter();
    let lists = lists.map(|(key, values)| (key.to_string(), json!(values).to_string().into()));
    let mut tags: Map<String, Value> = texts.chain(lists).collect();
    tags.insert("otel.scope.name".into(), span.scope.into());
    match &span.status {
        Status::Unset => {}
        Status::Ok => drop(tags.insert("otel.status_code".into(), "OK".into())),
        Status::Error(message) => {
            tags.insert("otel.status_code".into(), "ERROR".into());
            tags.insert("error".into(), message.as_str().into());
        }
    }
    let mut out = json!({
        "traceId": span.context.trace_id_hex(),
        "id": span.context.span_id_hex(),
        "name": span.name,
        "timestamp": micros(start),
        // Zipkin treats a duration of 0 as unknown.
        "duration": micros(elapsed).max(1),
        "localEndpoint": { "serviceName": service },
        "tags": tags,
    });
    if !span.events.is_empty() {
        let annotations = span.events.iter().map(|event| {
            let time = event.time.duration_since(UNIX_EPOCH).unwrap_or_default();
            json!({ "timestamp": micros(time), "value": event.name })
        });
        out["annotations"] = annotations.collect();
    }
    if let Some(parent) = span.parent {
        out["parentId"] = format!("{:016x}", u64::from_be_bytes(parent)).into();
    }
    let kind = match span.kind {
        SpanKind::Internal => None,
        SpanKind::Server => Some("SERVER"),
        SpanKind::Client => Some("CLIENT"),
        SpanKind::Producer => Some("PRODUCER"),
        SpanKind::Consumer => Some("CONSUMER"),
    };
    if let Some(kind) = kind {
        out["kind"] = kind.into();
    }
    out
}
