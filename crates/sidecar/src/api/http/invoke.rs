//! `/v1.0/invoke/…` and every request that names its target in a header.

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use outrigger_policy::status::http_from_grpc;
use outrigger_policy::target::{Invocation, TargetError};

use super::{Context, HttpApi};
use crate::api::error::{ApiError, status_json, text_response};
use crate::body::Body;
use crate::call::{AppStatus, Call, Reply};
use crate::headers::{internal_to_http, names, strip_hop_by_hop};

impl HttpApi {
    pub(super) async fn invoke(&self, context: Context<'_>) -> Response<Body> {
        let Context { request, span, .. } = context;
        let (mut head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let text = |name| head.headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok());
        let invocation = Invocation::parse(&path, text(names::APP_ID), text(AUTHORIZATION));
        let (id, method) = match invocation {
            Ok(invocation) => (invocation.id.into_owned(), invocation.method.into_owned()),
            Err(TargetError::Missing) => return self.error(ApiError::no_app_id()),
            Err(TargetError::Path(error)) => {
                return text_response(StatusCode::BAD_REQUEST, &error.to_string());
            }
            Err(error) => return self.error(ApiError::invoke("", false, &error.to_string())),
        };
        head.headers.remove(names::APP_ID);
        if span.is_recording() {
            span.set_name(format!("CallLocal/{id}/{method}"));
            span.set("rpc.service", "ServiceInvocation");
            span.set("net.peer.name", id.clone());
        }
        let call = Call {
            method,
            verb: Some(head.method),
            query: head.uri.query().unwrap_or_default().to_owned(),
            content_type: head.headers.get(CONTENT_TYPE).cloned(),
            type_url: String::new(),
            metadata: request_metadata(head.headers),
            body,
            trace: span.as_parent(),
        };
        match self.invoker.invoke(&id, call).await {
            Ok(reply) => self.reply(reply),
            Err(error) => {
                tracing::debug!(
                    target: "dapr.runtime.http",
                    "HTTP service invocation failed to complete with error: {error}"
                );
                self.error(ApiError::invoke(&id, error.is_denied(), &error.to_string()))
            }
        }
    }

    fn reply(&self, reply: Reply) -> Response<Body> {
        let mut headers = internal_to_http(reply.headers);
        let (status, body) = match reply.status {
            AppStatus::Http(code) => (code, reply.body),
            AppStatus::Grpc { code: 0, .. } => (200, reply.body),
            AppStatus::Grpc {
                code,
                message,
                details,
            } => (http_from_grpc(code), status_json(code, &message, &details).into()),
        };
        if !(200..400).contains(&status) {
            self.metrics.error_code("ERR_DIRECT_INVOKE", "service-invocation");
        }
        if let Some(content_type) = reply.content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        response
    }
}

/// The caller's headers as internal metadata.
fn request_metadata(mut headers: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    headers.remove(http::header::HOST);
    headers
}
