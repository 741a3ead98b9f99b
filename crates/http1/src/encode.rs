//! Messages as bytes: their heads, and their bodies in the framing that the head tells (RFC 9112 sections 3 to 7).

use std::cell::Cell;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, StatusCode, Version, request, response};

use crate::chunks::may_trail;
use crate::error::Refused;
use crate::head::{Asked, has_token};
use crate::out::Out;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const LAST_CHUNK: &[u8] = b"0\r\n";
const END_OF_LINE: &[u8] = b"\r\n";

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// It has none.
    Nothing,
    /// By its length; this is what is left.
    Length(u64),
    /// By a last chunk.
    Chunks {
        /// Whether the client takes trailers.
        trailers: bool,
    },
    /// By the end of the connection.
    Close,
}

/// The body is not what its head told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("it is longer than its Content-Length")]
    Longer,
    #[error("it is {0} bytes shorter than its Content-Length")]
    Shorter(u64),
}

/// Writes the head of an answer. `length` is that of the body, where it is known; `keep_alive` is what the client wants,
/// and becomes what it gets.
pub(crate) fn answer(
    answer: &response::Parts,
    length: Option<u64>,
    asked: Asked,
    keep_alive: &mut bool,
    out: &mut Vec<u8>,
) -> Framing {
    let switching = answer.status == StatusCode::SWITCHING_PROTOCOLS;
    first_line(asked.version, answer.status, out);
    let (mut told, mut dated) = (None, false);
    for (name, value) in &answer.headers {
        match *name {
            CONTENT_LENGTH => told = value.to_str().ok().and_then(|text| text.parse().ok()),
            TRANSFER_ENCODING => {}
            CONNECTION if !switching => *keep_alive &= !has_token(value, b"close"),
            _ if *name == KEEP_ALIVE => {}
            _ => {
                dated |= *name == DATE;
                field(name.as_str(), value.as_bytes(), out);
            }
        }
    }
    let framing = framing(answer.status, length.or(told), asked);
    match framing {
        Framing::Length(length) => number(CONTENT_LENGTH.as_str(), length, out),
        Framing::Chunks { .. } => field(TRANSFER_ENCODING.as_str(), b"chunked", out),
        Framing::Close => *keep_alive = false,
        Framing::Nothing if answer.status == StatusCode::NO_CONTENT || switching => {}
        // What it would be with a body; a length of none at all may just not be known here.
        Framing::Nothing => {
            if let Some(length) = told.or_else(|| length.filter(|length| *length > 0)) {
                number(CONTENT_LENGTH.as_str(), length, out);
            }
        }
    }
    if !dated {
        field(DATE.as_str(), &date(), out);
    }
    match (asked.version, *keep_alive) {
        _ if switching => {}
        (Version::HTTP_10, true) => field(CONNECTION.as_str(), b"keep-alive", out),
        (Version::HTTP_10, false) | (_, true) => {}
        (_, false) => field(CONNECTION.as_str(), b"close", out),
    }
    out.extend_from_slice(END_OF_LINE);
    framing
}

/// Writes the head of a request. `length` is that of the body, where it is known.
pub(crate) fn request(request: &request::Parts, length: Option<u64>, out: &mut Vec<u8>) -> Framing {
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.push(b' ');
    let target = request.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut told = None;
    for (name, value) in &request.headers {
        match *name {
            CONTENT_LENGTH => told = value.to_str().ok().and_then(|text| text.parse().ok()),
            TRANSFER_ENCODING => {}
            _ => field(name.as_str(), value.as_bytes(), out),
        }
    }
    // Without a body only those methods tell it that mostly have one (RFC 9110 section 8.6).
    let silent = ![Method::POST, Method::PUT, Method::PATCH].contains(&request.method);
    let framing = match length.or(told) {
        Some(0) if silent => Framing::Nothing,
        Some(length) => Framing::Length(length),
        None => Framing::Chunks { trailers: true },
    };
    match framing {
        Framing::Length(length) => number(CONTENT_LENGTH.as_str(), length, out),
        Framing::Chunks { .. } => field(TRANSFER_ENCODING.as_str(), b"chunked", out),
        Framing::Nothing | Framing::Close => {}
    }
    out.extend_from_slice(END_OF_LINE);
    framing
}

