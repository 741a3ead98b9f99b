//! Splits the byte stream of a client for hyper: one head, then its body, then the next head.
//!
//! There are two reasons. First, `http::Uri` refuses targets that curl and browsers send, so they are escaped
//! before hyper parses them. Second, whether a client may half-close depends on the position: within a
//! request it is an error, after one the client may still wait for the response. The reader scans a head once
//! for its end. hyper parses it and derives the framing of the body before the reader passes any of the body.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use outrigger_http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::exchange::Exchange;
use super::framing::Framing;
use super::head;
use crate::stall::StallTimer;

/// Bytes that one read into `ahead` may add.
const READ: usize = 4096;
/// Time for the response after the client half-closes; then the reader probes whether the client is still
/// connected.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// An interim response that a client may discard (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// For a head from its first byte, and for the first head of a connection.
    pub(super) head: Duration,
    /// Between a response and the next request.
    pub(super) idle: Duration,
    /// Between two reads of a body that hyper asks for.
    pub(super) body: Duration,
}

/// The reader's position in the stream.
#[derive(Debug, Clone, Copy)]
enum ReaderState {
    /// A head or the rest of one; this many of its first bytes hold no end.
    Head(usize),
    /// A whole head has arrived; this many bytes are left to pass.
    Whole(usize),
    /// A body.
    Body(Framing),
    /// Bytes passed through unchanged.
    Raw,
}

/// The socket of a server connection as hyper sees it. Reads are split; writes have a timeout.
#[derive(Debug)]
pub(super) struct Requests<I> {
    io: I,
    /// Bytes read but not yet given to hyper.
    ahead: BytesMut,
    at: ReaderState,
    /// Whether there was an earlier request.
    served: bool,
    exchange: Arc<Exchange>,
    /// Largest head, in bytes.
    limit: usize,
    times: Times,
    reading: StallTimer,
    writing: StallTimer,
    /// Whether the client has half-closed.
    ended: bool,
    /// The timeout that ended the connection; hyper hides it.
    late: Option<io::Error>,
    /// Probes left for the current response.
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

    /// Why the connection timed out.
    pub(super) fn take_timeout(&mut self) -> Option<io::Error> {
        self.late.take()
    }

    /// Whether the client starts with HTTP/2; `None` if it disconnects before that is known.
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

    /// The connection for another protocol. It starts with the bytes after the last request; `read` are those
    /// that hyper already has.
    pub(super) fn into_raw(mut self, read: &[u8]) -> Self {
        self.at = ReaderState::Raw;
        let ahead = std::mem::take(&mut self.ahead);
        self.ahead.extend_from_slice(read);
        self.ahead.extend_from_slice(&ahead);
        self
    }

    /// Closes the connection. It drains incoming bytes for a while. With unread bytes the kernel would reset
    /// the connection, and the client would lose the last response.
    pub(super) async fn close(&mut self, linger: Duration) {
        let gone = async {
            let mut space = [0; 1024];
            self.io.shutdown().await?;
            while self.io.read(&mut space).await? > 0 {}
            io::Result::Ok(())
        };
        let _gone_or_late = tokio::time::timeout(linger, gone).await;
    }

    /// Passes the next part of the stream; nothing once the client has half-closed.
    fn poll_give(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.at {
                ReaderState::Head(seen) => {
                    if ready!(self.poll_head(seen, cx, space)?) {
                        return Poll::Ready(Ok(()));
                    }
                }
                ReaderState::Whole(0) => self.at = self.state_after_head()?,
                ReaderState::Whole(left) => {
                    self.at = ReaderState::Whole(left - self.give(left, space));
                    return Poll::Ready(Ok(()));
                }
                ReaderState::Body(mut left) => {
                    ready!(self.poll_body(cx, space, |new| left.take(new).map_err(invalid))?);
                    self.at = match left.ended() {
                        true => ReaderState::Head(0),
                        false => ReaderState::Body(left),
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

    /// Passes up to `most` of the bytes read ahead.
    fn give(&mut self, most: usize, space: &mut ReadBuf<'_>) -> usize {
        let given = most.min(self.ahead.len()).min(space.remaining());
        space.put_slice(&self.ahead[..given]);
        self.ahead.advance(given);
        given
    }

    /// The state after a head: by now the service has the request.
    fn state_after_head(&mut self) -> io::Result<ReaderState> {
        self.served = true;
        self.reading.renew();
        let (framing, interim) = self.exchange.framing();
        // A client that is gone answers the first probe with a reset; then the kernel refuses the second.
        self.probes = if interim { 2 } else { 0 };
        match framing {
            Some(framing) if framing.ended() => Ok(ReaderState::Head(0)),
            Some(framing) => Ok(ReaderState::Body(framing)),
            None => Err(invalid("hyper did not take the whole head")),
        }
    }

    /// Reads until a head is whole. True if `space` has it already, or if the client has disconnected.
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
            // Usually a head arrives in one piece and stays in `space`.
            if let Some(end) = head::end(new, 0)
                && head::escaped(&new[..end]).is_none()
            {
                self.exchange.head(new.len() - end);
                self.ahead.extend_from_slice(&new[end..]);
                space.set_filled(before + end);
                self.at = ReaderState::Whole(0);
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
            self.exchange.head(self.ahead.len() - whole);
            self.at = ReaderState::Whole(whole);
            return Poll::Ready(Ok(false));
        }
        if self.ahead.len() > self.limit {
            // hyper responds with 431.
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

    /// The client has half-closed. It may still wait for the response, or it is gone and the call should end;
    /// both look the same. An interim response, which every HTTP/1.1 client must accept, tells them apart.
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

    /// hyper looked for the next request during the call and does not look again until it is woken.
    fn call_ended(&mut self, cx: &mut Context<'_>) {
        self.reading.renew();
        if self.ended || self.poll_stalled::<()>(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Passes part of a body: `take` returns how many of the given bytes belong to it.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
        take: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let most = self.ahead.len().min(space.remaining());
            let mine = take(&self.ahead[..most])?;
            self.give(mine, space);
            return Poll::Ready(Ok(()));
        }
        let before = space.filled().len();
        ready!(self.poll_read(cx, space)?);
        self.reading.renew();
        let new = &space.filled()[before..];
        let mine = take(new)?;
        self.ahead.extend_from_slice(&new[mine..]);
        space.set_filled(before + mine);
        Poll::Ready(Ok(()))
    }

    /// Reads from the socket; returns the number of bytes.
    fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let before = space.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, space) {
            Poll::Pending => self.poll_stalled(cx),
            Poll::Ready(read) => Poll::Ready(read.map(|()| space.filled().len() - before)),
        }
    }

    /// Waits for the client, up to the timeout of the state.
    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let (limit, what) = match self.at {
            // The response is pending, not the client.
            ReaderState::Head(_) if self.is_calling() => return Poll::Pending,
            ReaderState::Head(_) if self.served && self.ahead.is_empty() => (self.times.idle, "no request"),
            ReaderState::Body(_) => (self.times.body, "no more of the request body arrived"),
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
