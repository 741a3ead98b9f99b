//! The state of a connection: received frames and queued output.

use bytes::BytesMut;
use http::{HeaderValue, StatusCode};
use outrigger_http2::frame::{Head, Kind, flag};
use outrigger_http2::hpack::{Decoder, Encoder, Field};
use tokio::time::Instant;

use super::Fault;
use super::frames::{
    CONNECTION_WINDOW, FRAME, HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_WINDOW,
    STREAM_WINDOW, WINDOW, credit, fragment, frame, hello, number, unpadded,
};
use crate::load::call::Call;
use crate::load::connection::CallError;

/// Approximate bytes per write.
const BATCH: usize = 256 << 10;
/// Bytes of a header block, and of its decoded list.
const LIST: usize = 256 << 10;
/// Default size of the peer's dynamic table.
const TABLE: usize = 4096;
const LAST_STREAM: u32 = 0x7fff_ffff;

pub(super) struct Link {
    out: BytesMut,
    /// Whether `out` has replies that the peer waits for.
    asked: bool,
    encoder: Encoder,
    decoder: Decoder,
    /// Send windows of the connection and of new streams, and the maximum frame size.
    window: i64,
    stream_window: i64,
    frame: usize,
    /// Bytes received on the connection, not yet returned to its window.
    taken: u32,
    next_stream: u32,
    /// A header block without END_HEADERS, and the flags of its first frame.
    open: Option<(u8, BytesMut)>,
    leaving: Option<u32>,
    call: Exchange,
}

/// A call in progress.
struct Exchange {
    stream: u32,
    window: i64,
    /// Bytes of the body sent.
    sent: usize,
    received: usize,
    /// Bytes received on the stream, not yet returned to its window.
    taken: u32,
    head: Option<Instant>,
    status: Option<HeaderValue>,
    message: Option<HeaderValue>,
    ended: bool,
}

impl Exchange {
    fn new(stream: u32, window: i64) -> Self {
        Self {
            stream,
            window,
            sent: 0,
            received: 0,
            taken: 0,
            head: None,
            status: None,
            message: None,
            ended: false,
        }
    }
}

impl Link {
    /// A link with the preface in [`out`](Self::out).
    pub(super) fn new() -> Self {
        let mut out = BytesMut::new();
        hello(&mut out);
        let mut call = Exchange::new(0, 0);
        call.ended = true;
        Self {
            out,
            asked: false,
            encoder: Encoder::new(),
            decoder: Decoder::new(TABLE),
            window: WINDOW,
            stream_window: WINDOW,
            frame: FRAME,
            taken: 0,
            next_stream: 1,
            open: None,
            leaving: None,
            call,
        }
    }

    /// The output buffer.
    pub(super) fn out(&mut self) -> &mut BytesMut {
        &mut self.out
    }

