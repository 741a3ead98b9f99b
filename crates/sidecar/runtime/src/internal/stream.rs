//! Bodies as payload chunks of `CallLocalStream`, in both directions.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderName};
use http_body::{Body as HttpBody, Frame};
use outrigger_transport::body::{Body, BoxError, Unfinished, UnfinishedRequest};
use outrigger_transport::grpc::ok_trailers;
use outrigger_transport::stall::{StallTimer, UNREAD_TIMEOUT};
use outrigger_wire::invoke::{self, Chunk, FrameReader, Limits, Payload};
use tonic::{Code, Status};

/// Largest payload of one message, bytes. Peers count a whole message against their `--max-body-size`. It
/// must be below the smallest limit in use, and large enough to amortise the overhead of a message.
const CHUNK: usize = 32 * 1024;
/// Overhead of a message besides its payload, bytes: framing, and the head of a call in the first message.
const MAX_OVERHEAD: usize = 64 * 1024;
/// A payload up to this size is copied after its head, so that both are sent in one write.
const INLINE: usize = 16 * 1024;

/// Metadata with the names that other sidecars expect: standard HTTP headers in canonical case, others
/// unchanged.
pub fn entries(map: &HeaderMap, from_http: bool) -> impl Iterator<Item = (&str, &[u8])> {
    map.iter().map(move |(name, value)| {
        let name = if from_http { canonical(name) } else { name.as_str() };
        (name, value.as_bytes())
    })
}

fn canonical(name: &HeaderName) -> &str {
    match name.as_str() {
        "accept" => "Accept",
        "accept-charset" => "Accept-Charset",
        "accept-language" => "Accept-Language",
        "accept-ranges" => "Accept-Ranges",
        "cache-control" => "Cache-Control",
        "content-type" => "Content-Type",
        "content-length" => "Content-Length",
        "cookie" => "Cookie",
        "date" => "Date",
        "expect" => "Expect",
        "from" => "From",
        "host" => "Host",
        "if-match" => "If-Match",
        "if-modified-since" => "If-Modified-Since",
        "if-none-match" => "If-None-Match",
        "if-unmodified-since" => "If-Unmodified-Since",
        "max-forwards" => "Max-Forwards",
        "origin" => "Origin",
        "pragma" => "Pragma",
        "referer" => "Referer",
        "via" => "Via",
        "warning" => "Warning",
        other => other,
    }
}

/// A message head followed by the chunks of a body.
pub struct ChunkStream {
    ready: VecDeque<Bytes>,
    source: Body,
    next_seq: u64,
    finish: Finish,
}

/// How the stream ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Half-close: a request.
    End,
    /// Trailers with the gRPC status: a response.
    Trailers,
    /// Everything is sent.
    Done,
}

impl ChunkStream {
    /// `head` is a whole frame; payload numbering starts at `next_seq`.
    pub fn new(head: Bytes, source: Body, next_seq: u64, finish: Finish) -> Self {
        Self {
            ready: VecDeque::from([head]),
            source,
            next_seq,
            finish,
        }
    }

    /// The final success status.
    fn ok(&mut self) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.finish = Finish::Done;
        Poll::Ready(Some(Ok(Frame::trailers(ok_trailers()))))
    }

    fn queue(&mut self, mut data: Bytes) -> Result<(), BoxError> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(CHUNK));
            let mut prefix = BytesMut::with_capacity(32);
            invoke::encode_chunk(
                Chunk {
                    seq: self.next_seq,
                    len: piece.len(),
                },
                &mut prefix,
            )?;
            self.next_seq += 1;
            self.ready.push_back(prefix.freeze());
            self.ready.push_back(piece);
        }
        Ok(())
    }
}

impl HttpBody for ChunkStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match self.finish {
                Finish::Done => return Poll::Ready(None),
                Finish::End if self.source.is_end_stream() => self.finish = Finish::Done,
                // Checking for a known end lets the status leave with the last data.
                Finish::Trailers if self.source.is_end_stream() => return self.ok(),
                _ => match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            self.queue(data)?;
                        }
                    }
                    Some(Err(error)) if self.finish == Finish::Trailers => {
                        // The head is already sent; only the status can report a truncated body.
                        self.finish = Finish::Done;
                        let mut trailers = HeaderMap::new();
                        outrigger_transport::grpc::put_status(
                            &outrigger_transport::grpc::body_status(&error),
                            &mut trailers,
                        );
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None if self.finish == Finish::Trailers => return self.ok(),
                    None => self.finish = Finish::Done,
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty()
            && match self.finish {
                Finish::Done => true,
                Finish::End => self.source.is_end_stream(),
                Finish::Trailers => false,
            }
    }
}

