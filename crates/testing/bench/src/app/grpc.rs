//! A gRPC server without generated code: a message prefix, a message, and the status in trailers.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use outrigger_wire::common::v1::{InvokeRequest, InvokeResponse};
use prost::Message as _;

use super::whole;
use crate::frame::{self, FRAME};

const CALLBACK: &str = "/dapr.proto.runtime.v1.AppCallback";
const UNIMPLEMENTED: u32 = 12;
const INVALID_ARGUMENT: u32 = 3;

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Responds to `OnInvoke` of Dapr's app callback with the data of the call, to its other methods with
/// "unimplemented", and echoes all other services' messages.
pub(super) async fn answer(request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let path = request.uri().path();
    let invoked = path.strip_prefix(CALLBACK).map(|method| method == "/OnInvoke");
    if invoked == Some(false) {
        return Ok(refusal(UNIMPLEMENTED));
    }
    let Some(body) = whole(request.into_body()).await? else {
        return Ok(refusal(INVALID_ARGUMENT));
    };
    if invoked.is_none() {
        return Ok(success(body));
    }
    Ok(body
        .get(FRAME..)
        .and_then(|message| InvokeRequest::decode(message).ok())
        .map_or_else(
            || refusal(INVALID_ARGUMENT),
            |call| success(frame::message(&on_invoke(call))),
        ))
}

fn on_invoke(call: InvokeRequest) -> InvokeResponse {
    InvokeResponse {
        data: call.data,
        content_type: call.content_type,
    }
}

fn success(body: Bytes) -> Answer {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(body).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed());
    grpc(response.headers_mut());
    response
}

fn refusal(code: u32) -> Answer {
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    grpc(response.headers_mut());
    response
        .headers_mut()
        .insert("grpc-status", HeaderValue::from(code));
    response
}

fn grpc(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
}