fn framing(status: StatusCode, length: Option<u64>, asked: Asked) -> Framing {
    let empty = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if empty || asked.head_only || status.is_informational() {
        return Framing::Nothing;
    }
    match length {
        Some(length) => Framing::Length(length),
        None if asked.version == Version::HTTP_10 => Framing::Close,
        None => Framing::Chunks {
            trailers: asked.trailers,
        },
    }
}

fn first_line(version: Version, status: StatusCode, out: &mut Vec<u8>) {
    out.extend_from_slice(match version {
        Version::HTTP_10 => b"HTTP/1.0 ",
        _ => b"HTTP/1.1 ",
    });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(END_OF_LINE);
}

fn field(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(END_OF_LINE);
}

fn number(name: &str, number: u64, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _written = write!(out, "{name}: {number}\r\n");
}

/// The time, for the Date field; it changes once a second.
fn date() -> [u8; 29] {
    thread_local! {
        static LAST: Cell<(u64, [u8; 29])> = const { Cell::new((0, [0; 29])) };
    }
    let now = SystemTime::now();
    let second = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |passed| passed.as_secs());
    let (last, text) = LAST.get();
    if last == second && second != 0 {
        return text;
    }
    let text = httpdate::fmt_http_date(now);
    let text = text.into_bytes().try_into().unwrap_or([b' '; 29]);
    LAST.set((second, text));
    text
}

/// The answer to a head that is refused, after which the connection ends.
pub(crate) fn refuse(refused: Refused, out: &mut Vec<u8>) {
    let text = refused.to_string();
    first_line(Version::HTTP_11, refused.status, out);
    field("content-type", b"text/plain; charset=utf-8", out);
    number(CONTENT_LENGTH.as_str(), text.len() as u64, out);
    field(DATE.as_str(), &date(), out);
    field(CONNECTION.as_str(), b"close", out);
    out.extend_from_slice(END_OF_LINE);
    out.extend_from_slice(text.as_bytes());
}

impl Framing {
    /// Whether the body is told to have ended.
    pub(crate) fn is_complete(self) -> bool {
        matches!(self, Self::Nothing | Self::Length(0))
    }

    /// Adds data of the body.
    pub(crate) fn data(&mut self, data: Bytes, out: &mut Out) -> Result<(), Mismatch> {
        if data.is_empty() {
            // An empty chunk would be the last one.
            return Ok(());
        }
        match self {
            Self::Nothing => {}
            Self::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(Mismatch::Longer)?;
                out.data(data, b"");
            }
            Self::Chunks { .. } => {
                let _written = write!(out.bytes, "{:x}\r\n", data.len());
                out.data(data, END_OF_LINE);
            }
            Self::Close => out.data(data, b""),
        }
        Ok(())
    }

    /// Ends the body.
    pub(crate) fn end(self, trailers: Option<&HeaderMap>, out: &mut Out) -> Result<(), Mismatch> {
        match self {
            Self::Nothing | Self::Close | Self::Length(0) => {}
            Self::Length(left) => return Err(Mismatch::Shorter(left)),
            Self::Chunks { trailers: wanted } => {
                out.bytes.extend_from_slice(LAST_CHUNK);
                for (name, value) in trailers.filter(|_| wanted).into_iter().flatten() {
                    if may_trail(name) {
                        field(name.as_str(), value.as_bytes(), &mut out.bytes);
                    }
                }
                out.bytes.extend_from_slice(END_OF_LINE);
            }
        }
        Ok(())
    }
}
