//! The called app: one connection task per sidecar, and minimal responses.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outrigger_wire::common::v1::{InvokeRequest, InvokeResponse};
use prost::Message as _;
use tokio::net::TcpListener;

type Answer = Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error>;

/// Starts the app on a free port, as a task of this runtime.
pub(crate) async fn start(grpc: bool) -> std::io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if stream.set_nodelay(true).is_err() {
                // The connection broke before use.
                continue;
            }
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                // A connection ends with its sidecar.
                if grpc {
                    let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service_fn(grpc_answer))
                        .await;
                } else {
                    let _ended = hyper::server::conn::http1::Builder::new()
                        .timer(TokioTimer::new())
                        .serve_connection(io, service_fn(http_answer))
                        .await;
                }
            });
        }
    });
    Ok(port)
}

async fn http_answer(request: Request<Incoming>) -> Answer {
    let missing = request.uri().path().starts_with("/dapr/");
    let body = request.into_body().collect().await?.to_bytes();
    let mut response = Response::new(Full::new(body).boxed());
    if missing {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Ok(response)
}

async fn grpc_answer(request: Request<Incoming>) -> Answer {
    let invoked = request.uri().path().ends_with("/OnInvoke");
    let body = request.into_body().collect().await?.to_bytes();
    let answer = if invoked { on_invoke(&body) } else { Some(body) };
    let status = if answer.is_some() { "0" } else { "3" };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let body = Full::new(answer.unwrap_or_default()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// The request's data as the response.
fn on_invoke(framed: &[u8]) -> Option<Bytes> {
    let call = InvokeRequest::decode(framed.get(5..)?).ok()?;
    let message = InvokeResponse {
        data: call.data,
        content_type: call.content_type,
    }
    .encode_to_vec();
    Some(framed_message(&message))
}

/// A gRPC message: no compression, its length, its bytes.
pub(crate) fn framed_message(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}
