//! `Upgrade: h2c` (RFC 7540 section 3.2): the request that carries it is answered as stream 1 of the new
//! connection.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use outrigger_http2::Upgrade;

use crate::body::Body;
use crate::headers::strip_hop_by_hop;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The upgrade that a request asks for. A request with a body is served as HTTP/1.1, which the protocol
/// allows.
pub(super) fn requested(request: &Request<Incoming>) -> Option<Upgrade> {
    let headers = request.headers();
    let asks = headers
        .get(UPGRADE)
        .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"h2c"))
        && request.version() == Version::HTTP_11
        && request.body().is_end_stream();
    if !asks {
        return None;
    }
    let settings = headers.get(HTTP2_SETTINGS)?.to_str().ok()?;
    let settings = BASE64_URL_SAFE_NO_PAD
        .decode(settings.trim_end_matches('='))
        .ok()?;
    let mut first = Request::new(());
    *first.method_mut() = request.method().clone();
    *first.uri_mut() = absolute(request)?;
    *first.version_mut() = Version::HTTP_2;
    *first.headers_mut() = headers.clone();
    let headers = first.headers_mut();
    strip_hop_by_hop(headers);
    headers.remove(HOST);
    headers.remove(CONTENT_LENGTH);
    Upgrade::new(first, &settings)
}

/// The request target in absolute form, as HTTP/2 requires.
fn absolute(request: &Request<Incoming>) -> Option<Uri> {
    let host = request.headers().get(HOST)?.as_bytes();
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(Authority::try_from(host).ok()?);
    Uri::from_parts(parts).ok()
}

/// The answer that ends HTTP/1.1 on the connection.
pub(super) fn switching_protocols() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response
        .headers_mut()
        .insert(UPGRADE, HeaderValue::from_static("h2c"));
    response
}
