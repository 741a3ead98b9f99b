//! State that the reader of a connection shares with its service.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::Version;

use super::framing::Framing;
use crate::listen::held::{HeldAnswer, HeldAnswers};

/// What the reader and the service of a connection know about its current call.
#[derive(Debug)]
pub(super) struct Exchange {
    current: Mutex<CurrentRequest>,
    /// Whether the service has a request whose answer hyper has not taken whole.
    calling: AtomicBool,
    /// Whether part of an answer waits for the client to read.
    unwritten: AtomicBool,
    /// Counts large answers.
    held: HeldAnswers,
    /// Whether `large` has a value: saves the lock for small answers.
    is_large: AtomicBool,
    large: Mutex<Option<LargeAnswer>>,
}

/// The request that the reader has given to hyper last.
#[derive(Debug, Default)]
struct CurrentRequest {
    /// The framing that hyper derived from the head, until the reader takes it.
    framing: Option<Framing>,
    /// Bytes that were read behind the head.
    buffered: usize,
    /// Whether the client accepts interim answers.
    interim: bool,
}

/// An answer that counts until it is written whole.
#[derive(Debug)]
struct LargeAnswer {
    held: HeldAnswer,
    /// Whether hyper has taken all of it.
    taken: bool,
}

/// A call, until hyper has taken its whole answer.
#[derive(Debug)]
pub(super) struct Calling(Arc<Exchange>);

impl Calling {
    /// Counts an answer that has so many bytes in memory.
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

    /// The reader gives a whole head to hyper, with so many bytes read behind it.
    #[inline]
    pub(super) fn head(&self, buffered: usize) {
        *self.current() = CurrentRequest {
            buffered,
            ..CurrentRequest::default()
        };
    }

    /// The service has the request; `length` is that of its body, `None` for chunks. Returns how many bytes were read
    /// behind its head.
    #[inline]
    pub(super) fn begin(&self, length: Option<u64>, version: Version) -> usize {
        let mut current = self.current();
        current.framing = Some(Framing::of(length));
        current.interim = version == Version::HTTP_11;
        current.buffered
    }

    /// The framing of the request's body, once the service has the request, and whether the client accepts interim
    /// answers.
    #[inline]
    pub(super) fn framing(&self) -> (Option<Framing>, bool) {
        let mut current = self.current();
        (current.framing.take(), current.interim)
    }

    /// A call begins.
    #[inline]
    pub(super) fn calling(self: &Arc<Self>) -> Calling {
        self.calling.store(true, Ordering::Relaxed);
        Calling(Arc::clone(self))
    }

    /// Whether the answer to a request has not been written whole.
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
    /// The connection has to make room for others.
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

    /// Everything that hyper has taken is written: a large answer counts no more.
    #[inline]
    pub(super) fn flushed(&self) {
        if self.is_large() && self.large().take_if(|large| large.taken).is_some() {
            self.is_large.store(false, Ordering::Relaxed);
        }
    }
}
