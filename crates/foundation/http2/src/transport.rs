//! The socket and the state of a connection, shared by its task and its stream tasks.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

use crate::settings::Config;
use crate::state::{Role, SharedState};

/// Streams whose frames may wait for the connection's task. Tasks run in the order they were woken: after a
/// burst of responses that task would run last and leave the peer idle.
const QUEUED_STREAMS: usize = 4;

pub(crate) struct Transport<I> {
    pub(crate) shared: Arc<SharedState>,
    /// Lock order: `io` before the state.
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
    /// Writes queued output as far as the windows and the socket allow. `cx` must belong to the
    /// connection's task.
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

    /// Signals queued frames of a stream: the connection's task writes them or, if several streams wait,
    /// the caller.
    pub(crate) fn notify(&self) {
        let many = self.queued.fetch_add(1, Ordering::Relaxed) + 1 >= QUEUED_STREAMS;
        let waker = self.shared.state().waker.clone();
        let Some(waker) = waker else { return };
        if many && let Ok(mut io) = self.io.try_lock() {
            let flushed = self.flush(&mut io, &mut Context::from_waker(&waker));
            // On an error, the connection's task meets the same error and ends.
            if flushed.is_ok() {
                return;
            }
        }
        waker.wake();
    }
}
