//! The task of a connection: reads, writes, and detects a dead peer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::boundary::KeepAlive;
use crate::error::Error;
use crate::limits::FRAMES_PER_TURN;
use crate::state::KEEP_ALIVE_PING;
use crate::transport::Transport;

/// Bytes per read.
const READ: usize = 32 * 1024;
/// Consecutive reads before the task yields.
const READS: usize = 8;
/// Bytes queued for the peer above which the connection stops reading.
const WRITE_LIMIT: usize = 512 * 1024;

thread_local! {
    /// Read buffer, one per thread: idle connections hold none.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// Purpose of the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Preface(Duration),
    Received,
    PingAck,
}

pub(crate) struct Driver<I> {
    pub(crate) transport: Arc<Transport<I>>,
    keep_alive: Option<KeepAlive>,
    timer: Pin<Box<Sleep>>,
    wait: Wait,
    /// When the peer last sent something. While no PING is required, the last time the timer checked.
    received: Instant,
}

impl<I> Drop for Driver<I> {
    fn drop(&mut self) {
        self.transport.shared.state().disconnect();
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Driver<I> {
    /// `preface` limits the wait for the client's connection preface, if one is due.
    pub(crate) fn new(
        transport: Arc<Transport<I>>,
        preface: Option<Duration>,
        keep_alive: Option<KeepAlive>,
    ) -> Self {
        let (wait, first) = match (preface, keep_alive) {
            (Some(preface), _) => (Wait::Preface(preface), preface),
            (None, keep_alive) => (Wait::Received, first_interval(&transport, keep_alive)),
        };
        Self {
            transport,
            keep_alive,
            timer: Box::pin(tokio::time::sleep(first)),
            wait,
            received: Instant::now(),
        }
    }

    /// Reads and writes as far as possible without waiting; ready when the connection has ended. `read`
    /// runs after each read, before the output is written, and returns true if it left work for the next
    /// turn.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&Arc<Transport<I>>) -> bool,
    ) -> Poll<Result<(), Error>> {
        let mut more = self.transport.shared.state().begin_turn(cx.waker());
        // SETTINGS are flushed first: a client that starts with TLS detects from them that the port is
        // plaintext.
        let mut flushed = self.transport.poll_flush(cx)?;
        if more {
            more = read(&self.transport);
            flushed = self.transport.poll_flush(cx)?;
        }
        let mut frames = 0;
        for _ in 0..READS {
            if more || frames > FRAMES_PER_TURN {
                break;
            }
            if self.transport.shared.state().output.len() > WRITE_LIMIT {
                return self.poll_end(flushed, cx);
            }
            match self.poll_read(cx)? {
                Poll::Pending => return self.poll_end(flushed, cx),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(came)) => frames += came,
            }
            more = read(&self.transport);
            flushed = self.transport.poll_flush(cx)?;
        }
        cx.waker().wake_by_ref();
        self.poll_end(flushed, cx)
    }

    /// Reads once. Returns the number of frames received, or `None` at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<usize>>, Error> {
        READ_BUFFER.with_borrow_mut(|space| {
            let mut buffer = ReadBuf::new(space);
            match Pin::new(&mut *self.transport.io()).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(Poll::Pending),
                // The peer closed TLS without `close_notify`.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Poll::Ready(None));
                }
                Poll::Ready(result) => result?,
            }
            if buffer.filled().is_empty() {
                return Ok(Poll::Ready(None));
            }
            // Uses the exact time instead of the timer's last tick: a caller may be fenced by the silence
            // of a peer.
            self.received = Instant::now();
            if self.wait == Wait::PingAck {
                self.wait = Wait::Received;
            }
            let mut state = self.transport.shared.state();
            match state.receive(buffer.filled()) {
                Ok(frames) => Ok(Poll::Ready(Some(frames))),
                Err(error) => {
                    state.refuse(error);
                    drop(state);
                    // Sends the GOAWAY, if the socket still accepts it.
                    let _gone = self.transport.poll_flush(cx);
                    Err(error.into())
                }
            }
        })
    }

    fn poll_end(&mut self, flushed: Poll<()>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if flushed.is_ready() && self.transport.shared.state().is_finished() {
            return Poll::Ready(Ok(()));
        }
        if let Wait::Preface(timeout) = self.wait {
            if self.transport.shared.state().awaits_preface() {
                let late = self.timer.as_mut().poll(cx);
                return late.map(|()| Err(Error::PrefaceTimeout(timeout)));
            }
            self.wait = Wait::Received;
            self.set_timer(first_interval(&self.transport, self.keep_alive));
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let next = self.timed_out()?;
            self.set_timer(next);
            if self.transport.poll_flush(cx)?.is_ready() && self.transport.shared.state().is_finished() {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    fn set_timer(&mut self, after: Duration) {
        self.timer.as_mut().reset(Instant::now() + after);
    }

    /// Runs the checks that are due. Returns the wait until the next.
    fn timed_out(&mut self) -> Result<Duration, Error> {
        let now = Instant::now();
        let mut state = self.transport.shared.state();
        state.check_timeouts(now)?;
        let own = state.interval();
        let Some(keep_alive) = self.keep_alive else {
            return Ok(own);
        };
        if self.wait == Wait::PingAck {
            return Err(Error::KeepAliveTimeout(keep_alive.timeout));
        }
        if !state.may_ping() {
            // No answer is due from a peer that was not pinged.
            self.received = now;
        }
        let left = keep_alive
            .interval
            .saturating_sub(now.duration_since(self.received));
        if !left.is_zero() {
            return Ok(left.min(own));
        }
        state.output.ping(KEEP_ALIVE_PING);
        self.wait = Wait::PingAck;
        Ok(keep_alive.timeout)
    }
}

/// The wait before the first check.
fn first_interval<I>(transport: &Transport<I>, keep_alive: Option<KeepAlive>) -> Duration {
    let own = transport.shared.state().interval();
    keep_alive.map_or(own, |keep_alive| keep_alive.interval.min(own))
}
