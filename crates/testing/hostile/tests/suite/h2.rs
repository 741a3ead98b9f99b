//! HTTP/2 frames (RFC 9113) and header compression (RFC 7541).

use outrigger_http2::hpack::{Decoder, Field};

use crate::listeners::{Listener, Protocol, Request, Security};
use crate::peer::Received;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RESET: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

pub fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW, 0, stream, &more.to_be_bytes())
}

/// The preface and SETTINGS.
pub fn hello(settings: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frame(kind::SETTINGS, 0, 0, &settings.concat())].concat()
}

/// A string without Huffman coding.
fn text(out: &mut Vec<u8>, text: &[u8]) {
    integer(out, 0, 0x7f, text.len());
    out.extend_from_slice(text);
}

/// An integer after a prefix; `most` is the largest value that fits in the prefix.
pub fn integer(out: &mut Vec<u8>, first: u8, most: usize, value: usize) {
    if value < most {
        out.push(first | u8::try_from(value).unwrap());
        return;
    }
    out.push(first | u8::try_from(most).unwrap());
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(u8::try_from(rest % 0x80).unwrap() | 0x80);
        rest /= 0x80;
    }
    out.push(u8::try_from(rest).unwrap());
}

/// A field without indexing.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(0);
    text(out, name.as_bytes());
    text(out, value);
}

/// A field with indexing.
pub fn remembered(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(0x40);
    text(out, name.as_bytes());
    text(out, value);
}

/// The compressed fields of an honest request.
pub fn fields(listener: &Listener) -> Vec<u8> {
    match listener.honest {
        Request::Get(path) => fields_of(listener, 0x82, path),
        Request::Call(path, _) => fields_of(listener, 0x83, path),
        Request::Post(..) => unreachable!("{} does not speak HTTP/2", listener.name),
        Request::Sign => fields_of(listener, 0x83, "/dapr.proto.sentry.v1.CA/SignCertificate"),
    }
}

/// The fields of a request; `method` is an index in the static table: 0x82 is GET, 0x83 is POST.
pub fn fields_of(listener: &Listener, method: u8, path: &str) -> Vec<u8> {
    let https = listener.security != Security::Clear;
    // :path and :authority are not indexed.
    let mut out = vec![method, if https { 0x87 } else { 0x86 }, 0x04];
    text(&mut out, path.as_bytes());
    out.push(0x01);
    text(&mut out, b"localhost");
    if !listener.offers(Protocol::Http1) {
        field(&mut out, "content-type", b"application/grpc");
        field(&mut out, "te", b"trailers");
    }
    out
}

/// HEADERS of an honest request on this stream.
pub fn headers(listener: &Listener, stream: u32, ended: bool) -> Vec<u8> {
    let flags = END_HEADERS | if ended { END_STREAM } else { 0 };
    frame(kind::HEADERS, flags, stream, &fields(listener))
}

/// A complete honest request; `message` is the body of a certificate request.
pub fn request(listener: &Listener, stream: u32, message: &[u8]) -> Vec<u8> {
    let message = match listener.honest {
        Request::Get(_) => return headers(listener, stream, true),
        Request::Call(..) | Request::Post(..) => &[],
        Request::Sign => message,
    };
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0], &length[..], message].concat();
    [
        headers(listener, stream, false),
        frame(kind::DATA, END_STREAM, stream, &data),
    ]
    .concat()
}

/// A received frame.
#[derive(Debug)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: &'a [u8],
}

/// The complete frames received.
pub fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            break;
        };
        frames.push(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
        });
        bytes = rest;
    }
    frames
}

/// Whether the server closed the connection with an error.
pub fn is_closed_with_error(received: &Received) -> bool {
    frames(&received.bytes)
        .iter()
        .any(|f| f.kind == kind::GOAWAY && f.payload.get(4..8) != Some(&[0; 4]))
}

/// Default size of the dynamic table in bytes.
const HEADER_TABLE: usize = 4096;

/// The outcome of a call by the head and the trailers of its response.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub status: Option<u16>,
    /// `grpc-status`, which is in the head of a trailers-only response.
    pub code: Option<u16>,
}

/// The outcome of the call on a stream. Heads of other streams are decoded too, for the dynamic table;
/// servers use neither padding nor priorities.
pub fn outcome(bytes: &[u8], stream: u32) -> Outcome {
    let (mut decoder, mut block) = (Decoder::new(HEADER_TABLE), Vec::new());
    let mut outcome = Outcome::default();
    for frame in frames(bytes) {
        match frame.kind {
            kind::HEADERS => block = frame.payload.to_vec(),
            kind::CONTINUATION => block.extend_from_slice(frame.payload),
            _ => continue,
        }
        if frame.flags & END_HEADERS == 0 {
            continue;
        }
        let decoded = decoder.decode(&block, usize::MAX, |field| match field {
            _ if frame.stream != stream => {}
            Field::Status(status) => outcome.status = Some(status.as_u16()),
            Field::Header(name, value) if name.as_str() == "grpc-status" => {
                outcome.code = value.to_str().ok().and_then(|code| code.parse().ok());
            }
            _ => {}
        });
        if decoded.is_err() {
            break;
        }
    }
    outcome
}

/// Whether a stream has a response with status 200.
pub fn is_ok(bytes: &[u8], stream: u32) -> bool {
    let mut frames = frames(bytes).into_iter().filter(|f| f.stream == stream);
    let head = frames.find(|f| f.kind == kind::HEADERS);
    // Table size changes may precede `:status 200`, which is index 8 of the static table.
    head.is_some_and(|f| f.payload.iter().find(|b| **b & 0xe0 != 0x20) == Some(&0x88))
}

/// Whether a stream failed with RESOURCE_EXHAUSTED, code 8, which is not compressed in the first response
/// of a connection.
pub fn is_exhausted(bytes: &[u8], stream: u32) -> bool {
    let mark = b"grpc-status\x018";
    frames(bytes).iter().any(|f| {
        f.stream == stream
            && f.kind == kind::HEADERS
            && f.payload.windows(mark.len()).any(|part| part == mark)
    })
}

/// Whether a stream has ended, or will get no response because of a GOAWAY.
pub fn is_over(bytes: &[u8], stream: u32) -> bool {
    frames(bytes).iter().any(|f| match f.kind {
        kind::DATA | kind::HEADERS => f.stream == stream && f.flags & END_STREAM != 0,
        kind::RESET => f.stream == stream,
        kind::GOAWAY => match f.payload.split_first_chunk() {
            Some((last, rest)) => u32::from_be_bytes(*last) < stream || !rest.starts_with(&[0; 4]),
            None => true,
        },
        _ => false,
    })
}
