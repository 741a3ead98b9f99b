//! Calls and the validation of their responses.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use outrigger_wire::common::v1::http_extension::Verb;
use outrigger_wire::common::v1::{HttpExtension, InvokeRequest};
use outrigger_wire::runtime::v1::InvokeServiceRequest;

use super::driver::Command;
use crate::Failure;
use crate::frame::{self, FRAME};

mod state;

pub(crate) use state::STORE;
pub(super) use state::name_of;

const KIND: &str = "application/octet-stream";
/// The path of `OnInvoke`.
pub(crate) const ON_INVOKE: &str = "/dapr.proto.runtime.v1.AppCallback/OnInvoke";

/// Wire protocol of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Http1,
    /// gRPC over HTTP/2 without TLS.
    Grpc,
    /// The protocol of a store's driver.
    Driver(Command),
}

/// Direction of the app's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToServer,
    ToClient,
    Both,
}

/// A repeatable call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) address: SocketAddr,
    pub(crate) wire: Wire,
    /// Bytes of the app's data.
    pub(crate) payload: usize,
    pub(super) direction: Direction,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// Minimum bytes of the response body.
    answer: usize,
    /// If not empty, connections use these calls in turn.
    variants: Vec<Call>,
}

impl Call {
    /// `POST` with a payload that must be echoed.
    pub(crate) fn post(port: u16, path: &str, payload: usize) -> Result<Self, Failure> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(&address.to_string())?);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(KIND));
        Ok(Self {
            address,
            wire: Wire::Http1,
            payload,
            direction: Direction::Both,
            method: Method::POST,
            uri: path.parse()?,
            headers,
            body: filler(payload).into(),
            answer: payload,
            variants: Vec::new(),
        })
    }

    /// `GET` without a body; any success response is valid.
    pub(crate) fn get(port: u16, path: &str) -> Result<Self, Failure> {
        let mut call = Self::post(port, path, 0)?;
        call.method = Method::GET;
        call.headers.remove(header::CONTENT_TYPE);
        Ok(call)
    }

    /// A gRPC method whose message is the payload itself, which must be echoed: proxies do not parse it.
    pub(crate) fn unary(port: u16, path: &str, payload: usize) -> Result<Self, Failure> {
        Self::grpc(port, path, payload, frame::framed(&filler(payload)))
    }

    /// `OnInvoke`, as called by a sidecar.
    pub(crate) fn on_invoke(port: u16, payload: usize) -> Result<Self, Failure> {
        let body = frame::message(&invocation(payload));
        Self::grpc(port, ON_INVOKE, payload, body)
    }

    /// `InvokeService`, as called by an app.
    pub(crate) fn invoke_service(port: u16, app_id: &str, payload: usize) -> Result<Self, Failure> {
        let request = InvokeServiceRequest {
            id: app_id.to_owned(),
            message: Some(invocation(payload)),
        };
        let path = "/dapr.proto.runtime.v1.Dapr/InvokeService";
        Self::grpc(port, path, payload, frame::message(&request))
    }

    fn grpc(port: u16, path: &str, payload: usize, body: Bytes) -> Result<Self, Failure> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        Ok(Self {
            address,
            wire: Wire::Grpc,
            payload,
            direction: Direction::Both,
            method: Method::POST,
            uri: format!("http://{address}{path}").parse()?,
            headers,
            body,
            answer: payload + FRAME,
            variants: Vec::new(),
        })
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: &str) -> Result<Self, Failure> {
        self.headers
            .insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
        Ok(self)
    }

    /// The call of a connection, by its number.
    pub(super) fn of_connection(&self, number: usize) -> &Self {
        let turn = number % self.variants.len().max(1);
        self.variants.get(turn).unwrap_or(self)
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}{}", self.method, self.address, self.uri.path())
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    /// As an HTTP/1.1 request.
    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    pub(super) fn body(&self) -> &Bytes {
        &self.body
    }

    pub(super) fn satisfied_by(&self, length: usize) -> bool {
        length >= self.answer
    }
}

fn invocation(payload: usize) -> InvokeRequest {
    InvokeRequest {
        method: "echo".to_owned(),
        data: Some(prost_types::Any {
            type_url: String::new(),
            value: filler(payload),
        }),
        content_type: KIND.to_owned(),
        http_extension: Some(HttpExtension {
            verb: Verb::Post.into(),
            ..HttpExtension::default()
        }),
    }
}

/// Varying bytes, so that transparent compression would be visible.
fn filler(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| b'a' + (at.wrapping_mul(31) % 26) as u8)
        .collect()
}
