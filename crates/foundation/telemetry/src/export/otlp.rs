//! OTLP: the OpenTelemetry protocol.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource as OtlpResource;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status as OtlpStatus};
use rustls::RootCertStore;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

use crate::trace::{SpanData, SpanEvent, Status};

use super::resource::Resource;
use super::{CONNECT_LIMIT, ExportError};

/// OTLP over gRPC.
#[derive(Debug)]
pub(super) struct OtlpGrpc {
    /// An invalid endpoint fails each export, not the start.
    endpoint: Result<Endpoint, String>,
    headers: HeaderMap,
    resource: Arc<Resource>,
    /// Created at the first export, because it needs the exporter's runtime.
    client: Option<TraceServiceClient<Channel>>,
}

impl OtlpGrpc {
    /// `roots` are the trusted root certificates if the URI uses TLS.
    pub(super) fn new(uri: Uri, roots: RootCertStore, headers: HeaderMap, resource: Arc<Resource>) -> Self {
        let secure = uri.scheme_str() == Some("https");
        let mut endpoint = Ok(Endpoint::from(uri).connect_timeout(CONNECT_LIMIT));
        if secure {
            // Some TLS terminators do not support ALPN.
            let tls = ClientTlsConfig::new()
                .assume_http2(true)
                .trust_anchors(roots.roots)
                .timeout(CONNECT_LIMIT);
            endpoint = endpoint.and_then(|endpoint| endpoint.tls_config(tls));
        }
        Self {
            endpoint: endpoint.map_err(|error| error.to_string()),
            headers,
            resource,
            client: None,
        }
    }

    pub(super) async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        let endpoint = self.endpoint.as_ref();
        let endpoint = endpoint.map_err(|error| ExportError::Refused(error.clone()))?;
        let connect = || TraceServiceClient::new(endpoint.connect_lazy());
        let client = self.client.get_or_insert_with(connect);
        let mut request = Request::new(request(&self.resource, spans));
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        let Err(status) = client.export(request).await else {
            return Ok(());
        };
        let text = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            // tonic reports transport failures as `Unknown`.
            Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss => Err(ExportError::Unavailable(text)),
            _ => Err(ExportError::Refused(text)),
        }
    }
}

/// The export request for these spans.
pub(super) fn request(resource: &Resource, spans: &[Arc<SpanData>]) -> ExportTraceServiceRequest {
    let attributes = resource.attributes.iter().map(|(k, v)| key_value(k, v)).collect();
    let mut scopes: Vec<ScopeSpans> = Vec::new();
    for span in spans {
        let same = |s: &&mut ScopeSpans| s.scope.as_ref().is_some_and(|scope| scope.name == span.scope);
        match scopes.iter_mut().find(same) {
            Some(scope) => scope.spans.push(otlp_span(span)),
            None => scopes.push(ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: span.scope.to_owned(),
                    ..Default::default()
                }),
                spans: vec![otlp_span(span)],
                ..Default::default()
            }),
        }
    }
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(OtlpResource {
                attributes,
                ..Default::default()
            }),
            scope_spans: scopes,
            ..Default::default()
        }],
    }
}

fn otlp_span(span: &SpanData) -> Span {
    let (code, message) = match &span.status {
        Status::Unset => (StatusCode::Unset, ""),
        Status::Ok => (StatusCode::Ok, ""),
        Status::Error(message) => (StatusCode::Error, message.as_str()),
    };
    Span {
        trace_id: span.context.trace_id.to_vec(),
        span_id: span.context.span_id.to_vec(),
        trace_state: span
            .state
            .as_ref()
            .map(|s| s.as_str().to_owned())
            .unwrap_or_default(),
        parent_span_id: span.parent.map(|id| id.to_vec()).unwrap_or_default(),
        flags: u32::from(span.context.flags),
        name: span.name.clone().into_owned(),
        kind: span.kind as i32,
        start_time_unix_nano: unix_nanos(span.start),
        end_time_unix_nano: unix_nanos(span.end),
        attributes: span
            .attributes
            .iter()
            .map(|(k, v)| key_value(k, v))
            .chain(span.lists.iter().map(|(k, v)| key_list(k, v)))
            .collect(),
        events: span.events.iter().map(otlp_event).collect(),
        status: Some(OtlpStatus {
            code: code as i32,
            message: message.to_owned(),
        }),
        ..Default::default()
    }
}

fn otlp_event(event: &SpanEvent) -> Event {
    Event {
        time_unix_nano: unix_nanos(event.time),
        name: event.name.clone().into_owned(),
        attributes: event.attributes.iter().map(|(k, v)| key_value(k, v)).collect(),
        ..Default::default()
    }
}

fn key_value(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn key_list(key: &str, values: &[String]) -> KeyValue {
    let text = |value: &String| AnyValue {
        value: Some(Value::StringValue(value.clone())),
    };
    let values = values.iter().map(text).collect();
    attribute(key, Value::ArrayValue(ArrayValue { values }))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..Default::default()
    }
}

fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
