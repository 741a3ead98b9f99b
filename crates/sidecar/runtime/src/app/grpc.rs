//! Calls of a gRPC app: `AppCallback.OnInvoke`.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, Request};
use outrigger_transport::body::{Body, TooMuchUnfinished};
use outrigger_transport::conn::H2Pool;
use outrigger_transport::grpc::{self, Failed, Unary};
use outrigger_transport::headers::{grpc_to_internal, internal_to_grpc, names};
use outrigger_wire::common::v1::{HttpExtension, InvokeRequest, InvokeResponse};
use outrigger_wire::invoke::verb_of;
use prost::Message;
use tonic::Code;
use tonic_types::pb::Status as RpcStatus;

use super::{AppChannel, AppError};
use crate::call::{AppStatus, Call, Reply, any_bytes};

const HEALTH_CHECK: &str = "/dapr.proto.runtime.v1.AppCallbackHealthCheck/HealthCheck";
const ON_INVOKE: &str = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";

pub(super) async fn on_invoke(channel: &AppChannel, pool: &H2Pool, call: Call) -> Result<Reply, AppError> {
    let data = call.body.collect_up_to(channel.max_body).await;
    let data = data.map_err(|error| match error.downcast_ref::<TooMuchUnfinished>() {
        Some(cause) => AppError::Unfinished(*cause),
        None => AppError::Body(error.to_string()),
    })?;
    let content_type = call
        .content_type
        .as_ref()
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    let message = InvokeRequest {
        method: call.method,
        data: Some(any_bytes(call.type_url, data)),
        content_type: content_type.to_owned(),
        http_extension: Some(HttpExtension {
            verb: call.verb.as_ref().map(verb_of).unwrap_or_default().into(),
            querystring: call.query,
        }),
    };
    let frame = grpc::frame(&message);
    let sent = (frame.len() - grpc::PREFIX) as u64;
    let mut request = grpc::request(ON_INVOKE, frame.into());
    let mut metadata = call.metadata;
    let trace = super::http::take_trace(&mut metadata, &call.trace);
    let mut metadata = internal_to_grpc(metadata, !call.from_grpc);
    trace.inject_grpc(&mut metadata);
    if let Some(token) = channel.token() {
        metadata.insert(names::API_TOKEN, token.clone());
    }
    for (name, value) in &metadata {
        request.headers_mut().append(name, value.clone());
    }
    let started = Instant::now();
    let result = unary(channel, pool, request, channel.max_body).await;
    let code = result.as_ref().map_or_else(|e| e.status.code(), |_| Code::Ok);
    let received = result.as_ref().map_or(0, |a| a.message.len() as u64);
    channel
        .metrics
        .grpc_client(ON_INVOKE, code, started.elapsed(), sent, received);
    // An unreachable app yields `Unavailable`, which callers distinguish from our own failures.
    Ok(match result {
        Ok(answer) => success(answer),
        Err(failed) => failure(*failed),
    })
}

/// Sends one message to the app and receives one of at most `limit` bytes.
pub(super) async fn unary(
    channel: &AppChannel,
    pool: &H2Pool,
    request: Request<Body>,
    limit: usize,
) -> Result<Unary, Box<Failed>> {
    let response = channel.reach.noted(pool.send(request).await);
    let response = response.map_err(|error| Box::new(Failed::from(error.unanswered())))?;
    grpc::finish_unary(response, limit).await
}

fn success(answer: Unary) -> Reply {
    let (body, content_type, type_url) = match InvokeResponse::decode(answer.message) {
        Ok(message) => {
            let data = message.data.unwrap_or_default();
            let content_type = HeaderValue::try_from(message.content_type)
                .ok()
                .filter(|v| !v.is_empty());
            (Bytes::from(data.value), content_type, data.type_url)
        }
        Err(error) => {
            let text = format!("the app's OnInvoke response is not an InvokeResponse: {error}");
            return failure(tonic::Status::internal(text).into());
        }
    };
    let status = AppStatus::Grpc {
        code: 0,
        message: String::new(),
        details: Vec::new(),
    };
    Reply {
        status,
        headers: grpc_to_internal(answer.headers),
        trailers: grpc_to_internal(answer.trailers),
        content_type,
        type_url,
        body: body.into(),
    }
}

fn failure(failed: Failed) -> Reply {
    let details = RpcStatus::decode(failed.status.details())
        .map(|s| s.details)
        .unwrap_or_default();
    let status = AppStatus::Grpc {
        code: failed.status.code() as i32,
        message: failed.status.message().to_owned(),
        details,
    };
    Reply {
        headers: grpc_to_internal(failed.headers),
        trailers: grpc_to_internal(failed.trailers),
        ..Reply::new(status, Body::Empty)
    }
}

/// `AppCallbackHealthCheck.HealthCheck`.
pub(super) async fn health_check(channel: &AppChannel, pool: &H2Pool) -> Result<(), tonic::Status> {
    let request = grpc::request(HEALTH_CHECK, grpc::frame(&()).into());
    unary(channel, pool, request, 64 * 1024)
        .await
        .map(|_| ())
        .map_err(|failed| failed.status)
}
