//! Calls of an HTTP app.

use std::time::Instant;

use futures::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use outrigger_transport::body::{Body, BoxError};
use outrigger_transport::headers::{internal_to_http, names, strip_hop_by_hop};

use outrigger_telemetry::trace::Parent;

use super::{AppChannel, AppError, Transport};
use crate::call::{AppStatus, Call, Reply};

pub(super) async fn send(channel: &AppChannel, call: Call) -> Result<Reply, AppError> {
    let target = call.target();
    let method = match call.verb {
        Some(verb) if verb != Method::CONNECT => verb,
        _ => return Err(AppError::InvalidVerb),
    };
    let mut headers = request_headers(call.metadata, &call.trace, &call.body);
    if let Some(content_type) = call.content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    if let Some(token) = channel.token() {
        headers.insert(names::API_TOKEN, token.clone());
    }
    let sent = call.body.known_length().unwrap_or(0);
    let started = Instant::now();
    let version = match &channel.transport {
        Transport::H1(_) => {
            headers.insert(HOST, channel.authority.clone());
            Version::HTTP_11
        }
        Transport::H2(_) | Transport::Grpc(_) => {
            headers.remove(HOST);
            Version::HTTP_2
        }
    };
    let request = build(method.clone(), target.parse(), headers, call.body, version)?;
    let result = match channel.middlewares.app.current() {
        None => transmit(channel, request).await,
        Some(chain) => {
            let end = |request| -> BoxFuture<'_, Result<Response<Body>, BoxError>> {
                Box::pin(async move { Ok(transmit(channel, request).await?) })
            };
            let result = Box::pin(chain.run(request, end)).await;
            result.map_err(|error| match error.downcast::<AppError>() {
                Ok(error) => *error,
                Err(error) => AppError::Body(error.to_string()),
            })
        }
    };
    let status = result.as_ref().map_or(500, |r| r.status().as_u16());
    let received = result
        .as_ref()
        .map_or(0, |r| r.body().known_length().unwrap_or(0));
    channel
        .metrics
        .http_client(&method, &call.method, status, started.elapsed(), sent, received);
    Ok(reply(result?))
}

async fn transmit(channel: &AppChannel, request: Request<Body>) -> Result<Response<Body>, AppError> {
    match &channel.transport {
        Transport::H1(pool) => channel.reach.noted(pool.send(request).await),
        Transport::H2(pool) => channel.reach.noted(pool.send(request).await),
        Transport::Grpc(_) => Err(AppError::NoChannel),
    }
}

/// HTTP headers for internal metadata and the current span.
pub fn request_headers(mut metadata: HeaderMap, trace: &Parent, body: &Body) -> HeaderMap {
    let length = metadata.get(CONTENT_LENGTH).cloned();
    let trace = take_trace(&mut metadata, trace);
    let mut headers = internal_to_http(metadata);
    // A content length that contradicts the body would break the connection. If the length is unknown, the
    // app sees the caller's value, if it is a number.
    if body.known_length().is_none()
        && let Some(length) = length
        && length.to_str().is_ok_and(|l| l.parse::<u64>().is_ok())
    {
        headers.insert(CONTENT_LENGTH, length);
    }
    trace.inject_http(&mut headers);
    headers
}

/// Removes the caller's trace headers from a call and returns the current trace. The caller's trace state is
/// kept only if it belongs to the same trace; without a valid parent it is ignored (W3C Trace Context section
/// 3.3).
pub(super) fn take_trace(metadata: &mut HeaderMap, current: &Parent) -> Parent {
    let mut trace = current.clone();
    if trace.state.is_none() && metadata.contains_key(names::TRACESTATE) {
        let caller = Parent::from_http(metadata);
        let id = |parent: &Parent| parent.context.map(|context| context.trace_id);
        if id(&caller) == id(&trace) {
            trace.state = caller.state;
        }
    }
    metadata.remove(names::TRACEPARENT);
    metadata.remove(names::TRACESTATE);
    trace
}

fn build(
    method: Method,
    uri: Result<Uri, http::uri::InvalidUri>,
    headers: HeaderMap,
    body: Body,
    version: Version,
) -> Result<Request<Body>, AppError> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri.map_err(http::Error::from)?;
    *request.headers_mut() = headers;
    *request.version_mut() = version;
    Ok(request)
}

/// An HTTP response as a reply of the app.
pub fn reply(response: Response<Body>) -> Reply {
    let (head, body) = response.into_parts();
    let mut headers = head.headers;
    strip_hop_by_hop(&mut headers);
    let content_type = headers.get(CONTENT_TYPE).cloned();
    Reply {
        headers,
        content_type,
        ..Reply::new(AppStatus::Http(head.status.as_u16()), body)
    }
}

/// The response status of `GET path`.
pub(super) async fn health_check(channel: &AppChannel, path: &str) -> Result<u16, AppError> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let target = format!("{slash}{path}").parse();
    let mut request = build(
        Method::GET,
        target,
        HeaderMap::new(),
        Body::Empty,
        Version::HTTP_11,
    )?;
    let response = match &channel.transport {
        Transport::H1(pool) => {
            request.headers_mut().insert(HOST, channel.authority.clone());
            channel.reach.noted(pool.send(request).await)?
        }
        Transport::H2(pool) | Transport::Grpc(pool) => channel.reach.noted(pool.send(request).await)?,
    };
    let status = response.status().as_u16();
    // Reading the rest keeps the connection reusable.
    let _rest = response.into_body().collect_up_to(64 * 1024).await;
    Ok(status)
}
