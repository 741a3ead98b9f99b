//! Messages of the streams, to bytes.
//!
//! Protobuf writes a message's length before its content, so each part is run twice: once to count, once to write.

use std::str;

use bytes::BytesMut;
use http::HeaderMap;

use super::frame::FRAME_PREFIX;
use super::head::{RequestParts, ResponseParts};
use super::{FrameError, Verb};

/// A header: its name and one of its values.
type Entry<'a> = (&'a str, &'a [u8]);

/// A piece of a body that the caller sends itself, right after the encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Counts the pieces that hold data, from 0, per direction.
    pub seq: u64,
    /// Its length in bytes. Peers refuse messages above their body limit (by default 4 MiB, head included).
    pub len: usize,
}

/// A header map as the encoders take it.
pub fn entries(map: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// Appends a frame with an `InternalInvokeRequestStream` that opens a call.
///
/// With a chunk, exactly `first.len` bytes of data must follow what was appended. Values of one name keep their
/// order. Values that are not UTF-8, which the protocol cannot carry, are taken for ISO 8859-1.
pub fn encode_request<'m>(
    head: &RequestParts<'_>,
    metadata: impl IntoIterator<Item = (&'m str, &'m [u8])>,
    first: Option<Chunk>,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let metadata = grouped(metadata);
    frame(
        &Opening {
            head: &Request {
                head,
                metadata: &metadata,
            },
            first,
        },
        out,
    )
}

/// Appends a frame with an `InternalInvokeResponseStream` that opens an answer, by the rules of [`encode_request`].
pub fn encode_response<'h, 't>(
    head: &ResponseParts<'_>,
    headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    trailers: impl IntoIterator<Item = (&'t str, &'t [u8])>,
    first: Option<Chunk>,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let (headers, trailers) = (grouped(headers), grouped(trailers));
    frame(
        &Opening {
            head: &Response {
                head,
                headers: &headers,
                trailers: &trailers,
            },
            first,
        },
        out,
    )
}

/// Appends all of a frame but the chunk's data, of which `chunk.len` bytes must follow. Serves both directions.
pub fn encode_chunk(chunk: Chunk, out: &mut BytesMut) -> Result<(), FrameError> {
    frame(&Payload(chunk), out)
}

fn frame(message: &impl Part, out: &mut BytesMut) -> Result<(), FrameError> {
    let Count { len, elsewhere } = counted(message);
    let prefix = u32::try_from(len).map_err(|_| FrameError::TooLarge {
        len,
        max: u32::MAX as usize,
    })?;
    out.reserve(FRAME_PREFIX + len - elsewhere);
    out.extend_from_slice(&[0]);
    out.extend_from_slice(&prefix.to_be_bytes());
    message.put(out);
    Ok(())
}

/// Brings the values of each name together: a repeated key of a protobuf map would replace the earlier one.
fn grouped<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Vec<Entry<'a>> {
    let mut entries: Vec<_> = entries.into_iter().collect();
    let apart = |i: usize| {
        let (name, _) = entries[i];
        entries[i - 1].0 != name && entries[..i - 1].iter().any(|(earlier, _)| *earlier == name)
    };
    if entries.len() > 64 || (1..entries.len()).any(apart) {
        entries.sort_by_key(|(name, _)| *name);
    }
    entries
}

/// Where encoded bytes go: a buffer, or a counter.
trait Sink {
    fn raw(&mut self, bytes: &[u8]);
    /// Bytes that belong to the message but are sent by the caller.
    fn elsewhere(&mut self, len: usize);
}

impl Sink for BytesMut {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
    fn elsewhere(&mut self, _len: usize) {}
}

#[derive(Default)]
struct Count {
    len: usize,
    elsewhere: usize,
}

impl Sink for Count {
    fn raw(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len());
    }
    fn elsewhere(&mut self, len: usize) {
        self.elsewhere = len;
        self.len = self.len.saturating_add(len);
    }
}

/// A message, or some fields of one.
trait Part {
    fn put(&self, sink: &mut impl Sink);
}

fn counted(part: &impl Part) -> Count {
    let mut count = Count::default();
    part.put(&mut count);
    count
}

fn varint(sink: &mut impl Sink, mut value: u64) {
    let mut buffer = [0; 10];
    let mut len = 0;
    while value >= 0x80 {
        buffer[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    buffer[len] = value as u8;
    sink.raw(&buffer[..=len]);
}

/// A number; proto3 does not write the default.
fn number(sink: &mut impl Sink, field: u8, value: u64) {
    if value != 0 {
        sink.raw(&[field << 3]);
        varint(sink, value);
    }
}

fn delimited(sink: &mut impl Sink, field: u8, len: usize) {
    sink.raw(&[field << 3 | 2]);
    varint(sink, len as u64);
}

fn bytes(sink: &mut impl Sink, field: u8, value: &[u8]) {
    delimited(sink, field, value.len());
    sink.raw(value);
}

/// A string; proto3 does not write the default.
fn text(sink: &mut impl Sink, field: u8, value: &str) {
    if !value.is_empty() {
        bytes(sink, field, value.as_bytes());
    }
}

fn nested(sink: &mut impl Sink, field: u8, part: &impl Part) {
    delimited(sink, field, counted(part).len);
    part.put(sink);
}

/// A header value as a string of the protocol.
fn header_text(sink: &mut impl Sink, field: u8, value: &[u8]) {
    if str::from_utf8(value).is_ok() {
        return bytes(sink, field, value);
    }
    let latin: String = value.iter().map(|&byte| char::from(byte)).collect();
    bytes(sink, field, latin.as_bytes());
}

struct Opening<'a, H> {
    head: &'a H,
    first: Option<Chunk>,
}

impl<H: Part> Part for Opening<'_, H> {
    fn put(&self, sink: &mut impl Sink) {
        nested(sink, 1, self.head);
        if let Some(chunk) = self.first {
            Payload(chunk).put(sink);
        }
    }
}

