//! Validates the broker's frames before the client parses them. The client's parser recurses into nested
//! tables, and an invalid frame ends the connection.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use lapin::BasicProperties;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// Maximum nesting of tables and arrays.
const MAX_NESTING: usize = 32;
/// Maximum frame size in bytes without `frame_max` in the connection string: RabbitMQ's default. The client
/// allocates 64 times the negotiated size.
pub(super) const MAX_FRAME: u32 = 128 * 1024;
/// Bytes per read from the socket.
const READ_SIZE: usize = 128 * 1024;
/// Replaces all properties of a message with unreadable ones.
const UNREADABLE: &str = "x-outrigger-unreadable";
/// The same for an oversized message.
const TOO_LARGE: &str = "x-outrigger-too-large";

/// Frame type, channel and payload size.
const HEAD: usize = 7;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// First byte of `AMQP0091`, the eight bytes that a broker sends instead of a frame to reject the version.
const PROTOCOL: u8 = b'A';
/// Class, weight and body size precede a message's properties.
const BEFORE_PROPERTIES: usize = 12;
const BODY_SIZE: std::ops::Range<usize> = 4..BEFORE_PROPERTIES;
/// `basic.deliver`, which contains a routing key.
const DELIVER: [u8; 4] = [0, 60, 0, 60];
/// `connection.start`, the only method from a broker with a table.
const START: [u8; 4] = [0, 10, 0, 10];
/// Methods from clients with a table, by class and method.
const OF_CLIENTS: [[u8; 4]; 8] = [
    [0, 10, 0, 11],
    [0, 40, 0, 10],
    [0, 40, 0, 30],
    [0, 40, 0, 40],
    [0, 50, 0, 10],
    [0, 50, 0, 20],
    [0, 50, 0, 50],
    [0, 60, 0, 20],
];

/// Why the message must be rejected, if so.
pub(super) fn refusal(properties: &BasicProperties) -> Option<&'static str> {
    let headers = properties.headers().as_ref()?.inner();
    if headers.contains_key(TOO_LARGE) {
        return Some("it has more than 64 MiB, and more than twice --max-body-size");
    }
    let is_unreadable = headers.contains_key(UNREADABLE);
    is_unreadable.then_some("its properties are malformed, or its headers nest too deep")
}

/// Size limits of incoming data, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Maximum frame size.
    pub(super) frame: u32,
    /// Maximum body size of a message.
    pub(super) body: usize,
}

/// A connection to a broker with validated frames.
pub(super) struct Frames<S> {
    stream: BufReader<S>,
    /// Maximum frame size in bytes.
    largest: usize,
    max_body: u64,
    /// The incomplete frame.
    frame: Vec<u8>,
    /// Validated bytes for the client.
    checked: Bytes,
    /// Remaining bytes of a frame without tables.
    unchecked: usize,
    /// Remaining bytes of a dropped frame.
    skipped: usize,
    /// Remaining bytes of oversized bodies by channel.
    too_large: HashMap<[u8; 2], u64>,
}

impl<S: AsyncRead> Frames<S> {
    pub(super) fn new(stream: S, limits: Limits) -> Self {
        Self {
            stream: BufReader::with_capacity(READ_SIZE, stream),
            largest: usize::try_from(limits.frame).unwrap_or(usize::MAX),
            max_body: u64::try_from(limits.body).unwrap_or(u64::MAX),
            frame: Vec::new(),
            checked: Bytes::new(),
            unchecked: 0,
            skipped: 0,
            too_large: HashMap::new(),
        }
    }

    /// Validates the current frame, whose header is complete.
    fn check(&mut self) -> io::Result<()> {
        let size = size(&self.frame);
        let has_tables = matches!(self.frame.first(), Some(&METHOD | &HEADER));
        if self.is_too_large(size) {
            self.skipped = size - self.frame.len();
            self.frame.clear();
            return Ok(());
        } else if !has_tables {
            self.unchecked = size - self.frame.len();
        } else if size > self.largest {
            return Err(io::Error::other(format!(
                "the broker sent a frame of {size} bytes, which is larger than frame_max, {}",
                self.largest
            )));
        } else if self.frame.len() < size {
            return Ok(());
        }
        let mut frame = std::mem::take(&mut self.frame);
        match frame.first().copied() {
            Some(METHOD) if !is_readable_method(payload(&frame)) => {
                let text = format!(
                    "the broker sent a method with a table that is malformed or nests deeper than {MAX_NESTING} levels"
                );
                return Err(io::Error::other(text));
            }
            Some(METHOD) => replace_unreadable_key(&mut frame),
            Some(HEADER) if self.has_too_large_body(&frame) => frame = refused(&frame, TOO_LARGE),
            Some(HEADER) if !is_readable_header(payload(&frame)) => frame = refused(&frame, UNREADABLE),
            _ => {}
        }
        self.checked = frame.into();
        Ok(())
    }

