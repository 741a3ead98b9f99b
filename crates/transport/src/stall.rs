//! Time limits on peers that stop in the middle of something.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
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

/// An answer of a server, which fails once nothing more of it came within [`UNREAD_TIMEOUT`] although it is known that more
/// must come. One of no known length may be silent for as long as it likes: it may be a stream of events.
#[derive(Debug)]
pub struct Due<B> {
    body: B,
    reading: StallTimer,
}

impl<B> Due<B> {
    /// Watches over `body`.
    pub fn new(body: B) -> Self {
        Self {
            body,
            reading: StallTimer::default(),
        }
    }
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
            Poll::Pending if self.body.size_hint().exact().is_none() => Poll::Pending,
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
