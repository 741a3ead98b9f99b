//! Bodies whose frames pass through a callback.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::{Body, BoxError};

/// The next item of a body: a frame, an error, or the end.
pub type Next = Option<Result<Frame<Bytes>, BoxError>>;

/// A body whose items pass through a function.
struct Inspected<F> {
    body: Body,
    see: F,
}

impl Body {
    /// Passes each item through `see`, whose result the reader gets. `see` is dropped with the body.
    pub fn inspect(self, see: impl FnMut(Next) -> Next + Send + Unpin + 'static) -> Self {
        let (body, connection) = self.uncounted();
        Self::Stream(Box::pin(Inspected { body, see })).counted(connection)
    }
}

impl<F: FnMut(Next) -> Next + Unpin> HttpBody for Inspected<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Next> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        next.map(|next| (self.see)(next))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
