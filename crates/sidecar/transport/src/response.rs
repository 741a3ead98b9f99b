//! Short responses.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};

use crate::body::Body;

/// A response with a media type.
#[inline]
pub fn bytes_response(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A plain-text response as Go's `http.Error` writes it, with a trailing newline.
pub fn text_response(status: StatusCode, text: &str) -> Response<Body> {
    const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut response = bytes_response(status, TEXT, format!("{text}\n").into());
    response
        .headers_mut()
        .insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A response without a body.
#[inline]
pub fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}
