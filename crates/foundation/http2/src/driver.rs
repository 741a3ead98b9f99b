//! A connection's own task: it reads, writes, and finds out when the peer is gone without having said so.

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

/// Bytes read at once.
const READ: usize = 32 * 1024;
/// Reads of a connection before others have their turn.
const READS: usize = 8;
/// Bytes that wait for the peer to read them, beyond which we do not listen to it.
const WRITE_LIMIT: usize = 512 * 1024;

thread_local! {
    /// Where sockets are read to: a thread reads one at a time, and no idle connection keeps a buffer.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// What the timer is for.
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
    /// When the peer sent something last, as far as it was read; while it need not answer, when that was seen last.
    received: Instant,
}

impl<I> Drop for Driver<I> {
    fn drop(&mut self) {
        self.transport.shared.state().disconnect();
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Driver<I> {
    /// `preface` is how long to wait for the first words, where there must be some.
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

    /// Reads and writes as far as one turn goes without waiting; ready when the connection has ended. `read` runs after
    /// each read, before what it makes is written, and tells whether it has left something for the next turn.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&Arc<Transport<I>>) -> bool,
    ) -> Poll<Result<(), Error>> {
        let mut more = self.transport.shared.state().begin_turn(cx.waker());
        // Our SETTINGS leave first: a client that begins with TLS learns from them that nobody here speaks it.
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

    /// Reads once; how many frames came, or `None` at the end.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<usize>>, Error> {
        READ_BUFFER.with_borrow_mut(|space| {
            let mut buffer = ReadBuf::new(space);
            match Pin::new(&mut *self.transport.io()).poll_read(cx, &mut buffer) {
                Poll::Pending => return Ok(Poll::Pending),
                // TLS that ends without saying so.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Poll::Ready(None));
                }
                Poll::Ready(result) => result?,
            }
            if buffer.filled().is_empty() {
                return Ok(Poll::Ready(None));
            }
            // To the moment: who is fenced by the silence of a peer may not take the next tick of the timer for it.
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
                    // What tells the peer why, if it still can be told.
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

    /// What to do when nothing else woke us; how long to wait then.
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
            // Who is not asked anything owes no answer.
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

/// How long to wait before the first of the checks.
fn first_interval<I>(transport: &Transport<I>, keep_alive: Option<KeepAlive>) -> Duration {
    let own = transport.shared.state().interval();
    keep_alive.map_or(own, |keep_alive| keep_alive.interval.min(own))
}
