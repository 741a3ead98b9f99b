//! The body of a request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::chunks::{Part, Rest};
use crate::error::Cut;

/// What is behind the head of a request.
#[derive(Debug)]
pub enum Incoming {
    /// Nothing.
    Empty,
    /// Bytes that came together with the head.
    Whole(Bytes),
    /// What comes later.
    Stream(Received),
}

/// A body that is not here yet, or not all of it. Reading it reads from the socket.
pub struct Received {
    source: Arc<dyn Source>,
    /// Whose body it is.
    request: u64,
    progress: Progress,
}

/// Where a body comes from.
pub(crate) trait Source: Send + Sync {
    /// The next piece of the body of a request.
    fn poll_part(&self, request: u64, cx: &mut Context<'_>) -> Poll<Result<Part, Cut>>;
}

impl Received {
    pub(crate) fn new(source: Arc<dyn Source>, request: u64, rest: &Rest) -> Self {
        Self {
            source,
            request,
            progress: Progress::before(rest),
        }
    }
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Received({})", self.request)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.progress.ended {
            return Poll::Ready(None);
        }
        let part = ready!(self.source.poll_part(self.request, cx));
        Poll::Ready(self.progress.frame(part))
    }

    fn is_end_stream(&self) -> bool {
        self.progress.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.progress.size_hint()
    }
}

/// How far a body has been read.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Bytes to be read, where the head told.
    left: Option<u64>,
    pub(crate) ended: bool,
}

impl Progress {
    pub(crate) fn before(rest: &Rest) -> Self {
        Self {
            left: match rest {
                Rest::Bytes(left) => Some(*left),
                _ => None,
            },
            ended: false,
        }
    }

    /// A piece as a frame.
    pub(crate) fn frame(&mut self, part: Result<Part, Cut>) -> Option<Result<Frame<Bytes>, Cut>> {
        self.ended = true;
        match part {
            Ok(Part::Data(data)) => {
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                self.ended = self.left == Some(0);
                Some(Ok(Frame::data(data)))
            }
            Ok(Part::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(Part::End) => None,
            Err(why) => Some(Err(why)),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.left {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::new(),
        }
    }
}
