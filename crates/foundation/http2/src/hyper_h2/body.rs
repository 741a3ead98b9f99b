//! Bodies, as hyper gives them and as it takes them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::stream_error;
use crate::boundary::Incoming;
use crate::error::{Reason, StreamError};

/// One more reference of a connection's `Arc`: how many there are tells how many streams are not over.
pub(super) type StreamGuard = Arc<()>;

/// The body of a message that was received.
#[derive(Debug)]
pub struct HyperBody {
    body: hyper::body::Incoming,
    _stream: StreamGuard,
}

impl HyperBody {
    pub(super) fn incoming(body: hyper::body::Incoming, stream: StreamGuard) -> Incoming<Self> {
        if body.is_end_stream() {
            return Incoming::Empty;
        }
        Incoming::Stream(Self {
            body,
            _stream: stream,
        })
    }
}

impl Body for HyperBody {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        frame.map(|frame| match frame? {
            Ok(frame) => Some(Ok(frame)),
            Err(error) => match stream_error(&error) {
                // RFC 9113 section 8.1: no more of this message is needed.
                StreamError::Reset(Reason::NO_ERROR) => None,
                error => Some(Err(error)),
            },
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body to be sent. Its failure becomes a reset with a code of the application's. hyper does not learn its size, and
/// so adds no `content-length`.
pub(super) struct Outgoing<B: Body> {
    pub(super) body: B,
    pub(super) reason: fn(B::Error) -> Reason,
    pub(super) _stream: StreamGuard,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Outgoing<B> {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let reason = self.reason;
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        frame.map_err(|error| h2::Error::from(h2::Reason::from(reason(error).0)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// A body that can be taken back while nothing of it was sent.
pub(super) struct SharedBody<B>(Arc<Mutex<Option<B>>>);

impl<B> Clone for SharedBody<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> SharedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn take(&self) -> Option<B> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for SharedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut *self.lock() {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.lock().as_ref().is_none_or(Body::is_end_stream)
    }
}
