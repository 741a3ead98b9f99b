//! Incomplete requests that are never finished, more than a server can hold. Sent within the server's
//! windows: data taken off a connection to wait for the rest returns its window.

use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join_all;

use super::Run::Do;
use super::Verdict::Bounded;
use super::{Attack, attack};
use crate::h1;
use crate::h2::{ACK, END_HEADERS, END_STREAM, fields_of, frame, frames, headers, hello, kind};
use crate::listeners::Protocol::{Grpc, State};
use crate::peer::{Peer, Received, Sent, Target};

/// Declared size of requests, just below the servers' limit, and the bytes sent of it.
const SIZE: usize = (4 << 20) - 4096;
const SENT: usize = SIZE - (100 << 10);
/// Default windows (RFC 9113, section 6.9.2), and the identifier of their setting.
const WINDOW: usize = 65_535;
const INITIAL_WINDOW: u16 = 4;
const PIECE: usize = 16_384;
/// More than any server keeps of incomplete requests.
const KEPT_BY_NONE: usize = 1100 << 20;
/// Silence after which the server has accepted all it will.
const QUIET: Duration = Duration::from_secs(1);
/// Maximum duration of sending.
const LONG: Duration = Duration::from_secs(25);
const STORE: &str = "/v1.0/state/store";
/// Index of the method in the static table.
const POST: u8 = 0x83;

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "incomplete calls on one connection",
        Grpc,
        Do(|target| calls(target, 1, 400).boxed()),
        Bounded,
        (1_100, 30_000),
    ),
    attack(
        "incomplete calls on many connections",
        Grpc,
        Do(|target| calls(target, 24, 16).boxed()),
        Bounded,
        (1_300, 40_000),
    ),
    attack(
        "started calls up to the limit of all connections",
        Grpc,
        Do(|target| begun(target, 16, 4096).boxed()),
        Bounded,
        (450, 60_000),
    ),
    attack(
        "incomplete bodies on streams of one connection",
        State,
        Do(|target| bodies(target, 400).boxed()),
        Bounded,
        (1_100, 30_000),
    ),
    attack(
        "incomplete bodies on many connections",
        State,
        Do(|target| bodies_on_connections(target, 300).boxed()),
        Bounded,
        (1_300, 30_000),
    ),
];

/// Starts honest calls on `streams` streams of each of `connections` connections.
async fn calls(target: Target, connections: usize, streams: u32) -> Received {
    let (listener, opening) = (target.listener, opening());
    let open = |stream| headers(listener, stream, false);
    let all: Vec<_> = (0..connections)
        .map(|_| send(&target, streams, &opening, open))
        .collect();
    let all = join_all(all).await;
    refused(
        all.iter().map(|one| one.0).sum(),
        all.iter().map(|one| one.1).sum(),
    )
}

/// Starts calls with one byte of their message, on `streams` streams of each of `connections` connections.
async fn begun(target: Target, connections: usize, streams: u32) -> Received {
    let listener = target.listener;
    let mut input = hello(&[]);
    for number in 0..streams {
        let id = 1 + 2 * number;
        input.extend(headers(listener, id, false));
        input.extend(frame(kind::DATA, 0, id, &[0, 0, 0, 1, 0, 0x0a]));
    }
    let mut peers = Vec::new();
    for _ in 0..connections {
        let Ok(mut peer) = target.connect().await else {
            continue;
        };
        // A connection that was closed has started some calls.
        let _sent = peer.send(&input).await;
        peers.push(peer);
    }
    // By then the server has accepted all it will.
    for peer in &mut peers {
        let mut last = peer.receive(QUIET, |news| !news.is_empty()).await;
        while !last.closed && !last.bytes.is_empty() {
            last = peer.receive(QUIET / 4, |news| !news.is_empty()).await;
        }
    }
    Received::default()
}

/// The start of a message with one unknown field.
fn opening() -> Vec<u8> {
    // The key and length of the field take five bytes.
    let (mut length, mut field) = (SIZE - 5, vec![(15 << 3) | 2]);
    while length >= 0x80 {
        field.push(u8::try_from(length % 0x80).unwrap() | 0x80);
        length /= 0x80;
    }
    field.push(u8::try_from(length).unwrap());
    let message = u32::try_from(SIZE).unwrap().to_be_bytes();
    [&[0], &message[..], &field].concat()
}

/// Save-state requests on `streams` streams.
async fn bodies(target: Target, streams: u32) -> Received {
    let fields = fields_of(target.listener, POST, STORE);
    let open = |stream| frame(kind::HEADERS, END_HEADERS, stream, &fields);
    let (ended, sent) = send(&target, streams, b"[", open).await;
    refused(ended, sent)
}

/// A server that accepted more bytes than any may keep, and ended no request, fails. One that accepts them
/// slowly only has its memory ceiling.
fn refused(ended: usize, sent: usize) -> Received {
    Received {
        wrong: (ended == 0 && sent > KEPT_BY_NONE).then(|| "no request was refused".to_owned()),
        ..Received::default()
    }
}

