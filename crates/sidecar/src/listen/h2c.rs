//! `Upgrade: h2c` (RFC 7540 section 3.2): the request that carries it is answered as stream 1 of the new connection.
//!
//! The HTTP/2 server knows only requests that arrive in frames, so the request is written as one, right behind the
//! client's first SETTINGS frame. Its fields are HPACK literals without indexing, which leave no trace in the
//! compression state the client goes on with.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use outrigger_http1::{Incoming, Rewound};
use outrigger_http2::frame::{HEAD, Head, Kind, PREFACE, flag};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::body::Body;
use crate::headers::strip_hop_by_hop;

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// Largest frame before SETTINGS say otherwise.
const MAX_FRAME: usize = 16_384;
/// HPACK "literal without indexing, new name".
const LITERAL: u8 = 0;

/// A request that asks for an upgrade, as the frame of the first stream. A request with a body is served as HTTP/1.1, as
/// the protocol allows.
pub(super) fn first_stream(request: &Request<Incoming>) -> Option<Bytes> {
    let headers = request.headers();
    let asks = headers
        .get(UPGRADE)
        .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"h2c"))
        && request.version() == Version::HTTP_11
        && headers.contains_key(HTTP2_SETTINGS)
        && matches!(request.body(), Incoming::Empty);
    if asks { frame(request) } else { None }
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

/// The request as a HEADERS frame of stream 1; `None` when it does not fit in one.
fn frame(request: &Request<Incoming>) -> Option<Bytes> {
    let mut block = BytesMut::new();
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str());
    literal(&mut block, b":method", request.method().as_str().as_bytes());
    literal(&mut block, b":scheme", b"http");
    literal(&mut block, b":path", path.as_bytes());
    if let Some(host) = request.headers().get(HOST) {
        literal(&mut block, b":authority", host.as_bytes());
    }
    let mut headers = request.headers().clone();
    strip_hop_by_hop(&mut headers);
    headers.remove(HOST);
    headers.remove(CONTENT_LENGTH);
    for (name, value) in &headers {
        literal(&mut block, name.as_str().as_bytes(), value.as_bytes());
    }
    if block.len() > MAX_FRAME {
        return None;
    }
    let head = Head {
        length: block.len(),
        kind: Kind::Headers,
        flags: flag::END_STREAM | flag::END_HEADERS,
        stream: 1,
    };
    let mut frame = BytesMut::with_capacity(HEAD + block.len());
    frame.put_slice(&head.bytes());
    frame.put(block);
    Some(frame.freeze())
}

fn literal(block: &mut BytesMut, name: &[u8], value: &[u8]) {
    block.put_u8(LITERAL);
    text(block, name);
    text(block, value);
}

/// A string without Huffman coding, its length as an integer with a 7-bit prefix (RFC 7541 section 5.1).
fn text(block: &mut BytesMut, text: &[u8]) {
    const PREFIX: usize = 0x7f;
    if text.len() < PREFIX {
        block.put_u8(u8::try_from(text.len()).unwrap_or(0));
    } else {
        block.put_u8(0x7f);
        let mut rest = text.len() - PREFIX;
        while rest >= 0x80 {
            block.put_u8(u8::try_from(rest % 0x80).unwrap_or(0) | 0x80);
            rest /= 0x80;
        }
        block.put_u8(u8::try_from(rest).unwrap_or(0));
    }
    block.put_slice(text);
}

/// Waits for the client's preface; the connection then reads as if the request, `first`, had followed it.
pub(super) async fn finish<I>(mut io: Rewound<I>, first: Bytes) -> io::Result<Rewound<Rewound<I>>>
where
    I: AsyncRead + Unpin,
{
    let mut start = vec![0; PREFACE.len() + HEAD];
    io.read_exact(&mut start).await?;
    let (preface, head) = start.split_at(PREFACE.len());
    let head = Head::read(head).filter(|head| head.kind == Kind::Settings && head.length <= MAX_FRAME);
    let Some(head) = head.filter(|_| preface == PREFACE) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no HTTP/2 preface after the upgrade",
        ));
    };
    let end = start.len();
    start.resize(end + head.length, 0);
    io.read_exact(&mut start[end..]).await?;
    start.extend_from_slice(&first);
    Ok(Rewound::new(start.into(), io))
}
