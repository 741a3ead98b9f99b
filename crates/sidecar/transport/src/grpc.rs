//! gRPC on plain HTTP/2 messages: framing, status, unary calls. The hot path uses this instead of a client
//! stack, so payload bytes are forwarded and never copied.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use http::header::{CONTENT_TYPE, HeaderName, TE};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::{BodyExt, StreamBody};
pub use outrigger_grpc::fields;
use outrigger_grpc::fields::TooManyFields;
pub use outrigger_grpc::frame::{PREFIX, Prefix};
use outrigger_grpc::messages::MessageTimeout;
pub use outrigger_grpc::messages::{Messages, RequestKind};
use outrigger_grpc::unfinished::{TooMuchUnfinished, Unfinished};
use outrigger_policy::path::grpc_method;
use outrigger_telemetry::trace::Baggage;
use prost::Message;
use tonic::{Code, Status};

use crate::body::{Body, BoxError};
use crate::conn::{H2Pool, SendError};

/// Content type of requests and responses.
pub const CONTENT_TYPE_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// True for `application/grpc`, with or without a codec suffix (`+proto`).
#[inline]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/grpc"))
}

/// The method that a request calls, taken from its path. Every check starts here, and only one spelling is
/// accepted.
///
/// # Errors
/// `InvalidArgument` if the path does not name exactly one method in canonical form.
#[inline]
pub fn method(request: &Request<Body>) -> Result<&str, Status> {
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    grpc_method(path).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// The baggage header of a call, to be returned to the caller. Several values are joined into one list.
///
/// # Errors
/// `InvalidArgument` if it is not W3C baggage.
pub fn baggage(headers: &HeaderMap) -> Result<Option<HeaderValue>, Status> {
    let found =
        Baggage::from_headers(headers).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(found.and_then(|(_, baggage)| HeaderValue::try_from(baggage.encode()).ok()))
}

/// One message with its prefix.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    // The body limit keeps messages far below 4 GiB.
    out.put_slice(&Prefix::write(length).unwrap_or_default());
    message.encode_raw(&mut out);
    out.freeze()
}

/// Extracts the single message of a collected unary body.
///
/// # Errors
/// `Internal` if the body is not exactly one uncompressed message.
#[inline]
pub fn unframe(mut body: Bytes) -> Result<Bytes, Status> {
    if body.is_empty() {
        return Err(Status::internal("the peer returned OK without a message"));
    }
    let problem = match Prefix::read(&body) {
        None => "truncated gRPC message",
        Some(Prefix { flag: 1.., .. }) => "compressed gRPC message without an agreed encoding",
        Some(prefix) if prefix.length != body.len() - PREFIX => "gRPC message length does not match the body",
        Some(_) => {
            body.advance(PREFIX);
            return Ok(body);
        }
    };
    Err(Status::internal(problem))
}

/// Whether the first bytes of a body hold a whole message.
#[inline]
pub fn has_message(bytes: &[u8]) -> bool {
    Prefix::read(bytes).is_some_and(|prefix| prefix.length <= bytes.len() - PREFIX)
}

/// A gRPC request to `path` (`/package.Service/Method`), with the headers of every call.
#[inline]
pub fn request(path: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(path);
    *request.version_mut() = http::Version::HTTP_2;
    request.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    request.headers_mut().insert(TE, TRAILERS);
    request
}

/// A response that ends a call with a status and no message.
#[inline]
pub fn status_response(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    put_status(status, response.headers_mut());
    response
}

/// Writes `grpc-status`, `grpc-message` and details.
pub fn put_status(status: &Status, headers: &mut HeaderMap) {
    if status.add_header(headers).is_err() {
        headers.insert(GRPC_STATUS, HeaderValue::from_static("13"));
    }
}

/// The body of a server-streaming call: its messages, then its status.
pub fn server_stream<M: Message + 'static>(messages: BoxStream<'static, Result<M, Status>>) -> Body {
    let frames = stream::unfold(Some(messages), |state| async move {
        let mut messages = state?;
        let (next, rest) = match messages.next().await {
            Some(Ok(message)) => (Frame::data(frame(&message)), Some(messages)),
            Some(Err(status)) => {
                let mut trailers = HeaderMap::new();
                put_status(&status, &mut trailers);
                (Frame::trailers(trailers), None)
            }
            None => (Frame::trailers(ok_trailers()), None),
        };
        Some((Ok::<_, BoxError>(next), rest))
    });
    Body::stream(StreamBody::new(frames))
}

/// The `grpc-status: 0` trailer.
#[inline]
pub fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, OK);
    trailers
}

/// Whether headers or trailers hold a plain success status. A status with details is left to [`Status`].
#[inline]
pub fn has_ok_status(headers: &HeaderMap) -> bool {
    headers.get(GRPC_STATUS).is_some_and(|status| status == OK)
}

/// The status in a response head: trailers-only responses and plain HTTP errors. `None` if it comes in the
/// trailers.
#[inline]
pub fn early_status(response: &Response<Body>) -> Option<Status> {
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Some(status);
    }
    if response.status() == http::StatusCode::OK {
        return None;
    }
    // gRPC over HTTP/2, "HTTP to gRPC status code mapping".
    let code = match response.status().as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Some(Status::new(
        code,
        format!(
            "unexpected HTTP status {} from the gRPC server",
            response.status()
        ),
    ))
}