/// The bytes of a small body in memory, to be sent in the same frame as the head.
pub fn inlined(body: &Body) -> Option<&Bytes> {
    match body {
        Body::Full(bytes) if bytes.len() <= INLINE => Some(bytes),
        _ => None,
    }
}

/// The type of messages in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `InternalInvokeRequestStream`.
    Request,
    /// `InternalInvokeResponseStream`.
    Response,
}

/// Reads the messages of a stream: first the head, then the payload as a body.
pub struct MessageStream {
    source: Body,
    frames: FrameReader,
    limits: Limits,
    direction: Direction,
    max_payload: usize,
    expected_seq: u64,
    ready: VecDeque<Result<Bytes, Status>>,
    /// Whether the first message has arrived.
    begun: bool,
    ended: bool,
    /// Payload bytes that the head announced and that have not arrived.
    announced: u64,
    stall: StallTimer,
    /// Accounting of a request's buffered bytes.
    held: Option<UnfinishedRequest>,
}

impl MessageStream {
    /// Reads `source`; at most `max_payload` bytes of the body per message.
    pub fn new(source: Body, direction: Direction, max_payload: usize) -> Self {
        let (source, connection) = source.uncounted();
        Self {
            source,
            frames: FrameReader::new(max_payload.saturating_add(MAX_OVERHEAD)),
            limits: Limits::default(),
            direction,
            max_payload,
            expected_seq: 0,
            ready: VecDeque::new(),
            begun: false,
            ended: false,
            announced: 0,
            stall: StallTimer::default(),
            held: connection.map(Unfinished::begin),
        }
    }

    /// Sets the payload length from the metadata, if present, so that a stalled payload times out.
    pub fn expect(&mut self, metadata: &HeaderMap) {
        let length = metadata.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        self.announced = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    }

