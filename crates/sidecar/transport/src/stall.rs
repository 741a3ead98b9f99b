//! Time limits on peers that stop in the middle of something.

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

/// Time in which a peer must read something of what is written to it.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits for a peer's next step. There is no timer before the first wait.
#[derive(Debug, Default)]
pub struct StallTimer {
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether the timer runs.
    waiting: bool,
}

impl StallTimer {
    /// The peer did something: the next wait begins anew.
    #[inline]
    pub fn renew(&mut self) {
        self.waiting = false;
    }

    /// Ready when `limit` has passed since the first poll after [`StallTimer::renew`]; `what` did not happen in it.
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

    /// What a write comes to if it must not wait for longer than [`UNREAD_TIMEOUT`].
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

/// An answer of a server, which fails once nothing more of it came within [`UNREAD_TIMEOUT`] although more must come: its
/// length says so, or that it has not ended. Only a stream of events may be silent for as long as it likes.
#[derive(Debug)]
pub struct Due<B> {
    body: B,
    events: bool,
    reading: StallTimer,
}

impl<B> Due<B> {
    /// Watches over the body of an answer with these headers.
    pub fn new(body: B, headers: &HeaderMap) -> Self {
        Self {
            body,
            events: headers.get(CONTENT_TYPE).is_some_and(is_of_events),
            reading: StallTimer::default(),
        }
    }
}

/// Media types whose senders say something when something happens.
const EVENTS: [&str; 7] = [
    "application/json-seq",
    "application/jsonl",
    "application/ndjson",
    "application/stream+json",
    "application/x-ndjson",
    "multipart/x-mixed-replace",
    "text/event-stream",
];

/// Whether a `Content-Type` is that of a stream of events.
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
                    .poll(UNREAD_TIMEOUT, "nothing more of the answer came", cx);
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

    /// What comes of a body that says one thing and then nothing.
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
    async fn an_answer_that_stops_half_way_fails_unless_it_is_of_events() {
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
