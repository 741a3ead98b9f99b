//! What a client sends, cut for hyper: one head, then its body, then the next head.
//!
//! hyper reads as much as there is, and refuses targets that clients send all the same. Therefore it gets a head only
//! when it is whole, with its target escaped, and nothing that is behind it. How the body is framed is hyper's decision:
//! it is heard from the request that it makes of the head, before anything of the body is given.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::Version;
use outrigger_http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::head;
use crate::chunks::Chunks;
use crate::listen::held::{HeldAnswer, HeldAnswers};
use crate::stall::StallTimer;

/// Bytes that a read into a buffer of our own may bring.
const READ: usize = 4096;
/// Time for the answer to a client that has said that it says no more, before it is asked whether it listens.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// An interim answer that a client may discard (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For a head, once it has begun, and for the first one of a connection.
    pub(super) head: Duration,
    /// Between an answer and the next request.
    pub(super) idle: Duration,
    /// Between two pieces of a body that is waited for.
    pub(super) body: Duration,
}

/// How the end of a request's body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// By its length.
    Length(u64),
    /// By a last chunk.
    Chunks,
}

/// What the reader of a connection and its service have to tell each other.
#[derive(Debug)]
pub(super) struct Exchange {
    current: Mutex<CurrentRequest>,
    /// Whether a request has been taken and not been answered whole.
    calling: AtomicBool,
    /// Whether something of an answer waits for the client to read.
    unwritten: AtomicBool,
    /// Where large answers are counted.
    held: HeldAnswers,
    /// Whether the answer is one of these.
    is_large: AtomicBool,
    large: Mutex<Option<LargeAnswer>>,
}

/// An answer that is counted until it is written whole.
#[derive(Debug)]
struct LargeAnswer {
    held: HeldAnswer,
    /// Whether hyper has taken all of it.
    taken: bool,
}

/// A call until hyper has taken all of its answer.
#[derive(Debug)]
pub(super) struct Calling(Arc<Exchange>);

impl Calling {
    /// So many bytes of the answer are in memory.
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

/// What is known of the request that is being read.
#[derive(Debug, Default)]
struct CurrentRequest {
    /// How hyper takes its body to be framed, until the reader has taken note of it.
    framing: Option<Framing>,
    /// Bytes of the body that came with the head.
    buffered: usize,
    /// Whether the head has both `Transfer-Encoding` and `Content-Length`.
    two_framings: bool,
    /// Whether the client knows interim answers.
    interim: bool,
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

    /// Takes note of a write.
    ///
    /// # Errors
    /// The connection has to make room for others.
    #[inline]
    fn written(&self, written: &Poll<io::Result<usize>>, cx: &Context<'_>) -> io::Result<()> {
        self.unwritten.store(written.is_pending(), Ordering::Relaxed);
        if self.is_large()
            && let Some(large) = self.large().as_ref()
        {
            large.held.written(written, cx)?;
        }
        Ok(())
    }

