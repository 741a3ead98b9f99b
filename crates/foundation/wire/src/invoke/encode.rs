//! Encoding of stream messages.
//!
//! Protobuf writes a message's length before its content. The encoder reserves space for the shortest
//! length; content that turns out longer is moved, which is cheaper than computing its length first.

use std::str;

use bytes::{BufMut, BytesMut};
use http::HeaderMap;
use outrigger_grpc::frame::Prefix;

use super::head::{RequestParts, ResponseParts};
use super::{FRAME_PREFIX, FrameError, Verb};

/// A header: its name and one value.
type Entry<'a> = (&'a str, &'a [u8]);

/// A chunk of a body, which the caller sends itself, directly after the encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Sequence number of the chunks with data, from 0, per direction.
    pub seq: u64,
    /// Length in bytes. Peers reject messages above their body limit (by default 4 MiB, including the
    /// head).
    pub len: usize,
}

/// The entries of a header map, for the encoders.
pub fn entries(map: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// Appends a frame with an `InternalInvokeRequestStream` that opens a call.
///
/// With a chunk, exactly `first.len` bytes of data must follow the appended bytes. Values of the same name
/// must be adjacent, as in a header map, and keep their order. Values that are not UTF-8, which the
/// protocol cannot represent, are interpreted as ISO 8859-1.
pub fn encode_request<'m>(
    head: &RequestParts<'_>,
    metadata: impl IntoIterator<Item = (&'m str, &'m [u8])>,
    first: Option<Chunk>,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    opening(first, out, |out| request(head, metadata, out))
}

/// Appends a frame with an `InternalInvokeResponseStream` that opens a response, by the rules of
/// [`encode_request`].
pub fn encode_response<'h, 't>(
    head: &ResponseParts<'_>,
    headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
    trailers: impl IntoIterator<Item = (&'t str, &'t [u8])>,
    first: Option<Chunk>,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    opening(first, out, |out| response(head, headers, trailers, out))
}

/// Appends a frame except its data, of which `chunk.len` bytes must follow. Used in both directions.
pub fn encode_chunk(chunk: Chunk, out: &mut BytesMut) -> Result<(), FrameError> {
    frame(chunk.len, out, |out| payload(chunk, out))
}

fn opening(
    first: Option<Chunk>,
    out: &mut BytesMut,
    head: impl FnOnce(&mut BytesMut),
) -> Result<(), FrameError> {
    frame(first.map_or(0, |chunk| chunk.len), out, |out| {
        nested(out, 1, head);
        if let Some(chunk) = first {
            payload(chunk, out);
        }
    })
}

/// A frame around a message whose last `elsewhere` bytes are sent by the caller.
fn frame(
    elsewhere: usize,
    out: &mut BytesMut,
    message: impl FnOnce(&mut BytesMut),
) -> Result<(), FrameError> {
    let start = out.len();
    out.put_bytes(0, FRAME_PREFIX);
    message(out);
    let content = start + FRAME_PREFIX;
    let len = (out.len() - content).saturating_add(elsewhere);
    let Some(prefix) = Prefix::write(len) else {
        out.truncate(start);
        let max = u32::MAX as usize;
        return Err(FrameError::TooLarge { len, max });
    };
    out[start..content].copy_from_slice(&prefix);
    Ok(())
}

