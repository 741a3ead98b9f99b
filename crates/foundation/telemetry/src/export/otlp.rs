//! OTLP: the OpenTelemetry protocol, over gRPC or HTTP.

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
use prost::Message as _;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tower::service_fn;

use crate::trace::{SpanData, SpanEvent, Status};

use super::ExportError;
use super::dial::Dialer;
use super::post::Poster;
use super::resource::Resource;

/// OTLP over gRPC.
#[derive(Debug)]
pub(super) struct OtlpGrpc {
    uri: Uri,
    dialer: Dialer,
    headers: HeaderMap,
    resource: Arc<Resource>,
    /// Made at the first export: it needs the runtime the exporter runs on.
    client: Option<TraceServiceClient<Channel>>,
}

impl OtlpGrpc {
    pub(super) fn new(uri: Uri, dialer: Dialer, headers: HeaderMap, resource: Arc<Resource>) -> Self {
        Self {
            uri,
            dialer,
            headers,
            resource,
            client: None,
        }
    }

    pub(super) async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        let client = match &mut self.client {
            Some(client) => client,
            empty => empty.insert(connect(&self.uri, &self.dialer)?),
        };
        let mut request = Request::new(request(&self.resource, spans));
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        match client.export(request).await {
            Ok(_) => Ok(()),
            Err(status) => {
                let text = format!("{:?}: {}", status.code(), status.message());
                match status.code() {
                    Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
                    | Code::Aborted
                    | Code::OutOfRange
                    | Code::Unavailable
                    | Code::DataLoss => Err(ExportError::Unavailable(text)),
                    // A transport failure has this code.
                    Code::Unknown => Err(ExportError::Unavailable(text)),
                    _ => Err(ExportError::Refused(text)),
                }
            }
        }
    }
}

/// The channel dials by itself. TLS is the dialer's: the channel sees plain HTTP/2, its origin names the real scheme.
fn connect(uri: &Uri, dialer: &Dialer) -> Result<TraceServiceClient<Channel>, ExportError> {
    let authority = uri.authority().map_or("", |a| a.as_str());
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|e| ExportError::Refused(e.to_string()))?
        .origin(uri.clone());
    let (uri, dialer) = (uri.clone(), dialer.clone());
    let channel = endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let (uri, dialer) = (uri.clone(), dialer.clone());
        async move { dialer.connect(&uri).await }
    }));
    Ok(TraceServiceClient::new(channel))
}

/// OTLP over HTTP with protobuf bodies.
#[derive(Debug)]
pub(super) struct OtlpHttp {
    poster: Poster,
    resource: Arc<Resource>,
}

impl OtlpHttp {
    pub(super) fn new(uri: Uri, dialer: Dialer, headers: HeaderMap, resource: Arc<Resource>) -> Self {
        Self {
            poster: Poster::new(uri, dialer, "application/x-protobuf", headers),
            resource,
        }
    }

    pub(super) async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        self.poster
            .post(request(&self.resource, spans).encode_to_vec().into())
            .await
    }
}

fn request(resource: &Resource, spans: &[Arc<SpanData>]) -> ExportTraceServiceRequest {
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
    let status = match &span.status {
        Status::Unset => OtlpStatus::default(),
        Status::Ok => OtlpStatus {
            code: StatusCode::Ok as i32,
            ..Default::default()
        },
        Status::Error(message) => OtlpStatus {
            code: StatusCode::Error as i32,
            message: message.clone(),
        },
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
        status: Some(status),
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

fn text(value: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.to_owned())),
    }
}

fn key_value(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(text(value)),
        ..Default::default()
    }
}

fn key_list(key: &str, values: &[String]) -> KeyValue {
    let values = values.iter().map(|value| text(value)).collect();
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::ArrayValue(ArrayValue { values })),
        }),
        ..Default::default()
    }
}

fn unix_nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
