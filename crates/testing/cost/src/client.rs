//! The caller: one connection, one call at a time.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream::{self, Once};
use http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_wire::common::v1::StateItem;
use outrigger_wire::runtime::v1::{GetStateRequest, SaveStateRequest};
use prost::Message as _;
use tokio::net::TcpStream;

use crate::Failure;
use crate::app::framed_message;

/// Bytes of a body in each direction, and of a value.
const PAYLOAD: usize = 1024;
/// Bytes of a gRPC message prefix.
const FRAME: usize = 5;
/// One call in this many is traced. The caller decides, so that every run records the same number of spans.
const TRACED: usize = 10;
/// The header of a caller that records its span.
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// The name of the state store.
pub(crate) const STORE: &str = "cost";
const KEY: &str = "key";

/// A body without a declared length, as sent by gRPC clients.
type Streamed = StreamBody<Once<std::future::Ready<Result<Frame<Bytes>, Infallible>>>>;

/// Sets TCP_NODELAY: delayed acknowledgements would add 40 ms to each call.
async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A repeatable call.
pub(crate) struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    /// Minimum number of response bytes.
    expected: usize,
}

impl Call {
    /// Calls an app's echo method through the HTTP API.
    pub(crate) fn invoke(app_id: &str) -> Self {
        let path = format!("/v1.0/invoke/{app_id}/method/echo");
        Self::http(Method::POST, path, "application/octet-stream", filler(), PAYLOAD)
    }

    /// Calls an app's echo method through the gRPC API, proxied.
    pub(crate) fn proxied(app_id: &str) -> Result<Self, Failure> {
        let mut call = Self::grpc("/cost.Echo/Echo", &filler(), PAYLOAD);
        call.headers.insert("dapr-app-id", HeaderValue::from_str(app_id)?);
        Ok(call)
    }

    /// Reads the value of a key.
    pub(crate) fn get_over_http() -> Self {
        let path = format!("/v1.0/state/{STORE}/{KEY}");
        Self::http(Method::GET, path, "", Bytes::new(), PAYLOAD)
    }

    pub(crate) fn save_over_http() -> Self {
        let before = format!("[{{\"key\":\"{KEY}\",\"value\":");
        let body = [before.as_bytes(), &*value(), b"}]"].concat();
        let path = format!("/v1.0/state/{STORE}");
        Self::http(Method::POST, path, "application/json", body.into(), 0)
    }

    pub(crate) fn get_over_grpc() -> Self {
        let request = GetStateRequest {
            store_name: STORE.to_owned(),
            key: KEY.to_owned(),
            ..GetStateRequest::default()
        };
        let path = "/dapr.proto.runtime.v1.Dapr/GetState";
        Self::grpc(path, &request.encode_to_vec(), PAYLOAD)
    }

    pub(crate) fn save_over_grpc() -> Self {
        let item = StateItem {
            key: KEY.to_owned(),
            value: value(),
            ..StateItem::default()
        };
        let request = SaveStateRequest {
            store_name: STORE.to_owned(),
            states: vec![item],
        };
        let path = "/dapr.proto.runtime.v1.Dapr/SaveState";
        Self::grpc(path, &request.encode_to_vec(), 0)
    }

    fn http(method: Method, path: String, kind: &'static str, body: Bytes, expected: usize) -> Self {
        let mut headers = HeaderMap::new();
        if !kind.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        Self {
            method,
            path,
            headers,
            body,
            expected,
        }
    }

    /// `expected` is the minimum length of the response message, without its prefix.
    fn grpc(path: &str, message: &[u8], expected: usize) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        Self {
            method: Method::POST,
            path: path.to_owned(),
            headers,
            body: framed_message(message),
            expected: expected + FRAME,
        }
    }

    fn request<B>(&self, body: B, traced: bool) -> Result<Request<B>, Failure> {
        let mut request = Request::builder()
            .method(&self.method)
            .uri(&*self.path)
            .body(body)?;
        request.headers_mut().clone_from(&self.headers);
        if traced {
            let context = HeaderValue::from_static(TRACEPARENT);
            request.headers_mut().insert("traceparent", context);
        }
        Ok(request)
    }
}

fn filler() -> Bytes {
    Bytes::from_static(&[b'x'; PAYLOAD])
}

/// A JSON text of [`PAYLOAD`] bytes.
fn value() -> Bytes {
    let mut text = vec![b'x'; PAYLOAD];
    text[0] = b'"';
    text[PAYLOAD - 1] = b'"';
    text.into()
}

pub(crate) struct Client {
    call: Call,
    sender: Sender,
    /// Calls so far.
    calls: usize,
}

enum Sender {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(http2::SendRequest<Streamed>),
}

impl Client {
    /// A connection to the HTTP API.
    pub(crate) async fn http(port: u16, mut call: Call) -> Result<Self, Failure> {
        let stream = connect(port).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let host = HeaderValue::from_str(&format!("127.0.0.1:{port}"))?;
        call.headers.insert(header::HOST, host);
        let sender = Sender::Http(sender);
        Ok(Self::new(call, sender))
    }

    /// A connection to the gRPC API.
    pub(crate) async fn grpc(port: u16, mut call: Call) -> Result<Self, Failure> {
        let stream = connect(port).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        call.path = format!("http://127.0.0.1:{port}{}", call.path);
        let sender = Sender::Grpc(sender);
        Ok(Self::new(call, sender))
    }

    fn new(call: Call, sender: Sender) -> Self {
        Self {
            call,
            sender,
            calls: 0,
        }
    }

    /// Makes one call and checks its response.
    pub(crate) async fn call(&mut self) -> Result<(), Failure> {
        self.calls += 1;
        let traced = self.calls.is_multiple_of(TRACED);
        let call = &self.call;
        let response = match &mut self.sender {
            Sender::Http(sender) => {
                let request = call.request(Full::new(call.body.clone()), traced)?;
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Grpc(sender) => {
                let frame = Ok(Frame::data(call.body.clone()));
                let body = StreamBody::new(stream::once(std::future::ready(frame)));
                let request = call.request(body, traced)?;
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await?;
        let refused = body
            .trailers()
            .is_some_and(|trailers| trailers.get("grpc-status").is_some_and(|s| s != "0"));
        let body = body.to_bytes();
        if !status.is_success() || refused || body.len() < call.expected {
            return Err(format!(
                "answered {status} with {} of {} bytes: {}",
                body.len(),
                call.expected,
                String::from_utf8_lossy(&body)
            )
            .into());
        }
        Ok(())
    }
}
