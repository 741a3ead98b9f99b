//! Frame construction, and a peer that records received frames.

use std::collections::BTreeMap;

use outrigger_http2::frame::{HEAD, Head, Kind, PREFACE, flag};
use outrigger_http2::hpack::{Decoder, Field};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(crate) const END: u8 = flag::END_STREAM;
pub(crate) const HEADERS_END: u8 = flag::END_HEADERS;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn string(text: &str, to: &mut Vec<u8>) {
    match u8::try_from(text.len()) {
        Ok(length) if length < 127 => to.push(length),
        _ => {
            to.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                to.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            to.push(u8::try_from(rest).unwrap());
        }
    }
    to.extend_from_slice(text.as_bytes());
}

/// A field block of literals without indexing.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        string(name, &mut block);
        string(value, &mut block);
    }
    block
}

pub(crate) fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, HEADERS_END | flags, stream, &block(fields))
}

pub(crate) fn post(stream: u32, path: &str, flags: u8, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "app"),
        (":path", path),
    ];
    headers(stream, flags, &[&pseudo, more].concat())
}

pub(crate) fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame(0, flags, stream, payload)
}

pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(3, 0, stream, &code.to_be_bytes())
}

pub(crate) fn setting(id: u16, value: u32) -> Vec<u8> {
    frame(4, 0, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

pub(crate) fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(8, 0, stream, &more.to_be_bytes())
}

pub(crate) fn go_away(last: u32, code: u32) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Data received on a stream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Stream {
    /// Fields of heads and trailers.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) bytes: usize,
    pub(crate) ended: bool,
    pub(crate) reset: Option<u32>,
}

/// Frames received by a peer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Received {
    pub(crate) streams: BTreeMap<u32, Stream>,
    /// The code of the last GOAWAY.
    pub(crate) go_away: Option<u32>,
    /// PING acknowledgements.
    pub(crate) pings: Vec<Vec<u8>>,
}

/// A scripted peer, which also sends the replies that the protocol requires.
pub(crate) struct Peer {
    writer: WriteHalf<DuplexStream>,
    frames: UnboundedReceiver<(Head, Vec<u8>)>,
    decoder: Decoder,
    reading: tokio::task::AbortHandle,
    pub(crate) received: Received,
    pub(crate) closed: bool,
}

async fn read(
    mut reader: ReadHalf<DuplexStream>,
    mut preface: usize,
    to: tokio::sync::mpsc::UnboundedSender<(Head, Vec<u8>)>,
) {
    let mut bytes = Vec::new();
    while reader.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        let skip = preface.min(bytes.len());
        bytes.drain(..skip);
        preface -= skip;
        while let Some(head) = Head::read(&bytes).filter(|head| bytes.len() >= HEAD + head.length) {
            let payload = bytes[HEAD..HEAD + head.length].to_vec();
            bytes.drain(..HEAD + head.length);
            let _gone = to.send((head, payload));
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Peer {
    /// A client's peer receives a preface first.
    pub(crate) fn new(io: DuplexStream, of_client: bool) -> Self {
        let (reader, writer) = tokio::io::split(io);
        let (to, frames) = unbounded_channel();
        let preface = if of_client { PREFACE.len() } else { 0 };
        let reading = tokio::spawn(read(reader, preface, to)).abort_handle();
        Self {
            writer,
            frames,
            decoder: Decoder::new(4096),
            reading,
            received: Received::default(),
            closed: false,
        }
    }

    /// Sends `input`, and waits until the connection is idle.
    pub(crate) async fn say(&mut self, input: &[u8]) {
        let _closed = self.writer.write_all(input).await;
        loop {
            super::settle().await;
            let mut answers = Vec::new();
            loop {
                match self.frames.try_recv() {
                    Ok((head, payload)) => self.take(head, &payload, &mut answers),
                    Err(tokio::sync::mpsc::error::TryRecvError::Empty) => break,
                    Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                        self.closed = true;
                        return;
                    }
                }
            }
            if answers.is_empty() {
                return;
            }
            let _closed = self.writer.write_all(&answers).await;
        }
    }

    fn take(&mut self, head: Head, payload: &[u8], answers: &mut Vec<u8>) {
        if head.kind == Kind::Settings && !head.has(flag::ACK) {
            answers.extend(frame(4, flag::ACK, 0, &[]));
        }
        if head.kind == Kind::Ping {
            if head.has(flag::ACK) {
                self.received.pings.push(payload.to_vec());
            } else {
                answers.extend(frame(6, flag::ACK, 0, payload));
            }
        }
        if head.kind == Kind::GoAway {
            self.received.go_away = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        if head.stream == 0 || head.kind == Kind::WindowUpdate {
            return;
        }
        let stream = self.received.streams.entry(head.stream).or_default();
        match head.kind {
            Kind::Headers => {
                assert!(head.has(HEADERS_END), "no answer is that large");
                let fields = &mut stream.fields;
                let emit = |field| fields.push(text(field));
                self.decoder.decode(payload, usize::MAX, emit).unwrap();
            }
            Kind::Data => stream.bytes += payload.len(),
            Kind::Reset => stream.reset = Some(u32::from_be_bytes(payload.try_into().unwrap())),
            _ => {}
        }
        stream.ended |= matches!(head.kind, Kind::Headers | Kind::Data) && head.has(END);
    }
}

fn text(field: Field) -> (String, String) {
    match field {
        Field::Header(name, value) => (name.to_string(), value.to_str().unwrap().to_owned()),
        Field::Status(status) => (":status".to_owned(), status.as_str().to_owned()),
        Field::Method(method) => (":method".to_owned(), method.to_string()),
        Field::Path(path) => (":path".to_owned(), String::from_utf8(path.to_vec()).unwrap()),
        other => (format!("{other:?}"), String::new()),
    }
}