    /// Whether the peer waits for something in [`out`](Self::out). Resets the flag.
    pub(super) fn is_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked) && !self.out.is_empty()
    }

    /// Starts a call.
    ///
    /// # Errors
    ///
    /// If the connection accepts no new calls.
    pub(super) fn begin(&mut self, call: &Call) -> Result<(), Fault> {
        if let Some(code) = self.leaving {
            return Err(Fault::GoAway(code));
        }
        if !self.call.ended || self.next_stream > LAST_STREAM {
            return Err(Fault::Protocol("the connection has no stream identifiers left"));
        }
        self.call = Exchange::new(self.next_stream, self.stream_window);
        self.next_stream += 2;
        let block = self.block(call);
        let mut chunks = block.chunks(self.frame).peekable();
        let mut kind = Kind::Headers;
        while let Some(chunk) = chunks.next() {
            let mut flags = 0;
            if chunks.peek().is_none() {
                flags |= flag::END_HEADERS;
            }
            if kind == Kind::Headers && call.body().is_empty() {
                flags |= flag::END_STREAM;
            }
            frame(kind, flags, self.call.stream, chunk, &mut self.out);
            kind = Kind::Continuation;
        }
        Ok(())
    }

    fn block(&mut self, call: &Call) -> BytesMut {
        let mut block = BytesMut::with_capacity(256);
        let (encoder, uri) = (&mut self.encoder, call.uri());
        encoder.begin(&mut block);
        encoder.method(call.method(), &mut block);
        encoder.scheme("http", &mut block);
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        encoder.authority(authority.as_bytes(), &mut block);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        encoder.path(path.as_bytes(), &mut block);
        for (name, value) in call.headers() {
            encoder.field(name, value, &mut block);
        }
        block
    }

    /// Frames as much of the body as the windows allow, up to a good write size. True if the windows allow
    /// more.
    pub(super) fn fill(&mut self, body: &[u8]) -> bool {
        loop {
            let rest = &body[self.call.sent..];
            let window = usize::try_from(self.window.min(self.call.window)).unwrap_or(0);
            let count = rest.len().min(window).min(self.frame).min(BATCH);
            if count == 0 || self.out.len() >= BATCH {
                return count > 0;
            }
            let flags = if count == rest.len() { flag::END_STREAM } else { 0 };
            frame(Kind::Data, flags, self.call.stream, &rest[..count], &mut self.out);
            self.call.sent += count;
            // At most a batch.
            self.window -= count as i64;
            self.call.window -= count as i64;
        }
    }

    /// The arrival time of the head and the length of the body, once the response is complete and a
    /// success.
    ///
    /// # Errors
    ///
    /// If it is complete before the request is.
    pub(super) fn answer(&self, body: &[u8]) -> Result<Option<(Instant, usize)>, Fault> {
        match self.call.head {
            Some(head) if self.call.ended => {
                if self.call.sent < body.len() {
                    return Err(Fault::Protocol(
                        "the peer answers before it has the whole request",
                    ));
                }
                Ok(Some((head, self.call.received)))
            }
            _ => Ok(None),
        }
    }

    /// Processes a frame.
    ///
    /// # Errors
    ///
    /// If it breaks the protocol, or ends the call without success.
    pub(super) fn frame(&mut self, head: Head, payload: &[u8]) -> Result<(), CallError> {
        if self.open.is_some() && (head.kind != Kind::Continuation || head.stream != self.call.stream) {
            return Err(Fault::Protocol("the peer interrupts a header block").into());
        }
        match head.kind {
            Kind::Data => return self.data(head, payload),
            Kind::Headers => {
                self.answers(head)?;
                let block = fragment(head, payload)?;
                return self.headers(head.flags, head.has(flag::END_HEADERS), block);
            }
            Kind::Continuation => {
                let Some((flags, mut block)) = self.open.take() else {
                    return Err(Fault::Protocol("the peer sends CONTINUATION without a header block").into());
                };
                block.extend_from_slice(payload);
                return self.headers(flags, head.has(flag::END_HEADERS), &block);
            }
            Kind::Reset if head.stream == self.call.stream && !self.call.ended => {
                return Err(Fault::Reset(number(payload)?).into());
            }
            Kind::Settings => self.settings(head, payload)?,
            Kind::Ping => self.ping(head, payload)?,
            Kind::GoAway => self.go_away(payload)?,
            Kind::WindowUpdate => self.window(head, payload)?,
            Kind::PushPromise => return Err(Fault::Protocol("the peer pushes").into()),
            Kind::Reset | Kind::Priority | Kind::Unknown => {}
        }
        Ok(())
    }

    /// Checks that a frame belongs to the response.
    fn answers(&self, head: Head) -> Result<(), Fault> {
        if head.stream == self.call.stream && !self.call.ended {
            return Ok(());
        }
        Err(Fault::Protocol("the peer sends an unexpected response"))
    }

    fn data(&mut self, head: Head, payload: &[u8]) -> Result<(), CallError> {
        self.answers(head)?;
        if self.call.head.is_none() {
            return Err(Fault::Protocol("the peer sends a body without a head").into());
        }
        self.call.received += unpadded(head, payload)?.len();
        // Frames are at most 2^14 bytes.
        let count = payload.len() as u32;
        self.taken += count;
        self.call.taken += count;
        credit(&mut self.taken, CONNECTION_WINDOW, 0, &mut self.out);
        if head.has(flag::END_STREAM) {
            return self.end();
        }
        credit(
            &mut self.call.taken,
            STREAM_WINDOW,
            self.call.stream,
            &mut self.out,
        );
        Ok(())
    }

    /// Processes a header block, or a part of it; `flags` are those of its first frame.
    fn headers(&mut self, flags: u8, complete: bool, block: &[u8]) -> Result<(), CallError> {
        if block.len() > LIST {
            return Err(Fault::Protocol("the peer sends a header block that is too large").into());
        }
        if !complete {
            self.open = Some((flags, block.into()));
            return Ok(());
        }
        let (mut status, mut malformed, call) = (None, false, &mut self.call);
        let size = self
            .decoder
            .decode(block, LIST, |field| match field {
                Field::Status(code) => status = Some(code),
                Field::Header(name, value) if name == "grpc-status" => call.status = Some(value),
                Field::Header(name, value) if name == "grpc-message" => call.message = Some(value),
                Field::Header(..) => {}
                _ => malformed = true,
            })
            .map_err(Fault::Headers)?;
        if malformed || size > LIST {
            return Err(Fault::Protocol("the peer sends invalid headers").into());
        }
        self.headed(status, flags & flag::END_STREAM != 0)
    }

    fn headed(&mut self, status: Option<StatusCode>, last: bool) -> Result<(), CallError> {
        match (self.call.head, status) {
            (None, Some(status)) if status.is_informational() && !last => return Ok(()),
            (None, Some(status)) if status.is_success() => self.call.head = Some(Instant::now()),
            (None, Some(status)) => return Err(CallError::Status(status.as_u16())),
            (Some(_), None) if last => {}
            _ => return Err(Fault::Protocol("the peer sends neither a head nor trailers").into()),
        }
        if last { self.end() } else { Ok(()) }
    }

    /// Ends the call: a success if the status says so.
    fn end(&mut self) -> Result<(), CallError> {
        self.call.ended = true;
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        match &self.call.status {
            Some(status) if status.as_bytes() == b"0" => Ok(()),
            Some(status) => {
                let message = self.call.message.as_ref().map(text).unwrap_or_default();
                Err(CallError::Grpc(format!("{} {message}", text(status))))
            }
            None => Err(CallError::Grpc("missing".to_owned())),
        }
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.has(flag::ACK) {
            return Ok(());
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Fault::Protocol("the peer sends settings of a wrong length"));
        }
        for &[i1, i0, v3, v2, v1, v0] in settings {
            self.set(u16::from_be_bytes([i1, i0]), u32::from_be_bytes([v3, v2, v1, v0]));
        }
        frame(Kind::Settings, flag::ACK, 0, &[], &mut self.out);
        self.asked = true;
        Ok(())
    }

    fn set(&mut self, id: u16, value: u32) {
        match id {
            HEADER_TABLE_SIZE => self.encoder.set_max_table(value as usize),
            INITIAL_WINDOW_SIZE => {
                self.call.window += i64::from(value) - self.stream_window;
                self.stream_window = value.into();
            }
            MAX_FRAME_SIZE => self.frame = (value as usize).max(FRAME),
            _ => {}
        }
    }

    fn ping(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if payload.len() != 8 {
            return Err(Fault::Protocol("the peer sends a ping of a wrong length"));
        }
        if !head.has(flag::ACK) {
            frame(Kind::Ping, flag::ACK, 0, payload, &mut self.out);
            self.asked = true;
        }
        Ok(())
    }

    /// The current call continues if the peer will answer it; the connection accepts no new ones.
    fn go_away(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let code = number(payload.get(4..).unwrap_or_default())?;
        self.leaving = Some(code);
        if code == 0 && number(payload)? & LAST_STREAM >= self.call.stream {
            return Ok(());
        }
        Err(Fault::GoAway(code))
    }

    fn window(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let more = i64::from(number(payload)? & LAST_STREAM);
        let window = match head.stream {
            0 => &mut self.window,
            stream if stream == self.call.stream => &mut self.call.window,
            _ => return Ok(()),
        };
        *window += more;
        if more == 0 || *window > MAX_WINDOW {
            return Err(Fault::Protocol("the peer sends an invalid window increment"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
