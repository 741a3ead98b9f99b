//! A message on its way out: what is at hand leaves with the head, in one write and without a task of its own; only
//! what has to be waited for is pumped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::io::AsyncWrite;

use crate::error::Reason;
use crate::wire::Wire;

/// Bytes of a body that leave without asking for room: they are in memory already.
const AT_HAND: usize = 32 * 1024;

/// The stream that a message goes to. A message that is given up before its end resets it.
pub(crate) struct Sending<I> {
    pub(crate) wire: Arc<Wire<I>>,
    pub(crate) number: u32,
}

impl<I> Drop for Sending<I> {
    fn drop(&mut self) {
        let mut state = self.wire.core.state();
        if state.takes_more(self.number) {
            state.reset(self.number, Reason::INTERNAL_ERROR);
        }
        state.answered(self.number);
    }
}

impl<I> Sending<I> {
    /// Ready when the peer wants nothing more.
    pub(crate) fn poll_gone(&self, cx: &Context<'_>) -> Poll<()> {
        self.wire
            .core
            .state()
            .poll_room(self.number, cx, false)
            .map(|_| ())
    }
}

impl<I: AsyncWrite + Unpin> Sending<I> {
    /// Hands over what a body has without waiting. Returns a body that has more.
    pub(crate) fn at_hand<B>(&self, mut body: B, reason: fn(B::Error) -> Reason) -> Option<B>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        // Whoever waits for the rest polls again with its own waker.
        let mut cx = Context::from_waker(Waker::noop());
        let mut given = 0;
        while given < AT_HAND {
            let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else {
                break;
            };
            let ended = frame.is_none() || body.is_end_stream();
            given += self.send(frame, ended, reason)?;
        }
        Some(body)
    }

    /// Hands over what a body gave: how many bytes, or `None` after the last.
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
                self.wire.core.state().reset(self.number, reason);
                return None;
            }
            None => Frame::data(Bytes::new()),
        };
        let mut state = self.wire.core.state();
        match frame.into_data() {
            // A piece without bytes is no news, except at the end.
            Ok(data) if data.is_empty() && !ended => Some(0),
            Ok(data) => {
                let length = data.len();
                let taken = state.send_data(self.number, data, ended);
                (taken && !ended).then_some(length)
            }
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => {
                    state.send_trailers(self.number, trailers);
                    None
                }
                Err(_unknown) => Some(0),
            },
        }
    }

    /// Sends the rest of a body as it comes and as the peer makes room.
    pub(crate) async fn pump<B>(self, mut body: B, reason: fn(B::Error) -> Reason)
    where
        B: Body<Data = Bytes> + Unpin,
    {
        loop {
            let frame = std::future::poll_fn(|cx| {
                let room = self.wire.core.state().poll_room(self.number, cx, true);
                match room {
                    Poll::Ready(Some(())) => match Pin::new(&mut body).poll_frame(cx) {
                        Poll::Ready(frame) => Poll::Ready(Some(frame)),
                        Poll::Pending => self.poll_gone(cx).map(|()| None),
                    },
                    Poll::Ready(None) => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                }
            });
            let Some(frame) = frame.await else { return };
            let ended = frame.is_none() || body.is_end_stream();
            let more = self.send(frame, ended, reason);
            self.wire.queued();
            if more.is_none() {
                return;
            }
        }
    }
}
