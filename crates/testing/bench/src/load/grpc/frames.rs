//! Frames and their parts: RFC 9113 sections 4 and 6.

use bytes::BytesMut;
use outrigger_http2::frame::{Head, Kind, PREFACE, flag};

use super::Fault;

/// Default maximum payload of a frame; this side does not raise it.
pub(super) const FRAME: usize = 16_384;
/// Default windows.
pub(super) const WINDOW: i64 = 65_535;
/// Maximum window.
pub(super) const MAX_WINDOW: i64 = 0x7fff_ffff;
/// Our windows, which are larger than a sweep's payload, so that flow control is not measured.
pub(super) const STREAM_WINDOW: u32 = 4 << 20;
pub(super) const CONNECTION_WINDOW: u32 = 8 << 20;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(super) const MAX_FRAME_SIZE: u16 = 5;

/// Writes the client's preface.
pub(super) fn hello(out: &mut BytesMut) {
    out.extend_from_slice(PREFACE);
    let mut settings = Vec::new();
    for (id, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, STREAM_WINDOW)] {
        settings.extend_from_slice(&id.to_be_bytes());
        settings.extend_from_slice(&value.to_be_bytes());
    }
    frame(Kind::Settings, 0, 0, &settings, out);
    let more = CONNECTION_WINDOW - 65_535;
    frame(Kind::WindowUpdate, 0, 0, &more.to_be_bytes(), out);
}

/// Writes a frame. The payload must be below the maximum frame size.
pub(super) fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8], out: &mut BytesMut) {
    let head = Head {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&head.bytes());
    out.extend_from_slice(payload);
}

/// Returns received bytes to a window once they reach half of it.
pub(super) fn credit(taken: &mut u32, window: u32, stream: u32, out: &mut BytesMut) {
    if *taken >= window / 2 {
        frame(Kind::WindowUpdate, 0, stream, &taken.to_be_bytes(), out);
        *taken = 0;
    }
}

/// The number at the start of a payload.
pub(super) fn number(payload: &[u8]) -> Result<u32, Fault> {
    let first = payload.first_chunk();
    let number = first.map(|bytes| u32::from_be_bytes(*bytes));
    number.ok_or(Fault::Protocol("the peer sends a frame that is too short"))
}

/// The payload without padding.
pub(super) fn unpadded(head: Head, payload: &[u8]) -> Result<&[u8], Fault> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    payload
        .split_first()
        .and_then(|(&padding, rest)| rest.get(..rest.len().checked_sub(padding.into())?))
        .ok_or(Fault::Protocol("the peer sends more padding than payload"))
}

/// The field block fragment of a HEADERS frame.
pub(super) fn fragment(head: Head, payload: &[u8]) -> Result<&[u8], Fault> {
    let rest = unpadded(head, payload)?;
    if !head.has(flag::PRIORITY) {
        return Ok(rest);
    }
    rest.get(5..)
        .ok_or(Fault::Protocol("the peer sends a priority that is too short"))
}

/// A single frame.
#[cfg(test)]
pub(super) fn framed(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    frame(kind, flags, stream, payload, &mut out);
    out.to_vec()
}