    /// Whether a header frame announces an oversized body, which is dropped.
    fn has_too_large_body(&mut self, header: &[u8]) -> bool {
        let size = payload(header)
            .get(BODY_SIZE)
            .and_then(|size| size.try_into().ok());
        let size = size.map_or(0, u64::from_be_bytes);
        let is_too_large = size > self.max_body;
        if let Some(channel) = channel(header) {
            self.too_large.remove(&channel);
            if is_too_large {
                self.too_large.insert(channel, size);
            }
        }
        is_too_large
    }

    /// Whether a frame of this size belongs to an oversized body.
    fn is_too_large(&mut self, size: usize) -> bool {
        let [BODY, ..] = *self.frame else { return false };
        let Some(channel) = channel(&self.frame) else {
            return false;
        };
        let Some(left) = self.too_large.get_mut(&channel) else {
            return false;
        };
        let part = u64::try_from(size - HEAD - 1).unwrap_or(u64::MAX);
        *left = left.saturating_sub(part);
        if *left == 0 {
            self.too_large.remove(&channel);
        }
        true
    }
}

/// Size of a frame, once its header is complete.
fn size(frame: &[u8]) -> usize {
    match *frame {
        [PROTOCOL, ..] => HEAD + 1,
        [_, _, _, a, b, c, d, ..] => {
            let payload = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            // An end byte follows the payload.
            payload.saturating_add(HEAD + 1)
        }
        _ => HEAD,
    }
}

fn channel(frame: &[u8]) -> Option<[u8; 2]> {
    frame.get(1..3)?.try_into().ok()
}

fn payload(frame: &[u8]) -> &[u8] {
    frame.get(HEAD..frame.len() - 1).unwrap_or_default()
}

fn is_readable_method(payload: &[u8]) -> bool {
    match payload.split_first_chunk() {
        // Two version bytes precede the table.
        Some((&START, start)) => start
            .get(2..)
            .is_some_and(|start| Fields(start).table(0).is_some()),
        Some((method, _)) => !OF_CLIENTS.contains(method),
        None => true,
    }
}

/// Routing keys may contain any bytes, but the client parses only UTF-8. Consumers do not use them.
fn replace_unreadable_key(frame: &mut [u8]) {
    let is_delivery = payload(frame).starts_with(&DELIVER);
    let key = is_delivery.then(|| key_of_delivery(&payload(frame)[DELIVER.len()..]));
    let Some(length) = key.flatten() else { return };
    // The key ends the payload; one byte ends the frame.
    let end = frame.len() - 1;
    for byte in &mut frame[end - length..end] {
        if !byte.is_ascii() {
            *byte = b'?';
        }
    }
}

/// Length of the routing key, if it is not UTF-8.
fn key_of_delivery(fields: &[u8]) -> Option<usize> {
    let mut fields = Fields(fields);
    let _consumer = fields.short()?;
    let _tag_and_redelivered = fields.take(9)?;
    let _exchange = fields.short()?;
    let key = fields.short()?;
    let is_last = fields.0.is_empty();
    (is_last && str::from_utf8(key).is_err()).then_some(key.len())
}

fn is_readable_header(payload: &[u8]) -> bool {
    let mut fields = Fields(payload);
    let read = fields.take(BEFORE_PROPERTIES).and_then(|_| fields.properties());
    read.is_some() && fields.0.is_empty()
}

