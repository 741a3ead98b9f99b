//! A connection's own task: it reads, writes, and finds out when the peer is gone without a word.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::error::Ended;
use crate::limits::FRAMES_PER_TURN;
use crate::state::THERE;
use crate::wire::Wire;

/// Bytes read at once.
const READ: usize = 32 * 1024;
/// Times a connection reads before others have their turn.
const READS: usize = 8;
/// Bytes that wait for the peer to read them, beyond which we do not listen to it.
const UNREAD: usize = 512 * 1024;

thread_local! {
    /// Where sockets are read to: a thread reads one at a time, and no idle connection keeps a buffer.
    static SPACE: RefCell<Vec<u8>> = RefCell::new(vec![0; READ]);
}

/// How long to wait for a peer that says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Silence {
    /// Before it is pinged.
    pub interval: Duration,
    /// For any word after that.
    pub patience: Duration,
}

/// What the timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Preface(Duration),
    Silence,
    Pong,
}

pub(crate) struct Turns<I> {
    pub(crate) wire: Arc<Wire<I>>,
    silence: Option<Silence>,
    timer: Pin<Box<Sleep>>,
    wait: Wait,
    /// When the peer was known to have said something.
    heard: Instant,
}

impl<I> Drop for Turns<I> {
    fn drop(&mut self) {
        self.wire.core.state().cut();
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Turns<I> {
    /// `preface` is how long to wait for the first words, where there must be some.
    pub(crate) fn new(wire: Arc<Wire<I>>, preface: Option<Duration>, silence: Option<Silence>) -> Self {
        let (wait, first) = match (preface, silence) {
            (Some(preface), _) => (Wait::Preface(preface), preface),
            (None, silence) => (Wait::Silence, next_look(&wire, silence)),
        };
        Self {
            wire,
            silence,
            timer: Box::pin(tokio::time::sleep(first)),
            wait,
            heard: Instant::now(),
        }
    }

    /// Reads and writes as far as one turn goes without waiting; ready when the connection has ended. `read` runs after
    /// each read, before what it makes is written, and tells whether it has left something for the next turn.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&Arc<Wire<I>>) -> bool,
    ) -> Poll<Result<(), Ended>> {
        let mut more = self.wire.core.state().begin_turn(cx.waker());
        // Our settings leave first: a client that begins with TLS learns from them that nobody here speaks it.
        let mut flushed = self.wire.poll_flush(cx)?;
        if more {
            more = read(&self.wire);
            flushed = self.wire.poll_flush(cx)?;
        }
        let mut frames = 0;
        for _ in 0..READS {
            if more || frames > FRAMES_PER_TURN {
                break;
            }
            if self.wire.core.state().out.len() > UNREAD {
                return self.poll_end(flushed, cx);
            }
            match self.poll_read(cx)? {
                Poll::Pending => return self.poll_end(flushed, cx),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(came)) => frames += came,
            }
            more = read(&self.wire);
            flushed = self.wire.poll_flush(cx)?;
        }
        cx.waker().wake_by_ref();
        self.poll_end(flushed, cx)
    }

    /// Reads once; how many frames came, or `None` at the end.
    fn poll_read(&self, cx: &mut Context<'_>) -> Result<Poll<Option<usize>>, Ended> {
        SPACE.with_borrow_mut(|space| {
            let mut buffer = ReadBuf::new(space);
            match Pin::new(&mut *self.wire.io()).poll_read(cx, &mut buffer) {
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
            let mut state = self.wire.core.state();
            match state.receive(buffer.filled()) {
                Ok(frames) => Ok(Poll::Ready(Some(frames))),
                Err(broken) => {
                    state.refuse(broken);
                    drop(state);
                    // What tells the peer why, if it still can be told.
                    let _gone = self.wire.poll_flush(cx);
                    Err(broken.into())
                }
            }
        })
    }

    fn poll_end(&mut self, flushed: Poll<()>, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if flushed.is_ready() && self.wire.core.state().is_done() {
            return Poll::Ready(Ok(()));
        }
        if let Wait::Preface(patience) = self.wait {
            if self.wire.core.state().awaits_preface() {
                let late = self.timer.as_mut().poll(cx);
                return late.map(|()| Err(Ended::NoPreface(patience)));
            }
            self.wait = Wait::Silence;
            self.set_timer(next_look(&self.wire, self.silence));
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let next = self.timed_out()?;
            self.set_timer(next);
            if self.wire.poll_flush(cx)?.is_ready() && self.wire.core.state().is_done() {
                return Poll::Ready(Ok(()));
            }
        }
        Poll::Pending
    }

    fn set_timer(&mut self, after: Duration) {
        self.timer.as_mut().reset(Instant::now() + after);
    }

    /// What to do when nothing else woke us; how long to wait then.
    fn timed_out(&mut self) -> Result<Duration, Ended> {
        let now = Instant::now();
        let mut state = self.wire.core.state();
        state.look_around(now)?;
        let own = state.interval();
        let Some(silence) = self.silence else {
            return Ok(own);
        };
        if state.was_heard() {
            self.wait = Wait::Silence;
            self.heard = now;
        }
        if self.wait == Wait::Pong {
            return Err(Ended::Silent(silence.patience));
        }
        if !state.may_ping() {
            // Who is not asked anything owes no answer.
            self.heard = now;
        }
        let left = silence.interval.saturating_sub(now.duration_since(self.heard));
        if !left.is_zero() {
            return Ok(left.min(own));
        }
        state.out.ping(THERE);
        self.wait = Wait::Pong;
        Ok(silence.patience)
    }
}

/// How long to wait before looking around for the first time.
fn next_look<I>(wire: &Wire<I>, silence: Option<Silence>) -> Duration {
    let own = wire.core.state().interval();
    silence.map_or(own, |silence| silence.interval.min(own))
}
