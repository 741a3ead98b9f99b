//! gRPC for the load generator: a connection for one call at a time, without tasks, queues or extra
//! wake-ups, so that the generator does not limit the load.
//!
//! Frames received between two calls are processed with the next call.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf as _;
use outrigger_http2::frame::{HEAD, Head};
use outrigger_http2::hpack::HpackError;
use tokio::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Duration, Instant, Sleep, sleep};

use super::call::Call;
use super::connection::CallError;
use super::wire::Counted;
use frames::FRAME;
use link::Link;

mod frames;
mod link;

/// Maximum bytes per read. A complete frame fits.
const READ: usize = 64 << 10;

/// Why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("closed by the peer")]
    Closed,
    #[error("no data from the peer for {} s", .0.as_secs_f64())]
    Silent(Duration),
    #[error("the call was reset with code {0}")]
    Reset(u32),
    #[error("the peer sent GOAWAY with code {0}")]
    GoAway(u32),
    #[error("{0}")]
    Headers(#[from] HpackError),
    #[error("{0}")]
    Protocol(&'static str),
}

/// The client side of a connection.
pub(super) struct Client {
    io: Counted,
    input: Input,
    link: Link,
    /// Expires periodically: a timer per call would be too expensive.
    watch: Pin<Box<Sleep>>,
    silence: Duration,
    /// Whether there was progress since the timer was set.
    heard: bool,
}

impl Client {
    /// Sends the preface and leaves the response to the first call. A call fails after between one and two
    /// times `silence` without a byte in either direction.
    ///
    /// # Errors
    ///
    /// If the connection breaks.
    pub(super) async fn open(mut io: Counted, silence: Duration) -> Result<Self, Fault> {
        let mut link = Link::new();
        io.write_all_buf(link.out()).await?;
        Ok(Self {
            io,
            input: Input::new(),
            link,
            watch: Box::pin(sleep(silence)),
            silence,
            heard: true,
        })
    }

    /// Makes the call. Returns the arrival time of the response head, and the length of the body.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or the response is not a success.
    pub(super) async fn call(&mut self, call: &Call) -> Result<(Instant, usize), CallError> {
        self.link.begin(call)?;
        self.heard = true;
        loop {
            let more = self.link.fill(call.body());
            poll_fn(|cx| self.turn(cx, more)).await?;
            while let Some((head, payload)) = self.input.next()? {
                self.link.frame(head, payload)?;
            }
            if let Some(answer) = self.link.answer(call.body())? {
                if self.link.is_asked() {
                    poll_fn(|cx| self.flush(cx)).await?;
                }
                return Ok(answer);
            }
        }
    }

    /// Writes pending output, and waits for input, or for a window to write `more`.
    fn turn(&mut self, cx: &mut Context<'_>, more: bool) -> Poll<Result<(), Fault>> {
        let written = self.write(cx)?.is_ready();
        let mut spare = ReadBuf::new(self.input.spare());
        match Pin::new(&mut self.io).poll_read(cx, &mut spare)? {
            Poll::Ready(()) => {
                let count = spare.filled().len();
                if count == 0 {
                    return Poll::Ready(Err(Fault::Closed));
                }
                self.input.end += count;
                self.heard = true;
                Poll::Ready(Ok(()))
            }
            Poll::Pending if more && written => Poll::Ready(Ok(())),
            Poll::Pending => self.silent(cx),
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        if self.write(cx)?.is_ready() {
            Poll::Ready(Ok(()))
        } else {
            self.silent(cx)
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.link.out().is_empty() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, self.link.out()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.link.out().advance(count);
            self.heard = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready if there was no progress for too long.
    fn silent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        loop {
            ready!(self.watch.as_mut().poll(cx));
            if !std::mem::take(&mut self.heard) {
                return Poll::Ready(Err(Fault::Silent(self.silence)));
            }
            self.watch.as_mut().reset(Instant::now() + self.silence);
        }
    }
}

/// Received but unprocessed data.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn new() -> Self {
        Self {
            bytes: vec![0; READ].into(),
            start: 0,
            end: 0,
        }
    }

    /// The next complete frame.
    fn next(&mut self) -> Result<Option<(Head, &[u8])>, Fault> {
        let rest = &self.bytes[self.start..self.end];
        let Some(head) = Head::read(rest) else {
            return Ok(None);
        };
        if head.length > FRAME {
            return Err(Fault::Protocol("the peer sends a frame that is too large"));
        }
        let Some(payload) = rest.get(HEAD..HEAD + head.length) else {
            return Ok(None);
        };
        self.start += HEAD + head.length;
        Ok(Some((head, payload)))
    }

    /// Free space of the read buffer: never empty if no complete frame is left unprocessed.
    fn spare(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.bytes.len() - self.end < FRAME {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

#[cfg(test)]
mod tests;
