//! Service invocation: a call of another app and its response, as messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, StatusCode};
use outrigger_policy::status::{grpc_from_http, reason_phrase};
use outrigger_runtime::call::{AppStatus, Call, Reply, any_bytes};
use outrigger_telemetry::trace::Parent;
use outrigger_transport::headers::{grpc_to_internal, internal_to_grpc, names};
use outrigger_wire::common::v1::{InvokeRequest, InvokeResponse};
use outrigger_wire::invoke::method_of;
use outrigger_wire::runtime::v1::InvokeServiceRequest;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::super::{CurrentSpan, Trailers};
use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of("invoke", "v1", &["InvokeService"])];

/// Longest part of an HTTP app's error body included in a status, bytes.
const MAX_ERROR_BODY: usize = 63;

fn call(method: String, message: InvokeRequest, headers: HeaderMap, trace: Parent) -> Call {
    let http = message.http_extension.unwrap_or_default();
    let data = message.data.unwrap_or_default();
    let mut metadata = grpc_to_internal(headers);
    metadata.insert(
        http::header::CONTENT_TYPE,
        outrigger_transport::grpc::CONTENT_TYPE_GRPC,
    );
    Call {
        method,
        octets: None,
        verb: method_of(http.verb()),
        query: http.querystring,
        content_type: HeaderValue::try_from(message.content_type)
            .ok()
            .filter(|v| !v.is_empty()),
        type_url: data.type_url,
        metadata,
        from_grpc: true,
        body: bytes::Bytes::from(data.value).into(),
        trace,
    }
}

impl DaprService {
    pub(super) async fn service_invoke(
        &self,
        request: Request<InvokeServiceRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "dapr.runtime.grpc.api",
                "[DEPRECATION NOTICE] InvokeService is deprecated and will be removed in the future, \
                 please use proxy mode instead."
            );
        }
        let trace = request
            .extensions()
            .get::<CurrentSpan>()
            .map(|s| s.0.clone())
            .unwrap_or_default();
        let (metadata, _, message) = request.into_parts();
        let InvokeServiceRequest { id, message } = message;
        let message = message.unwrap_or_default();
        let method = outrigger_policy::path::canonical(&message.method);
        let method = match method {
            Ok(method) => method.into_owned(),
            Err(error) => return Err(self.failed(&id, &format!("invalid method: {error}"))),
        };
        let call = call(method, message, metadata.into_headers(), trace);
        let result = match self.invoker.route(&id) {
            Ok(route) => self.invoker.invoke(route, call).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(reply) => self.answer(reply).await,
            Err(error) => Err(self.failed(&id, &error.to_string())),
        }
    }

    fn failed(&self, id: &str, cause: &str) -> Status {
        self.fail(&ApiError::invoke(id, StatusCode::INTERNAL_SERVER_ERROR, cause))
    }

    async fn answer(&self, reply: Reply) -> Result<Response<InvokeResponse>, Status> {
        let from_http = matches!(reply.status, AppStatus::Http(_));
        let data = reply.body.collect_up_to(self.max_message).await;
        let data = data.map_err(|e| outrigger_transport::grpc::body_status(&e))?;
        let mut headers = internal_to_grpc(reply.headers, from_http);
        let status = match reply.status {
            AppStatus::Http(code) => {
                headers.insert(names::HTTP_STATUS, HeaderValue::from(code));
                http_failure(code, &data)
            }
            AppStatus::Grpc { code: 0, .. } => None,
            AppStatus::Grpc {
                code,
                message,
                details,
            } => Some(grpc_failure(code, &message, details)),
        };
        let trailers = Trailers(internal_to_grpc(reply.trailers, false));
        if let Some(mut status) = status {
            *status.metadata_mut() = MetadataMap::from_headers(headers);
            status.set_source(Arc::new(trailers));
            return Err(status);
        }
        let content_type = reply
            .content_type
            .as_ref()
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let message = InvokeResponse {
            data: Some(any_bytes(reply.type_url, data)),
            content_type: content_type.to_owned(),
        };
        let mut extensions = http::Extensions::new();
        if !trailers.0.is_empty() {
            extensions.insert(trailers);
        }
        let metadata = MetadataMap::from_headers(headers);
        Ok(Response::from_parts(metadata, message, extensions))
    }
}

/// The gRPC status of an HTTP app's error; `None` for success.
fn http_failure(code: u16, body: &[u8]) -> Option<Status> {
    let grpc = Code::from(grpc_from_http(code));
    if grpc == Code::Ok {
        return None;
    }
    let phrase = reason_phrase(code);
    let shown = String::from_utf8_lossy(&body[..body.len().min(MAX_ERROR_BODY)]).into_owned();
    let metadata = [
        ("http.code".to_owned(), code.to_string()),
        ("http.error_message".to_owned(), shown),
    ];
    let details = ErrorDetails::with_error_info(phrase, "dapr.io", metadata);
    Some(Status::with_error_details(grpc, phrase, details))
}

/// A gRPC app's error, with its details unchanged.
fn grpc_failure(code: i32, message: &str, details: Vec<prost_types::Any>) -> Status {
    use prost::Message;
    let status = tonic_types::pb::Status {
        code,
        message: message.to_owned(),
        details,
    };
    Status::with_details(Code::from(code), message, status.encode_to_vec().into())
}
