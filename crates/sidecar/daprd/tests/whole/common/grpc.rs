//! Minimal gRPC clients and servers, with full control over the bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use outrigger_transport::body::{Body, BoxError};
use outrigger_wire::common::v1::{HttpExtension, InvokeRequest, InvokeResponse, http_extension::Verb};
use outrigger_wire::runtime::v1::InvokeServiceRequest;
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use super::client::http2_client;
use super::within;

pub const INVOKE_SERVICE: &str = "/dapr.proto.runtime.v1.Dapr/InvokeService";
pub const ON_INVOKE: &str = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";

/// The result of a call.
#[derive(Debug)]
pub struct Outcome {
    pub headers: HeaderMap,
    pub messages: Vec<Bytes>,
    pub trailers: HeaderMap,
    pub status: Status,
}

impl Outcome {
    /// Reads a response to its end.
    pub async fn read(response: Response<Incoming>) -> Self {
        let (head, mut body) = response.into_parts();
        let (mut data, mut trailers) = (BytesMut::new(), HeaderMap::new());
        while let Some(frame) = within(body.frame()).await {
            match frame {
                Ok(frame) => match frame.into_data() {
                    Ok(piece) => data.extend_from_slice(&piece),
                    Err(frame) => trailers = frame.into_trailers().unwrap(),
                },
                Err(error) => {
                    trailers.insert("grpc-status", HeaderValue::from_static("14"));
                    trailers.insert("broken-off", HeaderValue::try_from(error.to_string()).unwrap());
                    break;
                }
            }
        }
        let status = Status::from_header_map(&trailers).or_else(|| Status::from_header_map(&head.headers));
        Self {
            headers: head.headers,
            messages: messages(data.freeze()),
            trailers,
            status: status.expect("a status"),
        }
    }

    /// The only message of a successful call.
    #[track_caller]
    pub fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.status.code(), Code::Ok, "{:?}", self.status);
        assert_eq!(self.messages.len(), 1);
        M::decode(self.messages[0].clone()).unwrap()
    }

    /// Metadata of the response.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    /// Metadata after the response.
    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.get(name).map(|v| v.to_str().unwrap())
    }

    /// The details of the status.
    pub fn details(&self) -> Vec<Any> {
        tonic_types::pb::Status::decode(self.status.details())
            .unwrap()
            .details
    }

    /// The only `ErrorInfo` of the status.
    pub fn error_info(&self) -> tonic_types::pb::ErrorInfo {
        let details = self.details();
        assert_eq!(details.len(), 1, "{:?}", self.status);
        assert_eq!(details[0].type_url, "type.googleapis.com/google.rpc.ErrorInfo");
        tonic_types::pb::ErrorInfo::decode(&*details[0].value).unwrap()
    }
}

/// A message with its length prefix.
pub fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(message.len().try_into().unwrap());
    out.extend_from_slice(message);
    out.freeze()
}

/// The messages in a body.
pub fn messages(mut body: Bytes) -> Vec<Bytes> {
    let mut all = Vec::new();
    while !body.is_empty() {
        assert_eq!(body.get_u8(), 0, "not compressed");
        let length = body.get_u32() as usize;
        all.push(body.split_to(length));
    }
    all
}

/// The next message of a running call; `None` at its end.
pub async fn next(body: &mut Incoming) -> Option<Bytes> {
    let mut data = BytesMut::new();
    // A large message spans several frames.
    while data.len() < 5 || data.len() < 5 + (&data[1..5]).get_u32() as usize {
        let frame = within(body.frame()).await?.expect("the call continues");
        data.extend(frame.into_data().ok()?);
    }
    let mut all = messages(data.freeze());
    assert_eq!(all.len(), 1);
    all.pop()
}

/// Starts a call and waits for the response head.
pub async fn start(port: u16, path: &str, metadata: &[(&str, &str)], body: Body) -> Response<Incoming> {
    start_over(&mut http2_client(port).await, path, metadata, body).await
}

