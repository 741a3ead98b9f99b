//! Accounting of request bodies that are still arriving: code that buffers one counts the bytes against its
//! connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use outrigger_grpc::unfinished::Unfinished;

use super::{Body, BoxError};

/// A request body with the connection that its buffered bytes count against. Forwarded bytes do not count.
pub struct Counted {
    body: Body,
    connection: Arc<Unfinished>,
}

impl Body {
    /// Counts the buffered bytes of this body against `connection`. A body that is already in memory does not
    /// count.
    #[inline]
    #[must_use]
    pub fn counted(self, connection: Option<Arc<Unfinished>>) -> Self {
        match connection {
            Some(connection) if !self.is_whole() => Self::Counted(Box::new(Counted {
                body: self,
                connection,
            })),
            _ => self,
        }
    }

    /// The connection that buffered bytes of this body count against.
    #[inline]
    pub fn connection(&self) -> Option<&Arc<Unfinished>> {
        match self {
            Self::Counted(counted) => Some(&counted.connection),
            Self::Guarded(guarded) => guarded.body().connection(),
            _ => None,
        }
    }

    /// The body without accounting, and its connection. The caller must count the bytes that it buffers.
    #[inline]
    pub fn uncounted(self) -> (Self, Option<Arc<Unfinished>>) {
        match self {
            Self::Counted(counted) => {
                let Counted { body, connection } = *counted;
                (body, Some(connection))
            }
            other => {
                let connection = other.connection().cloned();
                (other, connection)
            }
        }
    }

    /// Whether the whole body is in memory.
    #[inline]
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Empty | Self::Full(_) | Self::Trailed(_))
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
