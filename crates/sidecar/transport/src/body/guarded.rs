//! Bodies with a guard that lives as long as they do.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::{Body, BoxError};

/// A body and a value dropped with it.
pub struct Guarded<G> {
    body: Body,
    _guard: G,
}

impl<G> Guarded<G> {
    /// Keeps `guard` until the body is consumed or dropped.
    pub fn new(body: Body, guard: G) -> Self {
        Self { body, _guard: guard }
    }

    /// The wrapped body.
    pub(crate) fn body(&self) -> &Body {
        &self.body
    }
}

impl<G: Unpin> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
