//! Streaming request bodies and response bodies of HTTP/1.1.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::exchange::Calling;
use crate::body::{self, BoxError, Guarded};

/// Bytes of an unread request body that are drained so that the connection stays usable.
const UNWANTED: usize = 256 * 1024;
/// Timeout for draining it.
const UNWANTED_TIME: Duration = Duration::from_secs(1);

/// A request body that is still arriving. If it is dropped early, the connection drains the rest.
pub struct Received {
    incoming: Option<Incoming>,
    unread: Unread,
}

/// The request body that the handler left unread.
#[derive(Clone, Default)]
pub(super) struct Unread(Arc<Mutex<Option<Incoming>>>);

impl Received {
    #[inline]
    pub(super) fn new(incoming: Incoming, unread: Unread) -> Self {
        Self {
            incoming: Some(incoming),
            unread,
        }
    }
}

impl Drop for Received {
    #[inline]
    fn drop(&mut self) {
        let left = self.incoming.take();
        *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

impl Unread {
    /// Whether there is one.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Drains the unread body within limits. Returns whether the connection is reusable.
    pub(super) async fn discard(&self) -> bool {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = left else { return true };
        if body.size_hint().lower() > UNWANTED as u64 {
            return false;
        }
        let reading = async {
            let mut remaining = UNWANTED;
            while let Some(frame) = body.frame().await {
                let length = frame.ok()?.data_ref().map_or(0, Bytes::len);
                remaining = remaining.checked_sub(length)?;
            }
            Some(())
        };
        matches!(tokio::time::timeout(UNWANTED_TIME, reading).await, Ok(Some(())))
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        let frame = std::task::ready!(Pin::new(&mut *incoming).poll_frame(cx));
        if incoming.is_end_stream() || !matches!(frame, Some(Ok(_))) {
            self.incoming = None;
        }
        Poll::Ready(frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            Some(incoming) => incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// A response body. The call ends when hyper has taken all of it.
///
/// An error is returned one poll late: when a body fails, hyper drops what it has not written, possibly the
/// response head.
pub(super) struct ResponseBody {
    body: Guarded<Calling>,
    failure: Option<BoxError>,
}

impl ResponseBody {
    #[inline]
    pub(super) fn new(body: body::Body, calling: Calling) -> Self {
        Self {
            body: Guarded::new(body, calling),
            failure: None,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Err(failure))) => {
                self.failure = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            next => next,
        }
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.failure.is_none() && self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
