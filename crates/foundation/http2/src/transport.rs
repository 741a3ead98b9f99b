//! The socket and the state of a connection, as its own task and those of its streams share them.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

use crate::settings::Config;
use crate::state::{Role, SharedState};

/// Streams whose frames may wait for the connection's own task. Tasks run in the order they were woken: after a burst
/// of answers the connection's task would run last, and the next process sit idle until then.
const QUEUED_STREAMS: usize = 4;

pub(crate) struct Transport<I> {
    pub(crate) shared: Arc<SharedState>,
    /// Locked before the state, where both are.
    io: Mutex<I>,
    /// Streams that queued frames since the last write.
    queued: AtomicUsize,
}

impl<I> Transport<I> {
    pub(crate) fn new(io: I, config: &Config, role: Role) -> Arc<Self> {
        Arc::new(Self {
            shared: SharedState::new(config, role),
            io: Mutex::new(io),
            queued: AtomicUsize::new(0),
        })
    }

    pub(crate) fn io(&self) -> MutexGuard<'_, I> {
        self.io.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: AsyncWrite + Unpin> Transport<I> {
    /// Writes what waits, as far as the windows and the socket let it. `cx` must be that of the connection's task.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        self.flush(&mut self.io(), cx)
    }

    fn flush(&self, io: &mut I, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        self.queued.store(0, Ordering::Relaxed);
        let mut state = self.shared.state();
        loop {
            state.send_scheduled();
            if state.output.is_empty() {
                return Ok(Poll::Ready(()));
            }
            if state.output.poll_flush(io, cx)?.is_pending() {
                return Ok(Poll::Pending);
            }
        }
    }

    /// Tells that a stream has queued frames: the connection's task writes them, or, when several wait, the caller.
    pub(crate) fn notify(&self) {
        let many = self.queued.fetch_add(1, Ordering::Relaxed) + 1 >= QUEUED_STREAMS;
        let waker = self.shared.state().waker.clone();
        let Some(waker) = waker else { return };
        if many && let Ok(mut io) = self.io.try_lock() {
            let flushed = self.flush(&mut io, &mut Context::from_waker(&waker));
            // The connection's own task meets the same error, and ends.
            if flushed.is_ok() {
                return;
            }
        }
        waker.wake();
    }
}
