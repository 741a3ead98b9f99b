//! The body of a received message.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};

use crate::boundary::Incoming;
use crate::error::StreamError;
use crate::queue::Piece;
use crate::state::SharedState;
use crate::stream::{RecvEnd, RecvHead};

/// A body that is still being received.
pub struct RecvStream {
    shared: Arc<SharedState>,
    stream: u32,
    /// Remaining bytes, if the head declared a length.
    left: Option<u64>,
}

impl std::fmt::Debug for RecvStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecvStream({})", self.stream)
    }
}

impl RecvStream {
    pub(crate) fn new(shared: Arc<SharedState>, stream: u32) -> Self {
        Self {
            shared,
            stream,
            left: None,
        }
    }

    /// Wraps the body, with `left` bytes if the head declared a length.
    pub(crate) fn incoming(mut self, left: Option<u64>) -> Incoming {
        self.left = left;
        Incoming::Stream(self)
    }

    /// The head of a response.
    pub(crate) fn poll_head(&self, cx: &Context<'_>) -> Poll<Result<Response<()>, StreamError>> {
        let mut state = self.shared.state();
        let Some(stream) = state.stream(self.stream) else {
            return Poll::Ready(Err(StreamError::ConnectionClosed));
        };
        if let RecvHead::Received(_) = &stream.recv_head
            && let RecvHead::Received(head) = std::mem::replace(&mut stream.recv_head, RecvHead::Taken)
        {
            return Poll::Ready(Ok(head));
        }
        match stream.state.recv_end() {
            Some(RecvEnd::Failed(error)) => Poll::Ready(Err(error)),
            _ => {
                stream.receiver.register(cx.waker());
                Poll::Pending
            }
        }
    }

    /// The body: complete if it was received entirely, otherwise as a stream.
    pub(crate) fn into_incoming(self) -> Incoming {
        let mut state = self.shared.state();
        let Some(stream) = state.stream(self.stream) else {
            drop(state);
            return Incoming::Empty;
        };
        let (whole, left) = (stream.take_complete(), stream.content_to_read());
        if let Some(Incoming::Full(data)) = &whole {
            state.release_capacity(self.stream, data.len());
        }
        drop(state);
        whole.unwrap_or_else(|| self.incoming(left))
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.shared.state().drop_receiver(self.stream);
    }
}

impl Body for RecvStream {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let this = &mut *self;
        let mut state = this.shared.state();
        state.poll_piece(this.stream, cx).map(|piece| {
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
        let mut state = self.shared.state();
        let stream = state.stream(self.stream);
        stream.is_none_or(|stream| {
            stream.recv_queue.is_empty() && stream.state.recv_end() == Some(RecvEnd::EndStream)
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
