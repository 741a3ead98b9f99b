//! The body of a message that arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use crate::error::Cut;
use crate::queue::Piece;
use crate::state::Core;
use crate::stream::{Coming, keep};

/// What is behind the head of a message.
#[derive(Debug)]
pub enum Incoming {
    /// Nothing.
    Empty,
    /// Bytes that came together with the head.
    Whole(Bytes),
    /// What comes later.
    Stream(Received),
}

/// A body that is not here yet, or not all of it. The sender gets room for more as fast as somebody reads.
pub struct Received {
    core: Arc<Core>,
    stream: u32,
    /// Bytes to be read, where the head told.
    left: Option<u64>,
}

impl std::fmt::Debug for Received {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Received({})", self.stream)
    }
}

impl Received {
    pub(crate) fn new(core: Arc<Core>, stream: u32) -> Self {
        Self {
            core,
            stream,
            left: None,
        }
    }

    /// What comes later, `left` bytes where the head told.
    pub(crate) fn later(mut self, left: Option<u64>) -> Incoming {
        self.left = left;
        Incoming::Stream(self)
    }

    /// The head of an answer.
    pub(crate) fn poll_head(&self, cx: &Context<'_>) -> Poll<Result<Response<()>, Cut>> {
        let mut state = self.core.state();
        let Some(stream) = state.stream(self.stream) else {
            return Poll::Ready(Err(Cut::Connection));
        };
        match (stream.head.take(), stream.coming) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Coming::Cut(why)) => Poll::Ready(Err(why)),
            (None, Coming::More | Coming::Ended) => {
                keep(&mut stream.reader, cx.waker());
                Poll::Pending
            }
        }
    }

    /// What there is of the body already, where that is all of it.
    pub(crate) fn into_incoming(self) -> Incoming {
        let mut state = self.core.state();
        let Some(stream) = state.stream(self.stream) else {
            drop(state);
            return Incoming::Empty;
        };
        let (whole, left) = (stream.take_whole(), stream.expected());
        if let Some(Incoming::Whole(data)) = &whole {
            state.read(self.stream, data.len());
        }
        drop(state);
        whole.unwrap_or_else(|| self.later(left))
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.core.state().unread(self.stream);
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        let mut state = this.core.state();
        state.poll_arrived(this.stream, cx).map(|piece| {
            Some(piece?.map(|piece| match piece {
                Piece::Data(data) => {
                    this.left = this.left.map(|left| left.saturating_sub(data.len() as u64));
                    Frame::data(data)
                }
                Piece::Trailers(trailers) => Frame::trailers(trailers),
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        let mut state = self.core.state();
        let stream = state.stream(self.stream);
        stream.is_none_or(|stream| stream.arrived.is_empty() && stream.coming == Coming::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
