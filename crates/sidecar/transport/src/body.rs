//! The body type of the data path: one concrete enum instead of a boxed trait object per hop.

mod counted;
mod deadline;
mod failure;
mod guarded;
mod inspect;
mod replay;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use outrigger_http2::{Incoming, RecvStream, StreamError};
use tokio::sync::OwnedSemaphorePermit;

pub use counted::Counted;
pub use deadline::Late;
pub use failure::{Failure, Reason};
pub use guarded::Guarded;
pub use inspect::Next;
pub use outrigger_grpc::unfinished::{
    Bounds as UnfinishedBounds, TooMuchUnfinished, Unfinished, UnfinishedMemory, UnfinishedRequest,
};
pub use replay::{REPLAY_LIMIT, ReplayBody, Replayable};

use crate::conn::PooledBody;

/// Any failure to read or write a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body. Frames pass through as they arrive; nothing is collected here.
#[derive(Default)]
pub enum Body {
    /// No bytes, no trailers.
    #[default]
    Empty,
    /// All bytes at once.
    Full(Bytes),
    /// All bytes at once, and trailers.
    Trailed(Box<Trailed>),
    /// From an HTTP/1.1 client.
    Http1(crate::listen::Received),
    /// From a shared HTTP/2 connection.
    Http2(RecvStream),
    /// From a pooled HTTP/1.1 connection.
    Pooled(Box<PooledBody>),
    /// A request body still arriving whose buffered bytes count against its connection.
    Counted(Box<Counted>),
    /// With a guard that is dropped after the last byte is delivered.
    Guarded(Box<Guarded<Guard>>),
    /// One attempt's copy of a [`Replayable`].
    Replay(ReplayBody),
    /// Anything else.
    Stream(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>),
}