/// Opens streams and sends nearly all of a body on each, round robin. Returns the number of streams that
/// the server has ended, and the bytes sent on all.
async fn send(
    target: &Target,
    streams: u32,
    opening: &[u8],
    open: impl Fn(u32) -> Vec<u8>,
) -> (usize, usize) {
    let Ok(mut peer) = target.connect().await else {
        return (0, 0);
    };
    let mut input = hello(&[]);
    let mut sending = Sending::default();
    for number in 0..streams {
        let id = 1 + 2 * number;
        input.extend(open(id));
        input.extend(frame(kind::DATA, 0, id, opening));
        sending.sent(id, opening.len());
    }
    if peer.send(&input).await != Sent::All {
        return (0, 0);
    }
    let (begun, mut received) = (Instant::now(), Instant::now());
    while begun.elapsed() < LONG && received.elapsed() < QUIET {
        let input = sending.pieces();
        let patience = match input.is_empty() {
            true => QUIET / 4,
            false => Duration::from_millis(1),
        };
        if peer.send(&input).await != Sent::All {
            break;
        }
        match sending.receive(&mut peer, patience).await {
            Some(0) if input.is_empty() => {}
            Some(_) => received = Instant::now(),
            None => break,
        }
    }
    (
        sending.over(),
        sending.streams.iter().map(|stream| stream.sent).sum(),
    )
}

/// The streams of a connection, and their windows.
struct Sending {
    /// A partial frame.
    rest: Vec<u8>,
    /// Window of the connection, and initial window of a stream.
    room: usize,
    initial: usize,
    streams: Vec<Stream>,
}

#[derive(Default)]
struct Stream {
    id: u32,
    sent: usize,
    /// Increase of its initial window.
    allowed: usize,
    over: bool,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            rest: Vec::new(),
            room: WINDOW,
            initial: WINDOW,
            streams: Vec::new(),
        }
    }
}

impl Sending {
    /// Records data sent on a stream.
    fn sent(&mut self, id: u32, sent: usize) {
        self.room -= sent;
        self.streams.push(Stream {
            id,
            sent,
            ..Stream::default()
        });
    }

    /// The next piece of each stream with an open window.
    fn pieces(&mut self) -> Vec<u8> {
        let mut input = Vec::new();
        for stream in self.streams.iter_mut().filter(|stream| !stream.over) {
            let allowed = (self.initial + stream.allowed).min(SENT);
            let piece = allowed.saturating_sub(stream.sent).min(PIECE).min(self.room);
            if piece > 0 {
                input.extend(frame(kind::DATA, 0, stream.id, &[b' '; PIECE][..piece]));
                stream.sent += piece;
                self.room -= piece;
            }
        }
        input
    }

    /// Receives data, if any arrives in time, and sends the required replies. Returns the number of bytes;
    /// `None` once the connection is closed.
    async fn receive(&mut self, peer: &mut Peer, patience: Duration) -> Option<usize> {
        let news = peer.receive(patience, |news| !news.is_empty()).await;
        self.rest.extend_from_slice(&news.bytes);
        let answers = self.take();
        if news.closed || peer.send(&answers).await != Sent::All {
            return None;
        }
        Some(news.bytes.len())
    }

    /// Processes received complete frames; returns the replies.
    fn take(&mut self) -> Vec<u8> {
        let rest = std::mem::take(&mut self.rest);
        let (mut read, mut answers) = (0, Vec::new());
        for received in frames(&rest) {
            read += 9 + received.payload.len();
            match received.kind {
                kind::WINDOW if received.stream == 0 => self.room += number(received.payload),
                kind::WINDOW => {
                    if let Some(stream) = self.stream(received.stream) {
                        stream.allowed += number(received.payload);
                    }
                }
                kind::SETTINGS if received.flags & ACK == 0 => {
                    let mut settings = received.payload.chunks_exact(6);
                    if let Some(window) =
                        settings.find(|setting| setting[..2] == INITIAL_WINDOW.to_be_bytes())
                    {
                        self.initial = number(&window[2..]);
                    }
                    answers.extend(frame(kind::SETTINGS, ACK, 0, &[]));
                }
                kind::PING if received.flags & ACK == 0 => {
                    answers.extend(frame(kind::PING, ACK, 0, received.payload));
                }
                kind::RESET => self.end(received.stream),
                kind::HEADERS | kind::DATA if received.flags & END_STREAM != 0 => self.end(received.stream),
                _ => {}
            }
        }
        self.rest = rest[read..].to_vec();
        answers
    }

    fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id)
    }

    fn end(&mut self, id: u32) {
        if let Some(stream) = self.stream(id) {
            stream.over = true;
        }
    }

    /// Number of streams that the server has ended.
    fn over(&self) -> usize {
        self.streams.iter().filter(|stream| stream.over).count()
    }
}

fn number(payload: &[u8]) -> usize {
    payload
        .try_into()
        .map_or(0, |number| u32::from_be_bytes(number) as usize)
}

/// Save-state requests, one on each of many HTTP/1.1 connections. The last one finds no room.
async fn bodies_on_connections(target: Target, connections: usize) -> Received {
    let head = format!("POST {STORE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SIZE}\r\n\r\n[");
    let input = [head.as_bytes(), &vec![b' '; SENT]].concat();
    let mut peers = Vec::new();
    for _ in 0..connections {
        let Ok(mut peer) = target.connect().await else {
            continue;
        };
        // A rejected connection is closed.
        let _taken = peer.send(&input).await;
        peers.push(peer);
    }
    let Some(mut last) = peers.pop() else {
        return Received {
            wrong: Some("not connected".to_owned()),
            ..Received::default()
        };
    };
    // The kernel buffers most of the data: a busy server reads a gigabyte before it reaches the last
    // connection.
    let mut received = last.receive(LONG, h1::is_answered).await;
    if h1::statuses(&received) != [503] {
        received.wrong = Some(format!(
            "the last of them was answered with {:?}",
            h1::statuses(&received)
        ));
    }
    received
}
