//! Why a body could not be read, kept for whoever sees only that sending it failed.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::{Body, BoxError};

/// The failure of a body that is being sent. A connection reports it as its own, which would speak against the peer: a
/// call that failed by its own body is not repeated, and nobody is blamed.
#[derive(Clone, Default)]
pub struct Failure(Option<Arc<OnceLock<String>>>);

impl Failure {
    /// Watches a body; one that is in memory cannot fail.
    pub fn watch(body: &mut Body) -> Self {
        if matches!(body, Body::Empty | Body::Full(_) | Body::Trailed(_)) {
            return Self(None);
        }
        let noted = Arc::<OnceLock<String>>::default();
        *body = Body::Stream(Box::pin(Watched {
            body: std::mem::take(body),
            noted: Arc::clone(&noted),
        }));
        Self(Some(noted))
    }

    /// Why the body failed, if it did.
    pub fn reason(&self) -> Option<&str> {
        self.0.as_ref()?.get().map(String::as_str)
    }
}

struct Watched {
    body: Body,
    noted: Arc<OnceLock<String>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Err(error)) = &frame {
            self.noted.get_or_init(|| crate::error::chain(error.as_ref()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