/// The `payload` field, up to the data.
struct Payload(Chunk);

impl Part for Payload {
    fn put(&self, sink: &mut impl Sink) {
        nested(sink, 2, &StreamPayload(self.0));
    }
}

struct StreamPayload(Chunk);

impl Part for StreamPayload {
    fn put(&self, sink: &mut impl Sink) {
        // The data comes last, so that it can follow from elsewhere.
        number(sink, 2, self.0.seq);
        delimited(sink, 1, self.0.len);
        sink.elsewhere(self.0.len);
    }
}

struct Request<'a> {
    head: &'a RequestParts<'a>,
    metadata: &'a [Entry<'a>],
}

impl Part for Request<'_> {
    fn put(&self, sink: &mut impl Sink) {
        number(sink, 1, crate::internals::v1::ApiVersion::V1 as u64);
        metadata(sink, 2, self.metadata);
        nested(sink, 3, &InvokeRequest(self.head));
        if let Some((kind, id)) = self.head.actor {
            nested(sink, 4, &Actor { kind, id });
        }
    }
}

struct InvokeRequest<'a>(&'a RequestParts<'a>);

impl Part for InvokeRequest<'_> {
    fn put(&self, sink: &mut impl Sink) {
        text(sink, 1, self.0.method);
        any(sink, 2, self.0.type_url);
        content_type(sink, 3, self.0.content_type);
        nested(
            sink,
            4,
            &HttpExtension {
                verb: self.0.verb,
                query: self.0.query,
            },
        );
    }
}

struct HttpExtension<'a> {
    verb: Verb,
    query: &'a str,
}

impl Part for HttpExtension<'_> {
    fn put(&self, sink: &mut impl Sink) {
        number(sink, 1, self.verb as u64);
        text(sink, 2, self.query);
    }
}

struct Actor<'a> {
    kind: &'a str,
    id: &'a str,
}

impl Part for Actor<'_> {
    fn put(&self, sink: &mut impl Sink) {
        text(sink, 1, self.kind);
        text(sink, 2, self.id);
    }
}

struct Response<'a> {
    head: &'a ResponseParts<'a>,
    headers: &'a [Entry<'a>],
    trailers: &'a [Entry<'a>],
}

impl Part for Response<'_> {
    fn put(&self, sink: &mut impl Sink) {
        nested(sink, 1, &Status(self.head));
        metadata(sink, 2, self.headers);
        metadata(sink, 3, self.trailers);
        nested(sink, 4, &InvokeResponse(self.head));
    }
}

struct Status<'a>(&'a ResponseParts<'a>);

impl Part for Status<'_> {
    fn put(&self, sink: &mut impl Sink) {
        // int32: a negative number is written with 64 bits.
        number(sink, 1, i64::from(self.0.status_code) as u64);
        text(sink, 2, self.0.status_message);
        for detail in self.0.status_details {
            bytes(sink, 3, detail);
        }
    }
}

struct InvokeResponse<'a>(&'a ResponseParts<'a>);

impl Part for InvokeResponse<'_> {
    fn put(&self, sink: &mut impl Sink) {
        any(sink, 1, self.0.type_url);
        content_type(sink, 2, self.0.content_type);
    }
}

/// `google.protobuf.Any` with a type and no value.
struct Any<'a>(&'a str);

impl Part for Any<'_> {
    fn put(&self, sink: &mut impl Sink) {
        text(sink, 1, self.0);
    }
}

fn any(sink: &mut impl Sink, field: u8, type_url: &str) {
    if !type_url.is_empty() {
        nested(sink, field, &Any(type_url));
    }
}

fn content_type(sink: &mut impl Sink, field: u8, value: &[u8]) {
    if !value.is_empty() {
        header_text(sink, field, value);
    }
}

fn metadata(sink: &mut impl Sink, field: u8, entries: &[Entry<'_>]) {
    for values in entries.chunk_by(|a, b| a.0 == b.0) {
        nested(sink, field, &MapEntry(values));
    }
}

/// An entry of `map<string, ListStringValue>`: the values of one name.
struct MapEntry<'a>(&'a [Entry<'a>]);

impl Part for MapEntry<'_> {
    fn put(&self, sink: &mut impl Sink) {
        text(sink, 1, self.0[0].0);
        nested(sink, 2, &ListStringValue(self.0));
    }
}

struct ListStringValue<'a>(&'a [Entry<'a>]);

impl Part for ListStringValue<'_> {
    fn put(&self, sink: &mut impl Sink) {
        for (_, value) in self.0 {
            header_text(sink, 1, value);
        }
    }
}
