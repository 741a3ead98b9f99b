//! Heads of calls and responses.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

use super::Verb;

/// The target actor of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// Its type.
    pub kind: String,
    /// Its ID within the type.
    pub id: String,
}

/// A call without its body, as received from another sidecar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestHead {
    /// Path of the app's method as written by the caller: not normalized, usually without a leading slash.
    pub method: String,
    /// HTTP verb; [`Verb::None`] if absent or unknown.
    pub verb: Verb,
    /// Raw query string without `?`.
    pub query: String,
    /// Media type of the body.
    pub content_type: Option<HeaderValue>,
    /// Type of the body if it is a protobuf message, otherwise empty.
    pub type_url: String,
    /// The caller's headers. Names are in lower case; values keep their order; values of `-bin` names are
    /// base64 text. A pseudo-header `:path` becomes `dapr-path`, and so on. Empty if the field is absent,
    /// which v1.17.13 rejects in the first message of a stream.
    pub metadata: HeaderMap,
    /// Whether `Content-Type` is spelled as in headers of HTTP callers; gRPC metadata has lower-case names.
    pub http_names: bool,
    /// Set for calls to an actor.
    pub actor: Option<Actor>,
}

/// A response without its body, as received from another sidecar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseHead {
    /// An HTTP status if at least 100, otherwise a gRPC code.
    pub status_code: i32,
    /// Status text.
    pub status_message: String,
    /// Encoded `google.protobuf.Any` messages.
    pub status_details: Vec<Bytes>,
    /// Headers, by the same rules as [`RequestHead::metadata`].
    pub headers: HeaderMap,
    /// Trailers, by the same rules.
    pub trailers: HeaderMap,
    /// Media type of the body.
    pub content_type: Option<HeaderValue>,
    /// Type of the body if it is a protobuf message, otherwise empty.
    pub type_url: String,
}

/// Borrowed input of [`encode_request`](super::encode_request), without metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestParts<'a> {
    /// See [`RequestHead::method`].
    pub method: &'a str,
    /// See [`RequestHead::verb`].
    pub verb: Verb,
    /// See [`RequestHead::query`].
    pub query: &'a str,
    /// Value of the content type header; may be empty.
    pub content_type: &'a [u8],
    /// See [`RequestHead::type_url`].
    pub type_url: &'a str,
    /// Type and id of the actor.
    pub actor: Option<(&'a str, &'a str)>,
}

/// Borrowed input of [`encode_response`](super::encode_response), without headers and trailers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseParts<'a> {
    /// See [`ResponseHead::status_code`].
    pub status_code: i32,
    /// See [`ResponseHead::status_message`].
    pub status_message: &'a str,
    /// See [`ResponseHead::status_details`].
    pub status_details: &'a [Bytes],
    /// Value of the content type header; may be empty.
    pub content_type: &'a [u8],
    /// See [`ResponseHead::type_url`].
    pub type_url: &'a str,
}

impl RequestHead {
    /// Whether the caller used its sidecar's gRPC API.
    pub fn is_from_grpc(&self) -> bool {
        let content_type = self.metadata.get(CONTENT_TYPE);
        !self.http_names && content_type.is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
    }

    /// Input for the encoder; pass the metadata separately, through [`entries`](super::entries).
    pub fn parts(&self) -> RequestParts<'_> {
        RequestParts {
            method: &self.method,
            verb: self.verb,
            query: &self.query,
            content_type: self.content_type.as_ref().map_or(&[], HeaderValue::as_bytes),
            type_url: &self.type_url,
            actor: self.actor.as_ref().map(|a| (a.kind.as_str(), a.id.as_str())),
        }
    }
}

impl ResponseHead {
    /// Input for the encoder; pass headers and trailers separately.
    pub fn parts(&self) -> ResponseParts<'_> {
        ResponseParts {
            status_code: self.status_code,
            status_message: &self.status_message,
            status_details: &self.status_details,
            content_type: self.content_type.as_ref().map_or(&[], HeaderValue::as_bytes),
            type_url: &self.type_url,
        }
    }
}

/// A chunk of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Sequence number of the chunks with data, from 0.
    pub seq: u64,
    /// A slice of the received message.
    pub data: Bytes,
}

/// A message of the request stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestFrame {
    /// Present in the first message only.
    pub head: Option<RequestHead>,
    /// Optional in the first message, present in the others.
    pub payload: Option<Payload>,
}

/// A message of the response stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseFrame {
    /// Present in the first message only.
    pub head: Option<ResponseHead>,
    /// Optional in the first message, present in the others.
    pub payload: Option<Payload>,
}

/// The verb for an HTTP method; [`Verb::None`] if the protocol has no number for it.
pub fn verb_of(method: &Method) -> Verb {
    match method.as_str() {
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "POST" => Verb::Post,
        "PUT" => Verb::Put,
        "DELETE" => Verb::Delete,
        "CONNECT" => Verb::Connect,
        "OPTIONS" => Verb::Options,
        "TRACE" => Verb::Trace,
        "PATCH" => Verb::Patch,
        _ => Verb::None,
    }
}

/// The HTTP method of a verb; `None` for [`Verb::None`].
pub fn method_of(verb: Verb) -> Option<Method> {
    Some(match verb {
        Verb::None => return None,
        Verb::Get => Method::GET,
        Verb::Head => Method::HEAD,
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
        Verb::Delete => Method::DELETE,
        Verb::Connect => Method::CONNECT,
        Verb::Options => Method::OPTIONS,
        Verb::Trace => Method::TRACE,
        Verb::Patch => Method::PATCH,
    })
}
