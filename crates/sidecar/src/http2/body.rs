//! Bodies on an HTTP/2 stream. What is at hand leaves together with the head, in one write and without a task of its
//! own; only what has to be waited for is pumped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::AbortHandle;

use crate::body::{Body, BoxError};

/// Bytes handed over at once without asking for room: they are in memory already, and the connection sends them as
/// it may.
const AT_HAND: usize = 32 * 1024;

/// Hands over what a body has without waiting. Returns what is left to [`pump`].
pub(crate) fn send_at_hand(
    mut stream: SendStream<Bytes>,
    mut body: Body,
) -> Option<(SendStream<Bytes>, Body)> {
    // Whoever waits for the rest polls again with its own waker.
    let mut cx = Context::from_waker(Waker::noop());
    let mut given = 0;
    while given < AT_HAND {
        let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else {
            break;
        };
        if let Some(Ok(frame)) = &frame {
            given += frame.data_ref().map_or(0, Bytes::len);
        }
        let ended = body.is_end_stream();
        if fill(&mut stream, frame, ended) {
            return None;
        }
    }
    Some((stream, body))
}

/// Hands over what a body gave, without waiting for room. True when the stream needs nothing more.
fn fill(stream: &mut SendStream<Bytes>, frame: Option<Result<Frame<Bytes>, BoxError>>, ended: bool) -> bool {
    let result = match frame {
        Some(Ok(frame)) => match frame.into_data() {
            Ok(data) => stream.send_data(data, ended).map(|()| ended),
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => stream.send_trailers(trailers).map(|()| true),
                Err(_) => Ok(ended),
            },
        },
        Some(Err(error)) => {
            tracing::debug!(target: "dapr.runtime.conn", "a body that was being sent failed: {error}");
            stream.send_reset(reason_of(error.as_ref()));
            return true;
        }
        None => stream.send_data(Bytes::new(), true).map(|()| true),
    };
    // A stream that takes nothing any more was reset: the peer says why.
    result.unwrap_or(true)
}

/// The reason a failed body came with, to pass it on.
fn reason_of(error: &(dyn std::error::Error + 'static)) -> Reason {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return reason;
        }
        next = error.source();
    }
    Reason::INTERNAL_ERROR
}

/// Sends the rest of a body as it comes, until it ends or the peer wants no more of it.
pub(crate) async fn pump(mut stream: SendStream<Bytes>, mut body: Body) {
    loop {
        let frame = std::future::poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(cx).map(Some)
        });
        let Some(frame) = frame.await else { return };
        let frame = match frame {
            Some(Ok(frame)) if frame.is_data() => {
                let ended = body.is_end_stream();
                let Ok(data) = frame.into_data() else { return };
                if !send_with_room(&mut stream, data, ended).await || ended {
                    return;
                }
                continue;
            }
            other => other,
        };
        if fill(&mut stream, frame, false) {
            return;
        }
    }
}

/// Sends data as the peer makes room; false when the stream is gone.
async fn send_with_room(stream: &mut SendStream<Bytes>, mut data: Bytes, ended: bool) -> bool {
    if data.is_empty() {
        return stream.send_data(data, ended).is_ok();
    }
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(room)) => room,
            Some(Err(_)) | None => return false,
        };
        let piece = data.split_to(room.min(data.len()));
        if !piece.is_empty() && stream.send_data(piece, ended && data.is_empty()).is_err() {
            return false;
        }
    }
    true
}

/// What a request keeps until its answer has been read or dropped.
pub(crate) struct Asked {
    pub(crate) _in_flight: InFlight,
    pub(crate) _pump: Option<Pump>,
}

/// A stream counted against its connection until dropped.
pub(crate) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task that sends a request's body. A response that is no longer wanted, or has been read to its end, ends it.
pub(crate) struct Pump(pub(crate) AbortHandle);

impl Drop for Pump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A body that arrives.
pub struct Received {
    stream: RecvStream,
    /// Bytes still to come, where the head told.
    left: Option<u64>,
    data_ended: bool,
    _asked: Option<Asked>,
}

impl Received {
    /// The body behind a head with `headers`; `asked` where it is that of a response.
    pub(crate) fn body(stream: RecvStream, headers: &HeaderMap, asked: Option<Asked>) -> Body {
        if stream.is_end_stream() {
            return Body::Empty;
        }
        let left = headers
            .get(CONTENT_LENGTH)
            .and_then(|v| v.to_str().ok()?.parse().ok());
        Body::Http2(Box::new(Self {
            stream,
            left,
            data_ended: false,
            _asked: asked,
        }))
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Room for the sender is made as fast as somebody reads. A stream that is gone needs none.
                    let _gone = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // RFC 9113 section 8.1: an answer that needs no more of the request.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(None) => None,
            Err(error) => Some(Err(error.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