/// Encodes a varint; returns the bytes and their number.
fn varint(mut value: u64) -> ([u8; 10], usize) {
    let mut buffer = [0; 10];
    let mut len = 0;
    while value >= 0x80 {
        buffer[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    buffer[len] = value as u8;
    (buffer, len + 1)
}

fn put_varint(out: &mut BytesMut, value: u64) {
    if value < 0x80 {
        return out.put_u8(value as u8);
    }
    let (bytes, len) = varint(value);
    out.put_slice(&bytes[..len]);
}

/// A number; proto3 omits the default.
fn number(out: &mut BytesMut, field: u8, value: u64) {
    if value != 0 {
        out.put_u8(field << 3);
        put_varint(out, value);
    }
}

fn delimited(out: &mut BytesMut, field: u8, len: usize) {
    out.put_u8(field << 3 | 2);
    put_varint(out, len as u64);
}

fn bytes(out: &mut BytesMut, field: u8, value: &[u8]) {
    delimited(out, field, value.len());
    out.put_slice(value);
}

/// A string; proto3 omits the default.
fn text(out: &mut BytesMut, field: u8, value: &str) {
    if !value.is_empty() {
        bytes(out, field, value.as_bytes());
    }
}

fn nested(out: &mut BytesMut, field: u8, content: impl FnOnce(&mut BytesMut)) {
    out.put_slice(&[field << 3 | 2, 0]);
    let start = out.len();
    content(out);
    let end = out.len();
    let (length, width) = varint((end - start) as u64);
    if width > 1 {
        out.put_bytes(0, width - 1);
        out.copy_within(start..end, start + width - 1);
    }
    out[start - 1..start - 1 + width].copy_from_slice(&length[..width]);
}

/// A header value as a string.
fn header_text(out: &mut BytesMut, field: u8, value: &[u8]) {
    if value.is_ascii() || str::from_utf8(value).is_ok() {
        return bytes(out, field, value);
    }
    let latin: String = value.iter().map(|&byte| char::from(byte)).collect();
    bytes(out, field, latin.as_bytes());
}

/// The `payload` field, up to the data. The data is last, so that it can be sent separately.
fn payload(chunk: Chunk, out: &mut BytesMut) {
    let seq = (chunk.seq != 0).then(|| varint(chunk.seq));
    let (length, width) = varint(chunk.len as u64);
    let before_data = seq.map_or(0, |(_, width)| 1 + width) + 1 + width;
    delimited(out, 2, before_data.saturating_add(chunk.len));
    if let Some((seq, width)) = seq {
        out.put_u8(2 << 3);
        out.put_slice(&seq[..width]);
    }
    out.put_u8(1 << 3 | 2);
    out.put_slice(&length[..width]);
}

/// `InternalInvokeRequest`.
fn request<'m>(head: &RequestParts<'_>, entries: impl IntoIterator<Item = Entry<'m>>, out: &mut BytesMut) {
    number(out, 1, crate::internals::v1::ApiVersion::V1 as u64);
    metadata(out, 2, entries);
    nested(out, 3, |out| invoke_request(head, out));
    if let Some((kind, id)) = head.actor {
        nested(out, 4, |out| {
            text(out, 1, kind);
            text(out, 2, id);
        });
    }
}

/// `InvokeRequest`.
fn invoke_request(head: &RequestParts<'_>, out: &mut BytesMut) {
    text(out, 1, head.method);
    any(out, 2, head.type_url);
    content_type(out, 3, head.content_type);
    nested(out, 4, |out| http_extension(head.verb, head.query, out));
}

/// `HTTPExtension`.
fn http_extension(verb: Verb, query: &str, out: &mut BytesMut) {
    number(out, 1, verb as u64);
    text(out, 2, query);
}

/// `InternalInvokeResponse`.
fn response<'h, 't>(
    head: &ResponseParts<'_>,
    headers: impl IntoIterator<Item = Entry<'h>>,
    trailers: impl IntoIterator<Item = Entry<'t>>,
    out: &mut BytesMut,
) {
    nested(out, 1, |out| status(head, out));
    metadata(out, 2, headers);
    metadata(out, 3, trailers);
    nested(out, 4, |out| {
        any(out, 1, head.type_url);
        content_type(out, 2, head.content_type);
    });
}

/// `Status`.
fn status(head: &ResponseParts<'_>, out: &mut BytesMut) {
    // int32: a negative number is encoded with 64 bits.
    number(out, 1, i64::from(head.status_code) as u64);
    text(out, 2, head.status_message);
    for detail in head.status_details {
        bytes(out, 3, detail);
    }
}

/// `google.protobuf.Any` with a type and no value.
fn any(out: &mut BytesMut, field: u8, type_url: &str) {
    if !type_url.is_empty() {
        nested(out, field, |out| text(out, 1, type_url));
    }
}

fn content_type(out: &mut BytesMut, field: u8, value: &[u8]) {
    if !value.is_empty() {
        header_text(out, field, value);
    }
}

/// A `map<string, ListStringValue>`: an entry holds all values of a name, because a repeated key would
/// replace the earlier entry.
fn metadata<'a>(out: &mut BytesMut, field: u8, entries: impl IntoIterator<Item = Entry<'a>>) {
    let mut entries = entries.into_iter().peekable();
    while let Some((name, first)) = entries.next() {
        nested(out, field, |out| {
            text(out, 1, name);
            nested(out, 2, |out| {
                header_text(out, 1, first);
                while let Some((_, value)) = entries.next_if(|(next, _)| *next == name) {
                    header_text(out, 1, value);
                }
            });
        });
    }
}
