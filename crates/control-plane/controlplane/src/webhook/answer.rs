//! Responses to clients that may not read them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Bytes of a request or response that are not charged, so that small ones are served even if others exhaust
/// the budget.
pub(super) const UNCHARGED: usize = 64 << 10;
/// Deadline for reading a response; the API server waits no longer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes copied to a connection at once, which bounds how much of the response the connection holds.
const PIECE: usize = 16 << 10;

/// The body of a response. Its share of the budget is returned when all of it is sent or the connection ends.
#[derive(Debug)]
pub(super) struct Answer {
    left: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// The response to a request that held `room`; `None` if it needs more and the budget is exhausted.
    pub(super) fn new(
        bytes: Bytes,
        room: Option<OwnedSemaphorePermit>,
        budget: &Arc<Semaphore>,
    ) -> Option<Self> {
        let wanted = bytes.len().saturating_sub(UNCHARGED);
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

    /// A short response outside of the budget.
    pub(super) fn short(bytes: Bytes) -> Self {
        Self {
            left: bytes,
            room: None,
        }
    }
}

/// Takes `bytes` from the budget, if available.
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

/// The time since which a client has had its response without a further request.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<Option<Instant>>);

impl Unread {
    /// Records a request.
    pub(super) fn asked(&self) {
        *self.since() = None;
    }

    /// Records a response.
    pub(super) fn answered(&self) {
        *self.since() = Some(Instant::now());
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the client has had its response for too long; reading slowly does not extend the
    /// deadline. A connection that is read and idle ends earlier.
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
    async fn response_holds_budget_until_sent() {
        let budget = Arc::new(Semaphore::new(10));
        let bytes = |more: usize| Bytes::from(vec![b'x'; UNCHARGED + more]);
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