    /// Nothing that hyper has taken waits for the client.
    #[inline]
    fn flushed(&self) {
        if self.is_large() && self.large().take_if(|large| large.taken).is_some() {
            self.is_large.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    fn current(&self) -> MutexGuard<'_, CurrentRequest> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service has a request whose body is framed like this. Returns how many bytes of it are here already, and
    /// whether its head told another framing too.
    #[inline]
    pub(super) fn begin(&self, framing: Framing, version: Version) -> (usize, bool) {
        let mut current = self.current();
        current.framing = Some(framing);
        current.interim = version == Version::HTTP_11;
        (current.buffered, current.two_framings)
    }

    /// A call begins.
    #[inline]
    pub(super) fn calling(self: &Arc<Self>) -> Calling {
        self.calling.store(true, Ordering::Relaxed);
        Calling(Arc::clone(self))
    }

    /// Whether a request has been taken, and its answer has not been written whole.
    #[inline]
    pub(super) fn is_calling(&self) -> bool {
        self.is_unwritten() || self.calling.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_unwritten(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed)
    }

    #[inline]
    fn head(&self, two_framings: bool, buffered: usize) {
        *self.current() = CurrentRequest {
            framing: None,
            buffered,
            two_framings,
            interim: false,
        };
    }

    #[inline]
    fn framing(&self) -> (Option<Framing>, bool) {
        let mut current = self.current();
        (current.framing.take(), current.interim)
    }
}

/// Where in the conversation the reader is.
#[derive(Debug, Clone, Copy)]
enum ReaderState {
    /// Before a head, or in it; so many bytes have been looked at.
    Head(usize),
    /// In a whole head, with so many bytes of it to give.
    Whole(usize),
    /// Behind a head: the service knows what comes.
    Behind,
    /// In a body with so many bytes to come.
    Body(u64),
    /// In a body of chunks.
    Chunks(Chunks),
    /// In something that is not cut.
    Raw,
}

/// The reading half of a server's connection, and a writing half that is not waited for too long.
#[derive(Debug)]
pub(super) struct Requests<I> {
    io: I,
    /// Read and not given to hyper yet.
    ahead: BytesMut,
    at: ReaderState,
    /// Whether there was a request before.
    served: bool,
    exchange: Arc<Exchange>,
    /// Bytes of a head.
    limit: usize,
    times: Times,
    reading: StallTimer,
    writing: StallTimer,
    /// Whether the client has said that it says no more.
    ended: bool,
    /// What did not come in time: hyper does not tell.
    late: Option<io::Error>,
    /// How often it may still be asked whether it listens.
    probes: u8,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Requests<I> {
    pub(super) fn new(io: I, exchange: Arc<Exchange>, limit: usize, times: Times) -> Self {
        Self {
            io,
            ahead: BytesMut::new(),
            at: ReaderState::Head(0),
            served: false,
            exchange,
            limit,
            times,
            reading: StallTimer::default(),
            writing: StallTimer::default(),
            ended: false,
            late: None,
            probes: 0,
        }
    }

    /// Why the connection was given up.
    pub(super) fn take_late(&mut self) -> Option<io::Error> {
        self.late.take()
    }

    /// Whether the client begins with HTTP/2; `None` when it leaves before that can be told.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) async fn begins_with_http2(&mut self) -> io::Result<Option<bool>> {
        loop {
            if self.ahead.starts_with(PREFACE) {
                return Ok(Some(true));
            }
            if !PREFACE.starts_with(&self.ahead) {
                return Ok(Some(false));
            }
            if self.io.read_buf(&mut self.ahead).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The connection for something else than HTTP/1.1, with everything behind the last request; `read` is what hyper has
    /// of that.
    pub(super) fn into_raw(mut self, read: &[u8]) -> Self {
        self.at = ReaderState::Raw;
        let ahead = std::mem::take(&mut self.ahead);
        self.ahead.extend_from_slice(read);
        self.ahead.extend_from_slice(&ahead);
        self
    }

    /// Closes the connection. What the client still sends is read for a while: unread, it would make the kernel take back
    /// the last answer.
    pub(super) async fn close(&mut self, linger: Duration) {
        let gone = async {
            let mut space = [0; 1024];
            self.io.shutdown().await?;
            while self.io.read(&mut space).await? > 0 {}
            io::Result::Ok(())
        };
        let _gone_or_late = tokio::time::timeout(linger, gone).await;
    }

    /// Gives the next part of a conversation; nothing when the client has ended it.
    fn poll_give(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.at {
                ReaderState::Head(seen) => {
                    if ready!(self.poll_head(seen, cx, space)?) {
                        return Poll::Ready(Ok(()));
                    }
                }
                ReaderState::Whole(left) => {
                    let given = self.give(left, space);
                    self.at = match left - given {
                        0 => ReaderState::Behind,
                        left => ReaderState::Whole(left),
                    };
                    return Poll::Ready(Ok(()));
                }
                ReaderState::Behind => self.at = self.behind()?,
                ReaderState::Body(left) => {
                    let given = ready!(self.poll_body(cx, space, |new| Ok(left.min(new.len() as u64)))?);
                    self.at = match left.saturating_sub(given as u64) {
                        0 => ReaderState::Head(0),
                        left => ReaderState::Body(left),
                    };
                    return Poll::Ready(Ok(()));
                }
                ReaderState::Chunks(mut chunks) => {
                    ready!(self.poll_body(cx, space, |new| {
                        let taken = chunks.follow(new).map_err(invalid)?;
                        Ok(taken as u64)
                    })?);
                    self.at = match chunks.ended() {
                        true => ReaderState::Head(0),
                        false => ReaderState::Chunks(chunks),
                    };
                    return Poll::Ready(Ok(()));
                }
                ReaderState::Raw if self.ahead.is_empty() => {
                    return Pin::new(&mut self.io).poll_read(cx, space);
                }
                ReaderState::Raw => {
                    self.give(usize::MAX, space);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Gives up to `most` of the bytes that were read ahead.
    fn give(&mut self, most: usize, space: &mut ReadBuf<'_>) -> usize {
        let given = most.min(self.ahead.len()).min(space.remaining());
        space.put_slice(&self.ahead[..given]);
        self.ahead.advance(given);
        given
    }

    /// What follows a head.
    fn behind(&mut self) -> io::Result<ReaderState> {
        self.served = true;
        self.reading.renew();
        let (framing, interim) = self.exchange.framing();
        // A client that has gone resets the connection upon the first; the second is refused by the kernel then.
        self.probes = if interim { 2 } else { 0 };
        Ok(match framing {
            Some(Framing::Length(0)) => ReaderState::Head(0),
            Some(Framing::Length(length)) => ReaderState::Body(length),
            Some(Framing::Chunks) => ReaderState::Chunks(Chunks::default()),
            None => return Err(invalid("a head that ends in two places")),
        })
    }

    /// Reads until a head is whole. True when it has been given already, or when the client has left.
    fn poll_head(
        &mut self,
        seen: usize,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        if self.ahead.is_empty() {
            let before = space.filled().len();
            if self.ended || ready!(self.poll_read(cx, space)?) == 0 {
                return self.poll_end(cx);
            }
            let new = &space.filled()[before..];
            // Mostly a head comes in one piece, and is given where it lies.
            if let Some(end) = head::end(new, 0)
                && head::escaped(&new[..end]).is_none()
            {
                self.exchange
                    .head(head::has_two_framings(&new[..end]), new.len() - end);
                self.ahead.extend_from_slice(&new[end..]);
                space.set_filled(before + end);
                self.at = ReaderState::Behind;
                return Poll::Ready(Ok(true));
            }
            self.ahead.extend_from_slice(new);
            space.set_filled(before);
            self.reading.renew();
        }
        if let Some(end) = head::end(&self.ahead, seen) {
            let mut whole = end;
            if let Some(escaped) = head::escaped(&self.ahead[..end]) {
                whole = escaped.len();
                let behind = std::mem::take(&mut self.ahead).split_off(end);
                self.ahead.reserve(whole + behind.len());
                self.ahead.extend_from_slice(&escaped);
                self.ahead.extend_from_slice(&behind);
            }
            let two_framings = head::has_two_framings(&self.ahead[..whole]);
            self.exchange.head(two_framings, self.ahead.len() - whole);
            self.at = ReaderState::Whole(whole);
            return Poll::Ready(Ok(false));
        }
        if self.ahead.len() > self.limit {
            // hyper refuses it, with the right answer.
            self.at = ReaderState::Raw;
            return Poll::Ready(Ok(false));
        }
        self.at = ReaderState::Head(self.ahead.len());
        self.ahead.reserve(READ);
        if self.ended {
            return self.poll_end(cx);
        }
        match pin!(self.io.read_buf(&mut self.ahead)).poll(cx)? {
            Poll::Pending => self.poll_stalled(cx),
            Poll::Ready(0) => self.poll_end(cx),
            Poll::Ready(_) => Poll::Ready(Ok(false)),
        }
    }

    /// The client says no more. While it waits for an answer that is its right; but it looks the same if it has gone, and
    /// then the call is not to go on. So it is sent what a client of HTTP/1.1 has to expect at any time.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if !self.ended {
            self.ended = true;
            self.reading.renew();
        }
        if !self.is_calling() {
            return Poll::Ready(Ok(true));
        }
        while self.probes > 0 && !self.exchange.is_unwritten() {
            let _waited = ready!(self.reading.poll(PROBE_AFTER, "the client sent nothing more", cx));
            self.reading.renew();
            self.probes -= 1;
            ready!(Pin::new(&mut self.io).poll_write(cx, CONTINUE)?);
        }
        Poll::Pending
    }

    #[inline]
    fn is_calling(&self) -> bool {
        self.exchange.is_calling()
    }

    fn written(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.probes = 0;
        self.exchange.written(&written, cx)?;
        if matches!(self.at, ReaderState::Head(_)) && !self.is_calling() {
            self.call_ended(cx);
        }
        self.writing.of_write(written, cx)
    }

    /// hyper looked for the next request during the call, and does not look again before it is woken.
    fn call_ended(&mut self, cx: &mut Context<'_>) {
        self.reading.renew();
        if self.ended || self.poll_stalled::<()>(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Gives a part of a body: `of` tells how many of the bytes that are here belong to it.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        of: impl FnOnce(&[u8]) -> io::Result<u64>,
    ) -> Poll<io::Result<usize>> {
        let least = |of: u64| usize::try_from(of).unwrap_or(usize::MAX);
        if !self.ahead.is_empty() {
            let most = self.ahead.len().min(space.remaining());
            let mine = least(of(&self.ahead[..most])?);
            return Poll::Ready(Ok(self.give(mine, space)));
        }
        let before = space.filled().len();
        ready!(self.poll_read(cx, space)?);
        self.reading.renew();
        let new = &space.filled()[before..];
        let mine = least(of(new)?);
        self.ahead.extend_from_slice(&new[mine..]);
        space.set_filled(before + mine);
        Poll::Ready(Ok(mine))
    }

    /// Reads from the socket; how many bytes came.
    fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let before = space.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, space) {
            Poll::Pending => self.poll_stalled(cx),
            Poll::Ready(read) => Poll::Ready(read.map(|()| space.filled().len() - before)),
        }
    }

    /// Waits for the client, as long as its state allows.
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let (limit, what) = match self.at {
            // It is for us to speak.
            ReaderState::Head(_) if self.is_calling() => return Poll::Pending,
            ReaderState::Head(_) if self.served && self.ahead.is_empty() => (self.times.idle, "no request"),
            ReaderState::Body(_) | ReaderState::Chunks(_) => {
                (self.times.body, "the client sent no more of a request's body")
            }
            _ => (self.times.head, "no complete head of a request"),
        };
        let late = ready!(self.reading.poll(limit, what, cx));
        let error = io::Error::new(late.kind(), late.to_string());
        self.late = Some(late);
        Poll::Ready(Err(error))
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Requests<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().poll_give(cx, space)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Requests<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.written(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, slices);
        this.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx)?);
        self.exchange.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