/// The number in `grpc-status`, which need not be one of the defined codes.
pub fn raw_code(headers: &HeaderMap) -> Option<i32> {
    headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()
}

/// The body of a request with one message; fails if the client stops half-way.
pub fn one_message(body: Body) -> Body {
    match body {
        Body::Empty | Body::Full(_) => body,
        body => Body::stream(decoded_messages(body, RequestKind::Unary)),
    }
}

/// The messages of a request, for code that decodes them. Bytes of an incomplete message count against the
/// connection.
pub fn decoded_messages(body: Body, kind: RequestKind) -> Messages<Body> {
    let (body, connection) = body.uncounted();
    Messages::new(body, kind).held_in(connection.map(Unfinished::begin))
}

/// The body of a request whose messages are forwarded; fails if one stops half-way.
pub fn passed_messages(body: Body) -> Body {
    match body {
        Body::Empty | Body::Full(_) => body,
        body => Body::stream(Messages::new(body, RequestKind::Streaming).uncounted()),
    }
}

/// A connection error as a status.
pub fn send_status(error: &SendError) -> Status {
    Status::new(send_code(error), crate::error::chain(error))
}

/// The status code of a call that got no response.
pub fn send_code(error: &SendError) -> Code {
    if error.is_unavailable() {
        Code::Unavailable
    } else if error.is_too_large() {
        Code::ResourceExhausted
    } else {
        Code::Internal
    }
}

/// A body error as a status: our own if it carries one, else `Unavailable`.
pub fn body_status(error: &BoxError) -> Status {
    if let Some(status) = error.downcast_ref::<Status>() {
        return status.clone();
    }
    if error.downcast_ref::<MessageTimeout>().is_some() {
        return Status::deadline_exceeded(error.to_string());
    }
    let too_much =
        error.is::<crate::body::TooLarge>() || error.is::<TooManyFields>() || error.is::<TooMuchUnfinished>();
    if too_much {
        return Status::resource_exhausted(error.to_string());
    }
    if let Some(failed) = error.downcast_ref::<outrigger_http2::StreamError>()
        && failed.is_too_large()
    {
        return Status::resource_exhausted(error.to_string());
    }
    Status::unavailable(crate::error::chain(error.as_ref()))
}

/// The response of a unary call.
pub struct Unary {
    /// The message bytes, unprefixed.
    pub message: Bytes,
    /// Response header metadata.
    pub headers: HeaderMap,
    /// Trailer metadata.
    pub trailers: HeaderMap,
}

/// A failed unary call with the metadata received.
#[derive(Debug)]
pub struct Failed {
    /// Status of the call.
    pub status: Status,
    /// Response header metadata, empty if there was none.
    pub headers: HeaderMap,
    /// Trailer metadata, empty if there was none.
    pub trailers: HeaderMap,
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self {
            status,
            headers: HeaderMap::new(),
            trailers: HeaderMap::new(),
        }
    }
}

/// Sends one message and waits for one, of at most `limit` bytes.
///
/// # Errors
/// [`Failed`] with the peer's status, or `Unavailable` when it could not be reached.
pub async fn unary(pool: &H2Pool, request: Request<Body>, limit: usize) -> Result<Unary, Box<Failed>> {
    let response = pool
        .send(request)
        .await
        .map_err(|e| Box::new(Failed::from(send_status(&e))))?;
    finish_unary(response, limit).await
}

/// Reads a unary response to its end.
///
/// # Errors
/// As [`unary`].
pub async fn finish_unary(response: Response<Body>, limit: usize) -> Result<Unary, Box<Failed>> {
    let early = early_status(&response);
    let (head, mut body) = response.into_parts();
    if let Some(status) = early
        && (status.code() != Code::Ok || body.is_end_stream())
    {
        return Err(Box::new(Failed {
            status,
            headers: head.headers,
            trailers: HeaderMap::new(),
        }));
    }
    let mut data = BytesMut::new();
    let mut first = Bytes::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Err(failed(body_status(&error), head.headers, trailers)),
        };
        match frame.into_data() {
            Ok(chunk) => {
                if first.len() + data.len() + chunk.len() > limit.saturating_add(PREFIX) {
                    let text = format!("gRPC message is larger than {limit} bytes (see --max-body-size)");
                    return Err(failed(Status::resource_exhausted(text), head.headers, trailers));
                }
                if first.is_empty() && data.is_empty() {
                    first = chunk;
                } else {
                    data.extend_from_slice(&std::mem::take(&mut first));
                    data.extend_from_slice(&chunk);
                }
            }
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    match Status::from_header_map(&trailers) {
        Some(status) if status.code() == Code::Ok => {}
        Some(status) => return Err(failed(status, head.headers, trailers)),
        None => {
            let status = Status::internal("the peer ended the call without a status");
            return Err(failed(status, head.headers, trailers));
        }
    }
    let body = if data.is_empty() { first } else { data.freeze() };
    match unframe(body) {
        Ok(message) => Ok(Unary {
            message,
            headers: head.headers,
            trailers,
        }),
        Err(status) => Err(failed(status, head.headers, trailers)),
    }
}

fn failed(status: Status, headers: HeaderMap, trailers: HeaderMap) -> Box<Failed> {
    Box::new(Failed {
        status,
        headers,
        trailers,
    })
}