    /// The limits for decoding heads.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The next message; `None` at the regular end.
    ///
    /// # Errors
    /// A [`Status`]: the peer's own, or a protocol error.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            let next = self
                .frames
                .next()
                .map_err(|e| Status::invalid_argument(e.to_string()))?;
            self.count()?;
            if next.is_some() || self.ended {
                self.begun = true;
                return Poll::Ready(Ok(next));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.source).poll_frame(cx) else {
                return self.poll_late(cx);
            };
            self.stall.renew();
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.frames.push(data),
                    Err(frame) => {
                        self.ended = true;
                        self.check_trailers(&frame.into_trailers().unwrap_or_default())?;
                    }
                },
                Some(Err(error)) => return Poll::Ready(Err(outrigger_transport::grpc::body_status(&error))),
                None => {
                    self.ended = true;
                    self.frames
                        .finish()
                        .map_err(|e| Status::unavailable(e.to_string()))?;
                    if self.direction == Direction::Response {
                        return Poll::Ready(Err(Status::unavailable(
                            "the connection ended before the call's status arrived",
                        )));
                    }
                }
            }
        }
    }

    /// Counts the buffered bytes: an incomplete message, and payload that was not taken.
    fn count(&mut self) -> Result<(), Status> {
        let Some(held) = &mut self.held else { return Ok(()) };
        let ready = self.ready.iter().flatten().map(Bytes::len).sum::<usize>();
        held.hold(self.frames.buffered() + ready)
            .map_err(|error| Status::resource_exhausted(error.to_string()))
    }

    /// The stream as a body whose buffered bytes count against the same connection.
    fn boxed(self) -> Body {
        let connection = self.held.as_ref().map(|held| Arc::clone(held.connection()));
        Body::Stream(Box::pin(self)).counted(connection)
    }

    /// Fails if a request does not start, or a started message or announced payload does not continue. Peers
    /// may be silent before a response, and between messages if the payload length is unknown.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        let is_due = self.direction == Direction::Request && !self.begun;
        if !is_due && self.announced == 0 && !self.frames.is_within_message() {
            return Poll::Pending;
        }
        let late = self.stall.poll(
            UNREAD_TIMEOUT,
            "no more of a started message arrived from the other sidecar",
            cx,
        );
        let late = ready!(late);
        // Dropping the source notifies the peer.
        self.source = Body::Empty;
        self.ended = true;
        Poll::Ready(Err(Status::deadline_exceeded(late.to_string())))
    }

    fn check_trailers(&self, trailers: &HeaderMap) -> Result<(), Status> {
        if self.direction == Direction::Request || outrigger_transport::grpc::has_ok_status(trailers) {
            return Ok(());
        }
        match Status::from_header_map(trailers) {
            Some(status) if status.code() == Code::Ok => Ok(()),
            Some(status) => Err(status),
            None => Err(Status::internal("the peer ended the call without a status")),
        }
    }

    /// Takes the payload that came with a head.
    ///
    /// # Errors
    /// A wrong sequence number, or more than the limit.
    pub fn take_payload(&mut self, payload: Option<Payload>) -> Result<(), Status> {
        let Some(payload) = payload else { return Ok(()) };
        let (length, limit) = (payload.data.len(), self.max_payload);
        if length > limit {
            return Err(Status::resource_exhausted(format!(
                "a message with {length} bytes of a body exceeds the limit of {limit} (see --max-body-size)"
            )));
        }
        if payload.seq != self.expected_seq {
            return Err(Status::invalid_argument(format!(
                "invalid sequence number received: {} (expected: {})",
                payload.seq, self.expected_seq
            )));
        }
        self.expected_seq += 1;
        self.announced = self.announced.saturating_sub(payload.data.len() as u64);
        if !payload.data.is_empty() {
            self.ready.push_back(Ok(payload.data));
        }
        Ok(())
    }

    fn payload_of(&self, message: &Bytes) -> Result<Option<Payload>, Status> {
        let (has_head, payload) = match self.direction {
            Direction::Request => {
                let frame = invoke::decode_request(message, &self.limits);
                let frame = frame.map_err(|e| Status::invalid_argument(e.to_string()))?;
                (frame.head.is_some(), frame.payload)
            }
            Direction::Response => {
                let frame = invoke::decode_response(message, &self.limits);
                let frame = frame.map_err(|e| Status::internal(e.to_string()))?;
                (frame.head.is_some(), frame.payload)
            }
        };
        if has_head {
            let what = if self.direction == Direction::Request {
                "request"
            } else {
                "response"
            };
            return Err(Status::invalid_argument(format!(
                "{what} metadata found in non-leading chunk"
            )));
        }
        Ok(payload)
    }

    fn poll_payload(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Poll::Ready(Some(item));
            }
            match ready!(self.poll_message(cx)) {
                Ok(Some(message)) => {
                    let payload = self.payload_of(&message);
                    if let Err(status) = payload.and_then(|p| self.take_payload(p)) {
                        self.ended = true;
                        return Poll::Ready(Some(Err(status)));
                    }
                }
                Ok(None) => return Poll::Ready(None),
                Err(status) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }

    /// Waits for the first piece of payload, or the end.
    pub async fn wait_first(&mut self) {
        if self.ready.is_empty() {
            let first = std::future::poll_fn(|cx| self.poll_payload(cx)).await;
            self.ready.extend(first);
        }
    }

    /// The payload as a body. If it has fully arrived, it becomes a body of known length, which avoids
    /// chunked encoding.
    ///
    /// # Errors
    /// A stream that failed at once.
    pub fn into_body(mut self) -> Result<Body, Status> {
        // The reader of the body polls again with its own waker.
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match self.poll_payload(&mut cx) {
            Poll::Pending => Ok(self.boxed()),
            Poll::Ready(None) => Ok(Body::Empty),
            Poll::Ready(Some(Err(status))) => Err(status),
            Poll::Ready(Some(Ok(first))) => {
                let second = self.poll_payload(&mut cx);
                if matches!(second, Poll::Ready(None)) {
                    return Ok(first.into());
                }
                self.ready.push_back(Ok(first));
                if let Poll::Ready(Some(second)) = second {
                    self.ready.push_back(second);
                }
                self.count()?;
                Ok(self.boxed())
            }
        }
    }
}

impl HttpBody for MessageStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_payload(cx)
            .map(|item| item.map(|data| data.map(Frame::data).map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests;
