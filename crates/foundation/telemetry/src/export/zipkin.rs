//! Zipkin v2 JSON.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use http::{HeaderMap, Uri};
use serde_json::{Map, Value, json};

use crate::trace::{SpanData, SpanKind, Status};

use super::dial::Dialer;
use super::post::Poster;
use super::resource::Resource;
use super::{ExportError, TracingError};

#[derive(Debug)]
pub(super) struct Zipkin {
    poster: Poster,
    service: String,
}

impl Zipkin {
    pub(super) fn new(url: &str, resource: &Resource) -> Result<Self, TracingError> {
        let (uri, secure) = parse(url).map_err(|reason| TracingError::ZipkinUrl {
            url: url.to_owned(),
            reason,
        })?;
        let dialer = Dialer::new(secure, b"http/1.1")?;
        let poster = Poster::new(uri, dialer, "application/json", HeaderMap::new());
        Ok(Self {
            poster,
            service: resource.service_name().to_owned(),
        })
    }

    pub(super) async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        let spans: Vec<Value> = spans
            .iter()
            .map(|span| zipkin_span(span, &self.service))
            .collect();
        self.poster.post(Value::from(spans).to_string().into()).await
    }
}

/// A URL and whether it asks for TLS, or what is wrong with it.
pub(super) fn parse(url: &str) -> Result<(Uri, bool), String> {
    let uri: Uri = url
        .parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok((uri, false)),
        (Some("https"), Some(_)) => Ok((uri, true)),
        _ => Err("no scheme or host".into()),
    }
}

fn zipkin_span(span: &SpanData, service: &str) -> Value {
    let start = span.start.duration_since(UNIX_EPOCH).unwrap_or_default();
    let elapsed = span.end.duration_since(span.start).unwrap_or_default();
    let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    let mut tags: Map<String, Value> = Map::new();
    for (key, value) in &span.attributes {
        tags.insert(key.to_string(), value.as_ref().into());
    }
    for (key, values) in &span.lists {
        // As OpenTelemetry has it for systems without lists: JSON in a text.
        tags.insert(key.to_string(), json!(values).to_string().into());
    }
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
        // Zipkin takes a duration of 0 for an unknown one.
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
