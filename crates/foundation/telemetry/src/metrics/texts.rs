//! Large texts rendered per request, with a bound on those kept for slow clients.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// Maximum number of texts not yet read to the end.
const MAX_TEXTS: usize = 4;
/// At the maximum, requests share the newest text for this long; then a new text evicts the oldest.
const SHARED: Duration = Duration::from_secs(1);
/// Bytes that a connection takes at once: a copy, so that it retains nothing else of the text.
const PIECE: usize = 8 << 10;

/// The texts of a server, each of a kind `K`.
#[derive(Debug)]
pub struct Texts<K> {
    /// An async lock: a request that waits for a rendering text blocks no thread.
    slots: tokio::sync::Mutex<Vec<Slot<K>>>,
}

#[derive(Debug)]
struct Slot<K> {
    kind: K,
    since: Instant,
    text: Weak<Text>,
}

/// `None` after eviction.
#[derive(Debug)]
struct Text(Mutex<Option<Bytes>>);

impl Text {
    fn bytes(&self) -> MutexGuard<'_, Option<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Default for Texts<K> {
    fn default() -> Self {
        Self {
            slots: tokio::sync::Mutex::default(),
        }
    }
}

impl<K: PartialEq> Texts<K> {
    /// Renders a text of this kind with `write`. If clients leave many texts unread, returns one rendered
    /// up to a second ago, or evicts the oldest.
    pub async fn answer(&self, kind: K, write: impl FnOnce() -> String) -> TextBody {
        // Texts are rendered one at a time, because each needs memory.
        let mut slots = self.slots.lock().await;
        slots.retain(|slot| slot.text.strong_count() > 0);
        if slots.len() >= MAX_TEXTS {
            let newest = slots.iter().rev().find(|slot| slot.kind == kind);
            let newest = newest.filter(|slot| slot.since.elapsed() < SHARED);
            if let Some(text) = newest.and_then(|slot| slot.text.upgrade())
                && let Some(body) = TextBody::new(text)
            {
                return body;
            }
            if let Some(text) = slots.remove(0).text.upgrade() {
                text.bytes().take();
            }
        }
        let mut text = write();
        text.shrink_to_fit();
        let text = Arc::new(Text(Mutex::new(Some(Bytes::from(text)))));
        slots.push(Slot {
            kind,
            since: Instant::now(),
            text: Arc::downgrade(&text),
        });
        drop(slots);
        TextBody::new(text).unwrap_or_default()
    }
}

/// A text being sent to a client; empty by default.
#[derive(Debug, Default)]
pub struct TextBody {
    text: Option<Arc<Text>>,
    length: usize,
    sent: usize,
}

impl TextBody {
    fn new(text: Arc<Text>) -> Option<Self> {
        let length = text.bytes().as_ref()?.len();
        Some(Self {
            text: Some(text),
            length,
            sent: 0,
        })
    }

    fn piece(&self) -> Result<Bytes, BrokenOff> {
        let text = self.text.as_ref().ok_or(BrokenOff)?.bytes();
        let end = self.length.min(self.sent + PIECE);
        let piece = text.as_ref().and_then(|bytes| bytes.get(self.sent..end));
        piece.map(Bytes::copy_from_slice).ok_or(BrokenOff)
    }
}

/// The text was evicted because it was not read.
#[derive(Debug, thiserror::Error)]
#[error("the client was too slow: response dropped after {MAX_TEXTS} newer requests")]
pub struct BrokenOff;

impl Body for TextBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let piece = self.piece();
        if let Ok(piece) = &piece {
            self.sent += piece.len();
        }
        if piece.is_err() || self.is_end_stream() {
            self.text = None;
        }
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.sent >= self.length
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.length - self.sent) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Waker};

    use http_body_util::BodyExt;

    use super::*;

    async fn read(body: TextBody) -> Option<String> {
        let bytes = body.collect().await.ok()?.to_bytes();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Every request renders a new text while clients read.
    #[tokio::test]
    async fn reader_gets_new_text() {
        let texts = Texts::default();
        for number in 0..3 * MAX_TEXTS {
            let text = format!("{number}").repeat(3 * PIECE);
            let body = texts.answer((), || text.clone()).await;
            assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
            assert_eq!(read(body).await, Some(text));
        }
        assert_eq!(
            read(texts.answer((), String::new).await).await.as_deref(),
            Some("")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bounds_unread_texts() {
        let texts = Texts::default();
        let text = |number: usize| format!("{number}").repeat(PIECE);
        let mut unread = Vec::new();
        for number in 0..64 {
            unread.push(texts.answer("plain", || text(number)).await);
        }
        // Requests within the same second share the last text that fit.
        let written = |bodies: &[TextBody]| {
            let texts = bodies.iter().filter_map(|body| body.text.as_ref());
            let mut texts: Vec<_> = texts
                .filter(|text| text.bytes().is_some())
                .map(Arc::as_ptr)
                .collect();
            texts.sort_unstable();
            texts.dedup();
            texts.len()
        };
        assert_eq!(written(&unread), MAX_TEXTS);
        assert_eq!(
            read(texts.answer("plain", || text(64)).await).await,
            Some(text(3))
        );
        // Later, a new text evicts the oldest.
        tokio::time::advance(SHARED).await;
        let late = texts.answer("plain", || text(65)).await;
        let other = texts.answer("other", || text(66)).await;
        unread.extend([late, other]);
        assert_eq!(written(&unread), MAX_TEXTS);
        assert_eq!(read(unread.pop().unwrap()).await, Some(text(66)));
        assert_eq!(read(unread.pop().unwrap()).await, Some(text(65)));
        assert_eq!(read(unread.remove(0)).await, None, "broken off");
        assert_eq!(read(unread.pop().unwrap()).await, Some(text(3)));
        drop(unread);
        assert_eq!(
            read(texts.answer("plain", || text(67)).await).await,
            Some(text(67))
        );
    }

    /// A request that waits for a rendering text blocks no thread.
    #[tokio::test]
    async fn waiting_blocks_no_thread() {
        let texts = Texts::default();
        let mut late = pin!(texts.answer((), || "second".to_owned()));
        let mut context = Context::from_waker(Waker::noop());
        let first = texts.answer((), || {
            assert!(late.as_mut().poll(&mut context).is_pending());
            "first".to_owned()
        });
        assert_eq!(read(first.await).await.as_deref(), Some("first"));
        assert_eq!(read(late.await).await.as_deref(), Some("second"));
    }
}