/// Like `start`, over an open connection.
pub async fn start_over(
    client: &mut SendRequest<Body>,
    path: &str,
    metadata: &[(&str, &str)],
    body: Body,
) -> Response<Incoming> {
    let mut request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in metadata {
        request = request.header(*name, *value);
    }
    within(client.send_request(request.body(body).unwrap()))
        .await
        .unwrap()
}

/// A complete call with these messages.
pub async fn call(port: u16, path: &str, metadata: &[(&str, &str)], sent: &[&[u8]]) -> Outcome {
    let body = sent.iter().flat_map(|m| framed(m)).collect::<Bytes>();
    Outcome::read(start(port, path, metadata, body.into()).await).await
}

/// A unary call over an open connection.
pub async fn unary_over(
    client: &mut SendRequest<Body>,
    path: &str,
    metadata: &[(&str, &str)],
    message: &impl Message,
) -> Outcome {
    let body = framed(&message.encode_to_vec());
    Outcome::read(start_over(client, path, metadata, body.into()).await).await
}

/// A unary call.
pub async fn unary(port: u16, path: &str, metadata: &[(&str, &str)], message: &impl Message) -> Outcome {
    call(port, path, metadata, &[&message.encode_to_vec()]).await
}

/// The message of `InvokeService`.
pub fn invocation(id: &str, method: &str, verb: Verb, data: &str) -> InvokeServiceRequest {
    InvokeServiceRequest {
        id: id.to_owned(),
        message: Some(InvokeRequest {
            method: method.to_owned(),
            data: Some(Any {
                type_url: String::new(),
                value: data.as_bytes().to_vec(),
            }),
            content_type: "text/plain".to_owned(),
            http_extension: Some(HttpExtension {
                verb: verb.into(),
                querystring: String::new(),
            }),
        }),
    }
}

/// Calls `InvokeService` with verb POST.
pub async fn invoke(port: u16, id: &str, method: &str, metadata: &[(&str, &str)], data: &str) -> Outcome {
    unary(
        port,
        INVOKE_SERVICE,
        metadata,
        &invocation(id, method, Verb::Post, data),
    )
    .await
}

/// In an app: the invocation in a request.
pub async fn on_invoke(request: Request<Incoming>) -> InvokeRequest {
    assert_eq!(request.uri().path(), ON_INVOKE);
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let all = messages(body);
    assert_eq!(all.len(), 1);
    InvokeRequest::decode(all[0].clone()).unwrap()
}

/// In an app: the response to an invocation.
pub fn invoked(data: &str, content_type: &str) -> InvokeResponse {
    InvokeResponse {
        data: Some(Any {
            type_url: String::new(),
            value: data.as_bytes().to_vec(),
        }),
        content_type: content_type.to_owned(),
    }
}

/// In an app: a response with metadata around its messages. `trailers` must contain the status.
pub fn response(headers: &[(&str, &str)], sent: &[&[u8]], trailers: &[(&str, &str)]) -> Response<Body> {
    let mut frames: Vec<Result<Frame<Bytes>, BoxError>> =
        sent.iter().map(|m| Ok(Frame::data(framed(m)))).collect();
    frames.push(Ok(Frame::trailers(map(trailers))));
    let mut response = Response::new(Body::stream(StreamBody::new(stream::iter(frames))));
    *response.headers_mut() = map(headers);
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// In an app: a successful response with one message.
pub fn ok(message: &impl Message) -> Response<Body> {
    response(&[], &[&message.encode_to_vec()], &[("grpc-status", "0")])
}

/// In an app: a failure without messages.
pub fn failure(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    status.add_header(response.headers_mut()).unwrap();
    response
}

fn map(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(
            name.parse::<HeaderName>().unwrap(),
            HeaderValue::try_from(*value).unwrap(),
        );
    }
    map
}