/// A header frame with the header `why` as its only property, without a body if that is oversized.
fn refused(frame: &[u8], why: &str) -> Vec<u8> {
    let mut table = vec![u8::try_from(why.len()).unwrap_or_default()];
    table.extend_from_slice(why.as_bytes());
    table.extend_from_slice(&[b't', 1]);
    let kept = payload(frame).get(..BEFORE_PROPERTIES).unwrap_or_default();
    let mut payload = kept.to_vec();
    if why == TOO_LARGE
        && let Some(size) = payload.get_mut(BODY_SIZE)
    {
        size.fill(0);
    }
    payload.extend_from_slice(&HEADERS.to_be_bytes());
    payload.extend_from_slice(&length(&table));
    payload.extend_from_slice(&table);
    // Type and channel.
    let mut made = frame.get(..3).unwrap_or_default().to_vec();
    made.extend_from_slice(&length(&payload));
    made.extend_from_slice(&payload);
    made.extend_from_slice(&frame[frame.len() - 1..]);
    made
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Property flag of the headers.
const HEADERS: u16 = 1 << 13;
/// Property flags of texts.
const TEXTS: u16 = 0b1100_0111_1011_1100;
/// Property flag of the timestamp.
const TIMESTAMP: u16 = 1 << 6;

/// The rest of a frame. Each method parses a value of its type and returns `None` if the client could not
/// parse it.
struct Fields<'f>(&'f [u8]);

impl<'f> Fields<'f> {
    fn take(&mut self, count: usize) -> Option<&'f [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn octet(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn short(&mut self) -> Option<&'f [u8]> {
        let size = self.octet()?;
        self.take(size.into())
    }

    fn text(&mut self) -> Option<()> {
        str::from_utf8(self.short()?).ok().map(drop)
    }

    /// A string, table or array.
    fn long(&mut self) -> Option<&'f [u8]> {
        let size = self.take(4)?.try_into().ok().map(u32::from_be_bytes)?;
        self.take(usize::try_from(size).ok()?)
    }

    fn table(&mut self, depth: usize) -> Option<()> {
        let mut pairs = Fields(self.long()?);
        while !pairs.0.is_empty() {
            pairs.text()?;
            pairs.value(depth + 1)?;
        }
        Some(())
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        let mut items = Fields(self.long()?);
        while !items.0.is_empty() {
            items.value(depth + 1)?;
        }
        Some(())
    }

    /// A value nested in `depth` tables and arrays.
    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_NESTING {
            return None;
        }
        match self.octet()? {
            b'V' => Some(()),
            b't' | b'b' | b'B' => self.take(1).map(drop),
            b's' | b'U' | b'u' => self.take(2).map(drop),
            b'I' | b'i' | b'f' => self.take(4).map(drop),
            b'D' => self.take(5).map(drop),
            b'L' | b'l' | b'd' | b'T' => self.take(8).map(drop),
            b'S' | b'x' => self.long().map(drop),
            b'A' => self.array(depth),
            b'F' => self.table(depth),
            _ => None,
        }
    }

    fn properties(&mut self) -> Option<()> {
        let flags = self.take(2)?.try_into().ok().map(u16::from_be_bytes)?;
        for bit in (2..16).rev() {
            match flags & (1 << bit) {
                0 => {}
                HEADERS => self.table(0)?,
                TIMESTAMP => self.take(8).map(drop)?,
                text if text & TEXTS != 0 => self.text()?,
                _ => self.octet().map(drop)?,
            }
        }
        Some(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Frames<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.checked.is_empty() {
            let size = size(&this.frame);
            let available = ready!(Pin::new(&mut this.stream).poll_fill_buf(context))?;
            if available.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if this.skipped > 0 {
                let count = available.len().min(this.skipped);
                this.skipped -= count;
                Pin::new(&mut this.stream).consume(count);
                continue;
            }
            if this.unchecked > 0 {
                let count = available.len().min(this.unchecked).min(buffer.remaining());
                buffer.put_slice(&available[..count]);
                this.unchecked -= count;
                Pin::new(&mut this.stream).consume(count);
                return Poll::Ready(Ok(()));
            }
            let count = available.len().min(size - this.frame.len());
            this.frame.extend_from_slice(&available[..count]);
            Pin::new(&mut this.stream).consume(count);
            if this.frame.len() >= HEAD {
                this.check()?;
            }
        }
        let count = this.checked.len().min(buffer.remaining());
        buffer.put_slice(&this.checked[..count]);
        this.checked.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Frames<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
