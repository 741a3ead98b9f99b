//! HTTP/2: requests that would change their meaning in HTTP/1.1, and invalid field blocks.

use super::Run::SendBytes;
use super::Verdict::{Ends, StreamRefused};
use super::{Attack, FLOOD, LITTLE, attack};
use crate::h2::{
    END_HEADERS, END_STREAM, field, fields, frame, hello, integer, kind, remembered, setting, window,
};
use crate::listeners::Listener;
use crate::listeners::Protocol::Http2;

/// A row: an honest request with one additional field.
macro_rules! with_field {
    ($name:literal, $field:literal, $value:expr) => {
        attack(
            $name,
            Http2,
            SendBytes(|listener| request_with(listener, |block| field(block, $field, $value))),
            StreamRefused,
            LITTLE,
        )
    };
}

/// A row: a field block in place of an honest one.
macro_rules! block {
    ($name:literal, $verdict:ident, |$listener:ident| $block:expr) => {
        attack(
            $name,
            Http2,
            SendBytes(|$listener| {
                let block: Vec<u8> = $block;
                [
                    hello(&[]),
                    frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block),
                ]
                .concat()
            }),
            $verdict,
            LITTLE,
        )
    };
}

pub(super) const ATTACKS: &[Attack] = &[
    with_field!("CR LF in a value", "x-a", b"a\r\nx-injected: b"),
    with_field!("LF in a value", "x-a", b"a\nx-injected: b"),
    with_field!("CR in a value", "x-a", b"a\rx-injected: b"),
    with_field!("NUL in a value", "x-a", b"a\0b"),
    with_field!("CR LF in a name", "x-a: b\r\nx-injected", b"c"),
    with_field!("a colon in a name", "x-a:b", b"c"),
    with_field!("a name in upper case", "X-A", b"a"),
    with_field!("an empty name", "", b"a"),
    with_field!("transfer-encoding", "transfer-encoding", b"chunked"),
    with_field!("connection", "connection", b"x-a"),
    with_field!("te that is not trailers", "te", b"chunked"),
    with_field!("a second path", ":path", b"/"),
    with_field!("a pseudo-field after regular fields", ":authority", b"elsewhere"),
    with_field!("an unknown pseudo-field", ":injected", b"a"),
    with_field!("an invalid content-length", "content-length", b"1, 2"),
    with_field!("a content-length without a body", "content-length", b"7"),
    block!("a path that contains a request", StreamRefused, |l| with_path(
        l,
        b"/ HTTP/1.1\r\nHost: localhost\r\n\r\nGET /smuggled"
    )),
    block!("a path with a space", StreamRefused, |l| with_path(l, b"/a b")),
    block!("an empty path", StreamRefused, |l| with_path(l, b"")),
    block!("a method with a space", StreamRefused, |_l| {
        let mut block = Vec::new();
        field(&mut block, ":method", b"GET /smuggled HTTP/1.1\r\nX:");
        field(&mut block, ":path", b"/");
        field(&mut block, ":scheme", b"http");
        block
    }),
    block!("no fields", StreamRefused, |_l| Vec::new()),
    block!("an index that is too large", Ends, |_l| vec![0xff, 0x80, 0x01]),
    block!("index 0", Ends, |_l| vec![0x80]),
    block!("an unterminated integer", Ends, |_l| [&[0xff][..], &[0xff; 64]]
        .concat()),
    block!("a string longer than its block", Ends, |_l| {
        let mut block = vec![0];
        integer(&mut block, 0, 0x7f, 1 << 30);
        block
    }),
    block!("a Huffman string of only padding", Ends, |_l| vec![
        0, 0x84, 0xff, 0xff, 0xff, 0xff, 0
    ]),
    block!("a table larger than announced", Ends, |_l| {
        let mut block = Vec::new();
        integer(&mut block, 0x20, 0x1f, 1 << 30);
        block
    }),
    attack("a frame of 16 MiB", Http2, SendBytes(large_frame), Ends, LITTLE),
    attack(
        "a window that overflows",
        Http2,
        SendBytes(|_| overflow(0)),
        Ends,
        LITTLE,
    ),
    attack(
        "settings that are too large",
        Http2,
        SendBytes(|_| large_settings()),
        Ends,
        LITTLE,
    ),
    attack(
        "ten thousand settings",
        Http2,
        SendBytes(|_| many_settings()),
        super::Verdict::Bounded,
        LITTLE,
    ),
    attack(
        "16 KiB of references to 4 KiB",
        Http2,
        SendBytes(bomb),
        StreamRefused,
        FLOOD,
    ),
    attack("a megabyte of cookies", Http2, SendBytes(cookies), Ends, FLOOD),
];

fn request_with(listener: &Listener, more: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut block = fields(listener);
    more(&mut block);
    [
        hello(&[]),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block),
    ]
    .concat()
}

fn with_path(_listener: &Listener, path: &[u8]) -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    field(&mut block, ":path", path);
    field(&mut block, ":authority", b"localhost");
    block
}

fn large_frame(_listener: &Listener) -> Vec<u8> {
    let head = [0xff, 0xff, 0xff, kind::HEADERS, END_HEADERS, 0, 0, 0, 1];
    [&hello(&[])[..], &head, &[0; 1024]].concat()
}

fn overflow(stream: u32) -> Vec<u8> {
    [
        hello(&[]),
        window(stream, 0x7fff_ffff),
        window(stream, 0x7fff_ffff),
    ]
    .concat()
}

fn large_settings() -> Vec<u8> {
    hello(&[setting(4, u32::MAX)])
}

/// In several frames below the size limit.
fn many_settings() -> Vec<u8> {
    let frames = frame(kind::SETTINGS, 0, 0, &setting(3, 1).repeat(60));
    [hello(&[]), frames.repeat(170)].concat()
}

/// One indexed field of 4 KB and 15,000 references to it: 60 MB decoded.
fn bomb(listener: &Listener) -> Vec<u8> {
    let mut block = fields(listener);
    remembered(&mut block, "x-a", &[b'a'; 3900]);
    block.resize(block.len() + 11_000, 0xbe);
    [
        hello(&[]),
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block),
    ]
    .concat()
}

fn cookies(listener: &Listener) -> Vec<u8> {
    let mut block = fields(listener);
    for _ in 0..60_000 {
        field(&mut block, "cookie", b"a=aaaaaaaa");
    }
    let mut input = hello(&[]);
    let pieces: Vec<&[u8]> = block.chunks(16_000).collect();
    for (index, piece) in pieces.iter().enumerate() {
        let kind = if index == 0 {
            kind::HEADERS
        } else {
            kind::CONTINUATION
        };
        let last = if index + 1 == pieces.len() { END_HEADERS } else { 0 };
        input.extend(frame(
            kind,
            last | if index == 0 { END_STREAM } else { 0 },
            1,
            piece,
        ));
    }
    input
}
