//! Timeouts for peers that stop in the middle of an exchange.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::body::BoxError;

/// Time within which a peer must read part of the data written to it.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(300);

/// Times the wait for a peer's next step. The timer is created at the first wait.
#[derive(Debug, Default)]
pub struct StallTimer {
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether the timer runs.
    waiting: bool,
}

impl StallTimer {
    /// The peer made progress: the next wait starts over.
    #[inline]
    pub fn renew(&mut self) {
        self.waiting = false;
    }

    /// Ready with an error that names `what` once `limit` has passed since the first poll after
    /// [`StallTimer::renew`].
    #[inline]
    pub fn poll(&mut self, limit: Duration, what: &'static str, cx: &mut Context<'_>) -> Poll<io::Error> {
        let timer = self.timer.get_or_insert_with(|| {
            self.waiting = true;
            Box::pin(sleep(limit))
        });
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + limit);
        }
        ready!(timer.as_mut().poll(cx));
        let text = format!("{what} within {limit:?}");
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Fails a pending write after [`UNREAD_TIMEOUT`].
    #[inline]
    pub fn of_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            return self.poll(UNREAD_TIMEOUT, "the peer read nothing", cx).map(Err);
        }
        self.renew();
        written
    }
}

/// A response body of a server that fails if it makes no progress for [`UNREAD_TIMEOUT`]. Only event streams
/// may be silent for longer.
#[derive(Debug)]
pub struct Due<B> {
    body: B,
    events: bool,
    reading: StallTimer,
}

impl<B> Due<B> {
    /// Wraps the body of a response with these headers.
    pub fn new(body: B, headers: &HeaderMap) -> Self {
        Self {
            body,
            events: headers.get(CONTENT_TYPE).is_some_and(is_of_events),
            reading: StallTimer::default(),
        }
    }
}

/// Media types of event streams, which may be silent between events.
const EVENTS: [&str; 7] = [
    "application/json-seq",
    "application/jsonl",
    "application/ndjson",
    "application/stream+json",
    "application/x-ndjson",
    "multipart/x-mixed-replace",
    "text/event-stream",
];

/// Whether a `Content-Type` is an event stream.
pub fn is_of_events(content_type: &HeaderValue) -> bool {
    let value = content_type.to_str().unwrap_or_default();
    let kind = value.split(';').next().unwrap_or_default();
    EVENTS
        .iter()
        .any(|events| kind.trim().eq_ignore_ascii_case(events))
}

impl<B> Body for Due<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.reading.renew();
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if self.events && self.body.size_hint().exact().is_none() => Poll::Pending,
            Poll::Pending => {
                let late = self
                    .reading
                    .poll(UNREAD_TIMEOUT, "no more of the response arrived", cx);
                Poll::Ready(Some(Err(ready!(late).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::stream::{self, StreamExt};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// The outcome of a body that sends one frame and then stalls.
    async fn after_a_word(kind: &'static str) -> Option<bool> {
        let word = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"half")))]);
        let body = StreamBody::new(word.chain(stream::pending()));
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]);
        let mut due = Due::new(body, &headers);
        assert!(due.frame().await.unwrap().is_ok());
        let more = tokio::time::timeout(UNREAD_TIMEOUT + Duration::from_secs(1), due.frame()).await;
        more.ok().map(|more| more.unwrap().is_err())
    }

    #[tokio::test(start_paused = true)]
    async fn fails_stalled_response_except_event_stream() {
        for kind in [
            "application/json",
            "text/plain; charset=utf-8",
            "text/event-streams",
        ] {
            assert_eq!(after_a_word(kind).await, Some(true), "{kind}");
        }
        for kind in [
            "text/event-stream",
            "Text/Event-Stream; charset=utf-8",
            "application/x-ndjson",
        ] {
            assert_eq!(after_a_word(kind).await, None, "{kind}");
        }
    }
}
