//! Clients of the APIs, with one connection per request.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_identity::{Expect, Identity, server_name};
use outrigger_transport::body::Body;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::within;

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// Reads a response to its end.
    pub async fn read(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status,
            headers: head.headers,
            body: within(body.collect()).await.expect("a whole body").to_bytes(),
        }
    }

    /// Like `read`, over a connection that may break.
    pub async fn try_read(response: Response<Incoming>) -> Option<Self> {
        let (head, body) = response.into_parts();
        let body = within(body.collect()).await.ok()?;
        Some(Self {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all: Vec<_> = self.headers.get_all(name).iter().collect();
        assert!(all.len() < 2, "{name}: {all:?}");
        all.first().map(|v| v.to_str().unwrap())
    }

    /// Checks for a JSON error with this status and code; returns its message.
    #[track_caller]
    pub fn error(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let json = self.json();
        assert_eq!(json["errorCode"], code, "{json}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        json["message"].as_str().unwrap().to_owned()
    }
}

/// A request; headers as `name: value`.
pub fn request(method: &str, target: &str, headers: &[&str], body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(target);
    for header in headers {
        let (name, value) = header.split_once(": ").unwrap();
        request = request.header(name, value);
    }
    request.body(body.into()).unwrap()
}

/// A GET request without headers.
pub fn get(target: &str) -> Request<Body> {
    request("GET", target, &[], Body::Empty)
}

/// A POST request without headers.
pub fn post(target: &str, body: impl Into<Body>) -> Request<Body> {
    request("POST", target, &[], body)
}

/// Sends over HTTP/1.1 and waits for the response head.
pub async fn send(port: u16, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
    let mut sender = http1_client(port).await;
    within(sender.send_request(with_host(request))).await
}

/// Like `send`, to a server that may exit at any time.
pub async fn try_send(port: u16, request: Request<Body>) -> Option<Response<Incoming>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    within(sender.send_request(with_host(request))).await.ok()
}

/// Adds the header that HTTP/1.1 requires.
pub fn with_host(mut request: Request<Body>) -> Request<Body> {
    let headers = request.headers_mut();
    headers
        .entry("host")
        .or_insert(http::HeaderValue::from_static("localhost"));
    request
}

/// An HTTP/1.1 connection.
pub async fn http1_client(port: u16) -> http1::SendRequest<Body> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// An HTTP/2 connection with prior knowledge.
pub async fn http2_client(port: u16) -> http2::SendRequest<Body> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    http2_over(stream).await
}

/// A connection to the sidecar of `callee` like those of its peers, with this identity.
pub async fn peer_client(identity: &Identity, callee: &str, port: u16) -> http2::SendRequest<Body> {
    let expect = Expect::Path {
        namespace: "default".to_owned(),
        app_id: callee.to_owned(),
    };
    let tls = TlsConnector::from(identity.client_config(expect));
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    http2_over(tls.connect(server_name("127.0.0.1"), stream).await.unwrap()).await
}

async fn http2_over<I>(stream: I) -> http2::SendRequest<Body>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(stream);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Makes a request target absolute, as HTTP/2 requires.
pub fn absolute(mut request: Request<Body>) -> Request<Body> {
    let target = format!("http://localhost{}", request.uri());
    *request.uri_mut() = target.parse().unwrap();
    *request.version_mut() = http::Version::HTTP_2;
    request
}

/// Writes raw bytes, half-closes, and returns everything received.
pub async fn raw(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A reset after the response counts as an end.
    let _ended = within(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}
