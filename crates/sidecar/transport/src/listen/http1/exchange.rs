//! State shared by the reader of a connection and its service.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::Version;

use super::framing::Framing;
use crate::listen::held::{HeldAnswer, HeldAnswers};

/// The current call of a connection, as its reader and service see it.
#[derive(Debug)]
pub(super) struct Exchange {
    current: Mutex<CurrentRequest>,
    /// Whether the service has a request whose response hyper has not fully taken.
    calling: AtomicBool,
    /// Whether part of a response still waits to be written.
    unwritten: AtomicBool,
    /// Counts large responses.
    held: HeldAnswers,
    /// Whether `large` has a value: saves the lock for small responses.
    is_large: AtomicBool,
    large: Mutex<Option<LargeAnswer>>,
}

/// The last request that the reader gave to hyper.
#[derive(Debug, Default)]
struct CurrentRequest {
    /// The framing that hyper derived from the head, until the reader takes it.
    framing: Option<Framing>,
    /// Bytes read after the head.
    buffered: usize,
    /// Whether the client accepts interim responses.
    interim: bool,
}

/// A response that counts until it is fully written.
#[derive(Debug)]
struct LargeAnswer {
    held: HeldAnswer,
    /// Whether hyper has taken all of it.
    taken: bool,
}

/// A call, until hyper has taken its whole response.
#[derive(Debug)]
pub(super) struct Calling(Arc<Exchange>);

impl Calling {
    /// Counts a response with `bytes` bytes in memory.
    #[inline]
    pub(super) fn hold(&self, bytes: usize) {
        if let Some(held) = self.0.held.hold(bytes) {
            *self.0.large() = Some(LargeAnswer { held, taken: false });
            self.0.is_large.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.calling.store(false, Ordering::Relaxed);
        if self.0.is_large()
            && let Some(large) = self.0.large().as_mut()
        {
            large.taken = true;
        }
    }
}

impl Exchange {
    pub(super) fn new(held: HeldAnswers) -> Self {
        Self {
            current: Mutex::default(),
            calling: AtomicBool::new(false),
            unwritten: AtomicBool::new(false),
            held,
            is_large: AtomicBool::new(false),
            large: Mutex::default(),
        }
    }

    #[inline]
    fn is_large(&self) -> bool {
        self.is_large.load(Ordering::Relaxed)
    }

    fn large(&self) -> MutexGuard<'_, Option<LargeAnswer>> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn current(&self) -> MutexGuard<'_, CurrentRequest> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader gives a whole head to hyper, with `buffered` bytes read after it.
    #[inline]
    pub(super) fn head(&self, buffered: usize) {
        *self.current() = CurrentRequest {
            buffered,
            ..CurrentRequest::default()
        };
    }

    /// The service has the request; `length` is that of its body, `None` for chunks. Returns how many bytes
    /// were read after its head.
    #[inline]
    pub(super) fn begin(&self, length: Option<u64>, version: Version) -> usize {
        let mut current = self.current();
        current.framing = Some(Framing::of(length));
        current.interim = version == Version::HTTP_11;
        current.buffered
    }

    /// The framing of the request body, once the service has the request, and whether the client accepts
    /// interim responses.
    #[inline]
    pub(super) fn framing(&self) -> (Option<Framing>, bool) {
        let mut current = self.current();
        (current.framing.take(), current.interim)
    }

    /// Starts a call.
    #[inline]
    pub(super) fn calling(self: &Arc<Self>) -> Calling {
        self.calling.store(true, Ordering::Relaxed);
        Calling(Arc::clone(self))
    }

    /// Whether the response to a request is not fully written.
    #[inline]
    pub(super) fn is_calling(&self) -> bool {
        self.is_unwritten() || self.calling.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_unwritten(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Records the outcome of a write.
    ///
    /// # Errors
    /// The response was evicted.
    #[inline]
    pub(super) fn written(&self, written: &Poll<io::Result<usize>>, cx: &Context<'_>) -> io::Result<()> {
        self.unwritten.store(written.is_pending(), Ordering::Relaxed);
        if self.is_large()
            && let Some(large) = self.large().as_ref()
        {
            large.held.written(written, cx)?;
        }
        Ok(())
    }

    /// Everything that hyper has taken is written: a large response no longer counts.
    #[inline]
    pub(super) fn flushed(&self) {
        if self.is_large() && self.large().take_if(|large| large.taken).is_some() {
            self.is_large.store(false, Ordering::Relaxed);
        }
    }
}