impl Body {
    /// Boxes any body of bytes.
    pub fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self::Stream(Box::pin(body.map_err(Into::into)))
    }

    /// All bytes at once, followed by trailers.
    pub fn trailed(data: Bytes, trailers: HeaderMap) -> Self {
        Self::Trailed(Box::new(Trailed {
            data,
            trailers: Some(trailers),
        }))
    }

    /// Holds `permit` until the body is consumed or dropped.
    #[inline]
    pub fn hold(self, permit: OwnedSemaphorePermit) -> Self {
        Self::Guarded(Box::new(Guarded::new(self, Guard(GuardKind::Permit(permit)))))
    }

    /// Runs `on_end` when the body is consumed or dropped.
    #[inline]
    pub fn on_end(self, on_end: impl FnOnce() + Send + 'static) -> Self {
        let guard = Guard(GuardKind::Call(OnDrop(Some(Box::new(on_end)))));
        Self::Guarded(Box::new(Guarded::new(self, guard)))
    }

    /// This body, preceded by a frame that was already read from it.
    pub fn after(self, first: Option<Result<Frame<Bytes>, BoxError>>) -> Self {
        let (body, connection) = self.uncounted();
        Self::Stream(Box::pin(Peeked { first, body })).counted(connection)
    }

    /// The exact length, if known.
    #[inline]
    pub fn known_length(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// Bytes of this body that are in memory, whether or not they are ever read.
    #[inline]
    pub(crate) fn in_memory(&self) -> usize {
        match self {
            Self::Full(bytes) => bytes.len(),
            Self::Trailed(trailed) => trailed.data.len(),
            Self::Guarded(guarded) => guarded.body().in_memory(),
            _ => 0,
        }
    }

    /// The reason of the `RST_STREAM` sent when this error ends an outgoing body: the reason the failure came
    /// with, if any.
    pub fn reset_reason(error: BoxError) -> outrigger_http2::Reason {
        tracing::debug!(target: "dapr.runtime.conn", "an outgoing body failed: {error}");
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
        while let Some(error) = next {
            if let Some(failed) = error.downcast_ref::<StreamError>() {
                return failed.reason();
            }
            next = error.source();
        }
        outrigger_http2::Reason::INTERNAL_ERROR
    }

    /// Reads everything, up to `limit` bytes. Bytes buffered before the request is complete count against its
    /// connection.
    ///
    /// # Errors
    /// [`TooLarge`] past the limit, [`TooMuchUnfinished`] if the connection buffers too many incomplete
    /// requests, else the error of the source.
    pub async fn collect_up_to(self, limit: usize) -> Result<Bytes, BoxError> {
        match self {
            Self::Empty => Ok(Bytes::new()),
            Self::Full(bytes) if bytes.len() <= limit => Ok(bytes),
            other => collect(other, limit).await,
        }
    }
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, BoxError> {
    let (mut body, connection) = body.uncounted();
    let mut held = connection.map(Unfinished::begin);
    let mut first = Bytes::new();
    let mut rest = bytes::BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let all = first.len() + rest.len() + data.len();
        if all > limit {
            return Err(Box::new(TooLarge { limit }));
        }
        if let Some(held) = &mut held {
            held.hold(all)?;
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(first.len() + data.len());
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

impl From<Bytes> for Body {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() {
            Self::Empty
        } else {
            Self::Full(bytes)
        }
    }
}

impl From<String> for Body {
    #[inline]
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    #[inline]
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<Incoming> for Body {
    #[inline]
    fn from(incoming: Incoming) -> Self {
        match incoming {
            Incoming::Empty => Self::Empty,
            Incoming::Full(data) => data.into(),
            Incoming::Stream(received) => Self::Http2(received),
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                if bytes.is_empty() {
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            Self::Trailed(trailed) => Poll::Ready(trailed.next().map(Ok)),
            Self::Http1(received) => Pin::new(received).poll_frame(cx).map_err(Into::into),
            Self::Http2(received) => Pin::new(received).poll_frame(cx).map_err(Into::into),
            Self::Pooled(pooled) => Pin::new(pooled).poll_frame(cx),
            Self::Counted(counted) => Pin::new(counted).poll_frame(cx),
            Self::Guarded(guarded) => Pin::new(guarded).poll_frame(cx),
            Self::Replay(replay) => Pin::new(replay).poll_frame(cx),
            Self::Stream(stream) => stream.as_mut().poll_frame(cx),
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Trailed(trailed) => trailed.trailers.is_none(),
            Self::Http1(received) => received.is_end_stream(),
            Self::Http2(received) => received.is_end_stream(),
            Self::Pooled(pooled) => pooled.is_end_stream(),
            Self::Counted(counted) => counted.is_end_stream(),
            Self::Guarded(guarded) => guarded.is_end_stream(),
            Self::Replay(replay) => replay.is_end_stream(),
            Self::Stream(stream) => stream.is_end_stream(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Trailed(trailed) => SizeHint::with_exact(trailed.data.len() as u64),
            Self::Http1(received) => received.size_hint(),
            Self::Http2(received) => received.size_hint(),
            Self::Pooled(pooled) => pooled.size_hint(),
            Self::Counted(counted) => counted.size_hint(),
            Self::Guarded(guarded) => guarded.size_hint(),
            Self::Replay(replay) => replay.size_hint(),
            Self::Stream(stream) => stream.size_hint(),
        }
    }
}

/// A body whose first frame was already read.
struct Peeked {
    first: Option<Result<Frame<Bytes>, BoxError>>,
    body: Body,
}

impl HttpBody for Peeked {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = match &self.first {
            None => Some(0),
            Some(Ok(frame)) => frame.data_ref().map(Bytes::len),
            Some(Err(_)) => None,
        };
        match (first, self.body.size_hint().exact()) {
            (Some(first), Some(rest)) => SizeHint::with_exact(first as u64 + rest),
            _ => SizeHint::new(),
        }
    }
}

/// A body in one piece, with the trailers until they are taken.
pub struct Trailed {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Trailed {
    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        Some(Frame::data(std::mem::take(&mut self.data)))
    }
}

/// A value that must outlive a body.
pub struct Guard(#[expect(dead_code, reason = "held for its drop")] GuardKind);

enum GuardKind {
    Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit),
    Call(#[expect(dead_code, reason = "held for its drop")] OnDrop),
}

struct OnDrop(Option<Box<dyn FnOnce() + Send>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// The body is larger than allowed.
#[derive(Debug, thiserror::Error)]
#[error("stream too large: more than {limit} bytes (see --max-body-size)")]
pub struct TooLarge {
    /// The limit in bytes.
    pub limit: usize,
}

/// Makes `body` fail once it grows past `limit` bytes, unless its known length is within the limit.
#[inline]
pub fn limit(body: &mut Body, limit: usize) {
    if body.known_length().is_some_and(|length| length <= limit as u64) {
        return;
    }
    let mut left = limit;
    *body = std::mem::take(body).inspect(move |next| {
        let size = match &next {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        match left.checked_sub(size) {
            Some(rest) => {
                left = rest;
                next
            }
            None => Some(Err(Box::new(TooLarge { limit }))),
        }
    });
}

#[cfg(test)]
mod tests;
