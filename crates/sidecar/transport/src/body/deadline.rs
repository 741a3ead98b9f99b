//! Bodies with a deadline.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{Body, BoxError};

/// Produces the last frame of a body that missed its deadline.
pub type Late = fn() -> Result<Frame<Bytes>, BoxError>;

struct Bounded {
    /// Empty after the deadline.
    body: Body,
    timer: Pin<Box<Sleep>>,
    late: Option<Late>,
}

impl Body {
    /// Drops the rest of the body at `at`; the reader gets `late` instead.
    pub fn until(self, at: Instant, late: Late) -> Self {
        if self.is_whole() {
            return self;
        }
        Self::Stream(Box::pin(Bounded {
            body: self,
            timer: Box::pin(sleep_until(at)),
            late: Some(late),
        }))
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Poll the timer first: a body that always has a frame ready must end too.
        if self.late.is_some() && self.timer.as_mut().poll(cx).is_ready() {
            self.body = Body::Empty;
            return Poll::Ready(self.late.take().map(|late| late()));
        }
        Pin::new(&mut self.body).poll_frame(cx)
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
    use std::time::Duration;

    use futures::stream::{self, StreamExt};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn late() -> Result<Frame<Bytes>, BoxError> {
        Err("late".into())
    }

    fn word() -> Result<Frame<Bytes>, BoxError> {
        Ok(Frame::data(Bytes::from_static(b"word")))
    }

    #[tokio::test(start_paused = true)]
    async fn ends_body_at_deadline() {
        let stops = Body::stream(StreamBody::new(stream::iter([word()]).chain(stream::pending())));
        let endless = Body::stream(StreamBody::new(stream::repeat_with(word).then(async |word| {
            tokio::time::sleep(LIMIT / 10).await;
            word
        })));
        for body in [stops, endless] {
            let begun = Instant::now();
            let mut body = body.until(begun + LIMIT, late);
            let error = loop {
                match body.frame().await.unwrap() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!((error.to_string(), begun.elapsed()), ("late".to_owned(), LIMIT));
            assert!(body.frame().await.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn passes_body_within_deadline() {
        let at = Instant::now() + LIMIT;
        assert!(matches!(Body::from("whole").until(at, late), Body::Full(_)));
        let body = Body::stream(StreamBody::new(stream::iter([word(), word()]))).until(at, late);
        assert_eq!(body.collect_up_to(100).await.unwrap(), "wordword");
    }
}
