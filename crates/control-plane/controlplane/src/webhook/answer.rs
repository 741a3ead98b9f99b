//! Answers on their way to clients that may not read them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Bytes of a body, or of an answer, that take no room: whoever asks for little is served whatever others leave unread.
pub(super) const FREE: usize = 64 << 10;
/// Time in which a client has read an answer: the API server waits no longer than that for one.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// What a connection takes over at once, in bytes: a copy, so that it keeps no more of the answer than that.
const PIECE: usize = 16 << 10;

/// The body of an answer. The room that it takes is given back when all of it was sent, or the connection has ended.
#[derive(Debug)]
pub(super) struct Answer {
    left: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// An answer in the place of a request, which took `room`; `None` where it needs more, and there is none.
    pub(super) fn new(
        bytes: Bytes,
        room: Option<OwnedSemaphorePermit>,
        budget: &Arc<Semaphore>,
    ) -> Option<Self> {
        let wanted = bytes.len().saturating_sub(FREE);
        let room = match (wanted, room) {
            (0, _) => None,
            (_, None) => Some(take(budget, wanted)?),
            (_, Some(mut room)) => {
                let has = room.num_permits();
                if has > wanted {
                    drop(room.split(has - wanted));
                } else if has < wanted {
                    room.merge(take(budget, wanted - has)?);
                }
                Some(room)
            }
        };
        Some(Self { left: bytes, room })
    }

    /// A short text.
    pub(super) fn short(bytes: Bytes) -> Self {
        Self {
            left: bytes,
            room: None,
        }
    }
}

/// Room for so many bytes, if there is any.
pub(super) fn take(budget: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let bytes = u32::try_from(bytes).ok()?;
    Arc::clone(budget).try_acquire_many_owned(bytes).ok()
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.left.len().min(PIECE);
        let piece = Bytes::copy_from_slice(&self.left.split_to(length));
        if self.left.is_empty() {
            self.left = Bytes::new();
            self.room = None;
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

/// Since when the client of a connection has its answer, and has asked nothing more.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<Option<Instant>>);

impl Unread {
    /// The client asks.
    pub(super) fn asked(&self) {
        *self.since() = None;
    }

    /// There is an answer.
    pub(super) fn answered(&self) {
        *self.since() = Some(Instant::now());
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends when the client has had its answer for too long: reading a little now and then does not help. Where it has read
    /// all of it and asks nothing more, the connection ends before that.
    pub(super) async fn late(&self) {
        loop {
            let now = Instant::now();
            let since = *self.since();
            let end = since.unwrap_or(now) + READ_TIMEOUT;
            if end <= now {
                return;
            }
            sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn an_answer_keeps_the_room_that_it_takes_until_it_is_sent() {
        let budget = Arc::new(Semaphore::new(10));
        let bytes = |more: usize| Bytes::from(vec![b'x'; FREE + more]);
        let smaller = Answer::new(bytes(2), take(&budget, 6), &budget).unwrap();
        assert_eq!(budget.available_permits(), 8);
        let larger = Answer::new(bytes(8), take(&budget, 6), &budget).unwrap();
        assert_eq!(budget.available_permits(), 0);
        assert!(Answer::new(bytes(1), None, &budget).is_none());
        assert!(Answer::new(bytes(0), None, &budget).is_some());
        drop(larger);
        assert_eq!(budget.available_permits(), 8);
        let sent = smaller.collect().await.unwrap().to_bytes();
        assert_eq!((sent, budget.available_permits()), (bytes(2), 10));
    }
}
