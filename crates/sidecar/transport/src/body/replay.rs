//! Request bodies that can be sent more than once.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use outrigger_grpc::unfinished::Unfinished;

use super::{Body, BoxError};

/// Bytes of a streamed body buffered for a retry.
pub const REPLAY_LIMIT: usize = 64 * 1024;
/// Frames buffered for a retry: each takes some hundred bytes even if it is nearly empty.
const REPLAY_FRAMES: usize = 512;

/// A request body that gives each attempt a copy. Attempts buffer the frames of a streamed body by reference
/// count, up to [`REPLAY_LIMIT`] and `REPLAY_FRAMES`. Past these limits, or once the source has failed, the
/// body cannot be replayed.
#[derive(Clone)]
pub struct Replayable(Source);

#[derive(Clone)]
enum Source {
    Whole(Bytes),
    Streamed(Arc<Mutex<Streamed>>),
}

struct Streamed {
    source: Option<Body>,
    connection: Option<Arc<Unfinished>>,
    kept: Vec<Frame<Bytes>>,
    kept_bytes: usize,
    ended: bool,
    lost: bool,
    hint: SizeHint,
}

impl Replayable {
    /// Wraps the body that the attempts share.
    #[inline]
    pub fn new(body: Body) -> Self {
        match body {
            Body::Empty => Self(Source::Whole(Bytes::new())),
            Body::Full(bytes) => Self(Source::Whole(bytes)),
            other => Self(Source::Streamed(Streamed::new(other))),
        }
    }

    /// The body of the next attempt, from the first byte; `None` if it cannot be replayed.
    #[inline]
    pub fn attempt(&self) -> Option<Body> {
        let shared = match &self.0 {
            Source::Whole(bytes) => return Some(bytes.clone().into()),
            Source::Streamed(shared) => shared,
        };
        let state = lock(shared);
        if state.lost {
            return None;
        }
        let connection = state.connection.clone();
        drop(state);
        let body = Body::Replay(ReplayBody {
            shared: Arc::clone(shared),
            next: 0,
        });
        Some(body.counted(connection))
    }

    /// Whether another attempt is possible.
    #[inline]
    pub fn can_repeat(&self) -> bool {
        match &self.0 {
            Source::Whole(_) => true,
            Source::Streamed(shared) => !lock(shared).lost,
        }
    }
}

impl Streamed {
    fn new(body: Body) -> Arc<Mutex<Self>> {
        let hint = body.size_hint();
        let (body, connection) = body.uncounted();
        Arc::new(Mutex::new(Self {
            source: Some(body),
            connection,
            kept: Vec::new(),
            kept_bytes: 0,
            ended: false,
            lost: false,
            hint,
        }))
    }
}

fn lock(state: &Mutex<Streamed>) -> MutexGuard<'_, Streamed> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One attempt's view of a streamed [`Replayable`].
pub struct ReplayBody {
    shared: Arc<Mutex<Streamed>>,
    next: usize,
}

fn copy_frame(frame: &Frame<Bytes>) -> Frame<Bytes> {
    match (frame.data_ref(), frame.trailers_ref()) {
        (Some(data), _) => Frame::data(data.clone()),
        (None, Some(trailers)) => Frame::trailers(trailers.clone()),
        (None, None) => Frame::trailers(HeaderMap::new()),
    }
}

impl HttpBody for ReplayBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let mut state = lock(&this.shared);
        if let Some(frame) = state.kept.get(this.next) {
            this.next += 1;
            return Poll::Ready(Some(Ok(copy_frame(frame))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let Some(source) = state.source.as_mut() else {
            return Poll::Ready(None);
        };
        match ready!(Pin::new(source).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let size = frame.data_ref().map_or(0, Bytes::len);
                let much = state.kept_bytes + size > REPLAY_LIMIT || state.kept.len() == REPLAY_FRAMES;
                if state.lost || much {
                    state.lost = true;
                    state.kept = Vec::new();
                    this.next = 0;
                } else {
                    state.kept_bytes += size;
                    state.kept.push(copy_frame(&frame));
                    this.next += 1;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                state.lost = true;
                state.source = None;
                Poll::Ready(Some(Err(error)))
            }
            None => {
                state.ended = true;
                state.source = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.shared);
        self.next >= state.kept.len()
            && (state.ended || state.source.as_ref().is_some_and(HttpBody::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        let state = lock(&self.shared);
        if self.next == 0 && !state.lost {
            state.hint
        } else {
            SizeHint::default()
        }
    }
}

#[cfg(test)]
mod tests;
