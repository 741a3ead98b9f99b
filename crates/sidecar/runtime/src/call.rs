//! The form of an invocation inside the sidecar, for every protocol.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_http2::target::escape_all;
use outrigger_policy::escape::path_escape;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::{Body, Replayable};
use prost_types::Any;

/// A request to an app. With a [`Replayable`] body it yields a call for each attempt.
#[derive(Clone)]
pub struct Call<B = Body> {
    /// Canonical, decoded method path without leading slash; access control and dispatch use the same value.
    pub method: String,
    /// The raw path if it is not UTF-8: only HTTP can carry it, so it cannot be sent to other sidecars.
    pub octets: Option<Box<[u8]>>,
    /// HTTP verb; `None` if a gRPC caller gave none.
    pub verb: Option<Method>,
    /// Raw query string without `?`.
    pub query: String,
    /// Media type of the body.
    pub content_type: Option<HeaderValue>,
    /// Type URL of the payload, kept for gRPC apps; usually empty.
    pub type_url: String,
    /// Internal metadata: the caller's headers.
    pub metadata: HeaderMap,
    /// Whether they are gRPC metadata, whose names are kept for gRPC apps.
    pub from_grpc: bool,
    /// The payload.
    pub body: B,
    /// The current span, parent of the next hop's.
    pub trace: Parent,
}

/// The response of an app to a call.
pub struct Reply {
    /// The status, in the app's protocol.
    pub status: AppStatus,
    /// Response headers.
    pub headers: HeaderMap,
    /// Trailers of a gRPC app.
    pub trailers: HeaderMap,
    /// Media type of the body.
    pub content_type: Option<HeaderValue>,
    /// Type URL of the payload; usually empty.
    pub type_url: String,
    /// The payload.
    pub body: Body,
}

/// The status of an app: HTTP or gRPC. On the wire they are distinguished by value (HTTP from 100).
#[derive(Clone, Debug)]
pub enum AppStatus {
    /// HTTP status code.
    Http(u16),
    /// gRPC status.
    Grpc {
        /// Code, 0 = OK.
        code: i32,
        /// `grpc-message`, decoded.
        message: String,
        /// `google.rpc.Status.details` of the trailer `grpc-status-details-bin`.
        details: Vec<Any>,
    },
}

impl AppStatus {
    /// The number sent between sidecars.
    #[inline]
    pub fn code(&self) -> i32 {
        match self {
            Self::Http(code) => i32::from(*code),
            Self::Grpc { code, .. } => *code,
        }
    }

    /// Whether the status is a success: HTTP 200-399, gRPC OK.
    #[inline]
    pub fn is_success(&self) -> bool {
        match self {
            Self::Http(code) => (200..400).contains(code),
            Self::Grpc { code, .. } => *code == 0,
        }
    }
}

impl Reply {
    /// A reply with a body only.
    #[inline]
    pub fn new(status: AppStatus, body: Body) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            trailers: HeaderMap::new(),
            content_type: None,
            type_url: String::new(),
            body,
        }
    }
}

impl Call {
    /// A call made by the sidecar itself, with a JSON body or none.
    #[inline]
    pub fn own(verb: Method, method: String, metadata: HeaderMap, body: Body, trace: Parent) -> Self {
        Self {
            method,
            octets: None,
            verb: Some(verb),
            query: String::new(),
            content_type: Some(HeaderValue::from_static("application/json")),
            type_url: String::new(),
            metadata,
            from_grpc: false,
            body,
            trace,
        }
    }

    /// Makes the body replayable, so that attempts share it.
    pub fn replayable(self) -> Call<Replayable> {
        self.map(Replayable::new)
    }

    /// Path and query of the HTTP request; it decodes to the method that access control checked.
    #[inline]
    pub fn target(&self) -> String {
        let method = self.octets.as_deref().unwrap_or(self.method.as_bytes());
        request_target(method, &self.query)
    }
}

impl<B> Call<B> {
    fn map<C>(self, map: impl FnOnce(B) -> C) -> Call<C> {
        Call {
            method: self.method,
            octets: self.octets,
            verb: self.verb,
            query: self.query,
            content_type: self.content_type,
            type_url: self.type_url,
            metadata: self.metadata,
            from_grpc: self.from_grpc,
            body: map(self.body),
            trace: self.trace,
        }
    }
}

impl Call<Replayable> {
    /// The call of the next attempt; `None` if its body cannot be replayed.
    pub fn attempt(&self) -> Option<Call> {
        let body = self.body.attempt()?;
        Some(self.clone().map(|_| body))
    }
}

fn request_target(method: &[u8], query: &str) -> String {
    let mut target = String::with_capacity(method.len() + query.len() + 2);
    if !method.starts_with(b"/") {
        target.push('/');
    }
    target.extend(path_escape(method));
    if !query.is_empty() {
        target.push('?');
        target.push_str(query);
        // Peers and the gRPC API may pass bytes that are invalid in a target.
        if let Cow::Owned(escaped) = escape_all(&target) {
            target = escaped;
        }
    }
    target
}

/// Bytes as an `Any`, the form of plain payloads.
#[inline]
pub fn any_bytes(type_url: String, value: Bytes) -> Any {
    Any {
        type_url,
        value: value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::request_target;

    #[test]
    fn target_decodes_to_method() {
        assert_eq!(request_target(b"a/b", ""), "/a/b");
        assert_eq!(request_target(b"/a", "x=1&y=%20"), "/a?x=1&y=%20");
        assert_eq!(request_target("a b%41/ü".as_bytes(), ""), "/a%20b%2541/%C3%BC");
        assert_eq!(request_target(b"\xff\xfe", ""), "/%FF%FE");
        assert_eq!(request_target(b"", ""), "/");
        let raw = "filter={\"a\":<1>}&b= #`é";
        assert_eq!(
            request_target(b"a", raw),
            "/a?filter={%22a%22:%3C1%3E}&b=%20%23`é"
        );
    }
}
