//! Sending a message: body bytes already in memory leave with the head, in one write and without a task.
//! Only a body that is still being produced gets a task.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::error::Reason;
use crate::transport::Transport;

/// Bytes of a body that are sent without waiting for capacity: they are in memory already.
const READY_BYTES: usize = 32 * 1024;

/// The sending side of a stream. Dropping it before the end of the message resets the stream.
pub(crate) struct SendStream<I> {
    pub(crate) transport: Arc<Transport<I>>,
    pub(crate) id: u32,
}

impl<I> Drop for SendStream<I> {
    fn drop(&mut self) {
        let mut state = self.transport.shared.state();
        if state.accepts_data(self.id) {
            state.reset(self.id, Reason::INTERNAL_ERROR);
        }
        state.drop_sender(self.id);
    }
}

impl<I> SendStream<I> {
    /// Ready when the peer no longer wants the message.
    pub(crate) fn poll_reset(&self, cx: &Context<'_>) -> Poll<()> {
        self.transport.shared.state().poll_reset(self.id, cx)
    }
}

impl<I: AsyncWrite + Unpin> SendStream<I> {
    /// Sends the part of a body that is ready. Returns the body if it has more.
    pub(crate) fn send_ready<B>(&self, mut body: B, reason: fn(B::Error) -> Reason) -> Option<B>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        // The task that sends the rest polls again with its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        let mut given = 0;
        while given < READY_BYTES {
            let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else {
                break;
            };
            let ended = frame.is_none() || body.is_end_stream();
            given += self.send(frame, ended, reason)?;
        }
        Some(body)
    }

    /// Sends one result of polling a body: the number of bytes, or `None` after the last.
    fn send<E>(
        &self,
        frame: Option<Result<Frame<Bytes>, E>>,
        ended: bool,
        reason: fn(E) -> Reason,
    ) -> Option<usize> {
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                let reason = reason(error);
                self.transport.shared.state().reset(self.id, reason);
                return None;
            }
            None => Frame::data(Bytes::new()),
        };
        let mut state = self.transport.shared.state();
        match frame.into_data() {
            // Skips an empty piece, except at the end.
            Ok(data) if data.is_empty() && !ended => Some(0),
            Ok(data) => {
                let length = data.len();
                let taken = state.send_data(self.id, data, ended);
                (taken && !ended).then_some(length)
            }
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => {
                    state.send_trailers(self.id, trailers);
                    None
                }
                Err(_unknown) => Some(0),
            },
        }
    }

    /// Sends the rest of a body as it is produced and as the peer's windows allow.
    pub(crate) async fn send_body<B>(self, mut body: B, reason: fn(B::Error) -> Reason)
    where
        B: Body<Data = Bytes> + Unpin,
    {
        loop {
            let frame = std::future::poll_fn(|cx| {
                let capacity = self.transport.shared.state().poll_capacity(self.id, cx);
                match capacity {
                    Poll::Ready(Some(())) => match Pin::new(&mut body).poll_frame(cx) {
                        Poll::Ready(frame) => Poll::Ready(Some(frame)),
                        Poll::Pending => self.poll_reset(cx).map(|()| None),
                    },
                    Poll::Ready(None) => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            let Some(frame) = frame.await else { return };
            let ended = frame.is_none() || body.is_end_stream();
            let more = self.send(frame, ended, reason);
            self.transport.notify();
            if more.is_none() {
                return;
            }
        }
    }
}
