//! `/v1.0/invoke/…`, and every request that names its target in a header.

use http::header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use outrigger_policy::status::http_from_grpc;
use outrigger_policy::target::{Invocation, TargetError};
use outrigger_protojson as protojson;
use outrigger_runtime::call::{AppStatus, Call, Reply};
use outrigger_transport::body::Body;
use outrigger_transport::headers::{internal_to_http, names, strip_hop_by_hop, wants_events};

use super::route::{Endpoint, HandlerResult};
use super::{Context, HttpApi, in_spans};
use crate::error::ApiError;

/// The group of service invocation in allow and deny lists.
pub(super) const GROUP: &str = "invoke";

/// Any method and path below `/v1.0/invoke/`, and every request that no other route matches.
pub(super) static ROUTE: Endpoint = Endpoint::new(
    None,
    ("v1", "v1.0"),
    GROUP,
    &["invoke"],
    "InvokeService",
    |api, context| Box::pin(api.invoke(context)),
);

/// Name of an invocation in the log if URLs are obfuscated: with the target.
pub(super) fn logged_name(request: &Request<Body>) -> String {
    let headers = request.headers();
    let app_id = headers.get(names::APP_ID).and_then(|v| v.to_str().ok());
    let authorization = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    match Invocation::parse(request.uri().path(), app_id, authorization) {
        Ok(invocation) => format!("{}/{}", ROUTE.name, invocation.id),
        Err(_) => ROUTE.name.to_owned(),
    }
}

impl HttpApi {
    async fn invoke(&self, context: Context<'_>) -> HandlerResult {
        let Context { request, span, .. } = context;
        let (mut head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let failed = StatusCode::INTERNAL_SERVER_ERROR;
        let app_id = match head
            .headers
            .get(names::APP_ID)
            .map(|id| std::str::from_utf8(id.as_bytes()))
        {
            None => None,
            Some(Ok(id)) => Some(id),
            Some(Err(_)) => {
                let id = String::from_utf8_lossy(head.headers[names::APP_ID].as_bytes());
                let cause = "the header dapr-app-id is not UTF-8";
                return Err(ApiError::invoke(&id, failed, cause));
            }
        };
        let authorization = head.headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let Invocation {
            id, method, octets, ..
        } = match Invocation::parse(&path, app_id, authorization) {
            Ok(invocation) => invocation,
            Err(TargetError::Missing) => return Err(ApiError::no_app_id()),
            Err(TargetError::Path(error)) => {
                return Err(ApiError::plain(StatusCode::BAD_REQUEST, error.to_string()));
            }
            Err(error) => {
                let id = error.target().unwrap_or_default();
                let http = match error {
                    TargetError::Method { .. } => StatusCode::BAD_REQUEST,
                    _ => failed,
                };
                return Err(ApiError::invoke(id, http, &error.to_string()));
            }
        };
        let (id, method) = (id.into_owned(), method.into_owned());
        let version = head.version;
        let events = wants_events(&head.headers);
        let head_only = head.method == Method::HEAD;
        head.headers.remove(names::APP_ID);
        if span.is_recording() {
            let target = in_spans(&id);
            span.set_name(format!("CallLocal/{target}/{method}"));
            span.set("rpc.service", "ServiceInvocation");
            span.set("net.peer.name", target.into_owned());
        }
        let call = Call {
            method,
            octets: octets.map(Vec::into_boxed_slice),
            verb: Some(head.method),
            query: head.uri.query().unwrap_or_default().to_owned(),
            content_type: head.headers.get(CONTENT_TYPE).cloned(),
            type_url: String::new(),
            metadata: request_metadata(head.headers),
            from_grpc: false,
            body,
            trace: span.as_parent(),
        };
        let (result, is_remote) = match self.invoker.route(&id) {
            Ok(route) => (self.invoker.invoke(route, call).await, route.is_remote()),
            Err(error) => (Err(error), false),
        };
        match result {
            Ok(reply) => {
                let may_be_events =
                    is_remote && matches!(reply.status, AppStatus::Http(code) if code != 204 && code != 304);
                let mut response = self.reply(reply, head_only);
                if response.status() == StatusCode::SWITCHING_PROTOCOLS && version != Version::HTTP_11 {
                    // Neither HTTP/2 (RFC 9113, section 8.6) nor HTTP/1.0 has this status.
                    *response.status_mut() = StatusCode::BAD_GATEWAY;
                }
                Ok(match events && may_be_events {
                    true => as_events(response, version),
                    false => response,
                })
            }
            Err(error) => {
                tracing::debug!(
                    target: "dapr.runtime.http",
                    "HTTP service invocation failed to complete with error: {error}"
                );
                Err(ApiError::invoke(&id, error.http_status(), &error.to_string()))
            }
        }
    }

    /// The response of an app. With `head_only` the body is omitted but the app's content length stays.
    fn reply(&self, reply: Reply, head_only: bool) -> Response<Body> {
        let length = if head_only {
            content_length(&reply.headers)
        } else {
            None
        };
        let mut headers = internal_to_http(reply.headers);
        let (status, body) = match reply.status {
            AppStatus::Http(code) => (code, reply.body),
            AppStatus::Grpc { code: 0, .. } => (200, reply.body),
            AppStatus::Grpc {
                code,
                message,
                details,
            } => (
                http_from_grpc(code),
                protojson::status(code, &message, &details).into(),
            ),
        };
        if !(200..400).contains(&status) {
            self.metrics.error_code("ERR_DIRECT_INVOKE", "service-invocation");
        }
        if let Some(content_type) = reply.content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if let Some(length) = length {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        response
    }
}

/// The single content length in the headers.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next()?.to_str().ok()?.parse().ok()?;
    lengths.next().is_none().then_some(length)
}

/// The response to a caller that accepts events: of unknown length and not cacheable.
fn as_events(response: Response<Body>, version: Version) -> Response<Body> {
    // A body in memory would get a content length.
    let mut response = response.map(|body| Body::stream(body.map_frame(|frame| frame)));
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if version == Version::HTTP_11 {
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    response
}

/// The caller's headers as internal metadata.
fn request_metadata(mut headers: HeaderMap) -> HeaderMap {
    strip_hop_by_hop(&mut headers);
    headers.remove(http::header::HOST);
    headers
}
