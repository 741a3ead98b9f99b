//! Gathers what a connection writes while it is driven, so that a turn ends in one write and one TLS record, whatever
//! number of frames it made. The HTTP/2 library flushes after each large frame, which would send a payload and the
//! status behind it separately.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes gathered at most: the plaintext of one TLS record. What is larger passes by.
const LIMIT: usize = 16 * 1024;

struct Shared<I> {
    io: I,
    out: Vec<u8>,
    /// Bytes of `out` that are written already.
    written: usize,
}

impl<I: AsyncWrite + Unpin> Shared<I> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let sent = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out[self.written..]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += sent;
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn fits(&self, length: usize) -> bool {
        self.out.len() + length <= LIMIT
    }
}

/// The side that the HTTP/2 library writes to and reads from. Flushing it does nothing: [`Outgoing`] does.
pub(crate) struct Gather<I>(Arc<Mutex<Shared<I>>>);

/// The side that ends a turn.
pub(crate) struct Outgoing<I>(Arc<Mutex<Shared<I>>>);

impl<I: AsyncRead + AsyncWrite + Unpin> Gather<I> {
    /// Wraps `io`; nothing is sent but by the second value, or when there is too much of it.
    pub(crate) fn new(io: I) -> (Self, Outgoing<I>) {
        let shared = Arc::new(Mutex::new(Shared {
            io,
            out: Vec::new(),
            written: 0,
        }));
        (Self(Arc::clone(&shared)), Outgoing(shared))
    }
}

impl<I: AsyncWrite + Unpin> Outgoing<I> {
    /// Sends what was gathered.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        ready!(shared.poll_send(cx))?;
        Pin::new(&mut shared.io).poll_flush(cx)
    }
}

fn lock<I>(shared: &Mutex<Shared<I>>) -> MutexGuard<'_, Shared<I>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: AsyncRead + Unpin> AsyncRead for Gather<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Gather<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = lock(&self.0);
        if !shared.fits(buf.len()) {
            ready!(shared.poll_send(cx))?;
            if buf.len() > LIMIT {
                return Pin::new(&mut shared.io).poll_write(cx, buf);
            }
        }
        shared.out.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = bufs.iter().map(|b| b.len()).sum();
        let mut shared = lock(&self.0);
        if !shared.fits(length) {
            ready!(shared.poll_send(cx))?;
            if length > LIMIT {
                return Pin::new(&mut shared.io).poll_write_vectored(cx, bufs);
            }
        }
        for buf in bufs {
            shared.out.extend_from_slice(buf);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        ready!(shared.poll_send(cx))?;
        Pin::new(&mut shared.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn now<T>(poll: Poll<io::Result<T>>) -> Option<T> {
        match poll {
            Poll::Ready(result) => Some(result.unwrap()),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn small_writes_leave_together_when_the_turn_ends() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut gather, out) = Gather::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let mut gather = Pin::new(&mut gather);
        assert_eq!(now(gather.as_mut().poll_write(&mut cx, b"head ")), Some(5));
        now(gather.as_mut().poll_flush(&mut cx)).unwrap();
        let rest = [IoSlice::new(b"data "), IoSlice::new(b"status")];
        assert_eq!(now(gather.as_mut().poll_write_vectored(&mut cx, &rest)), Some(11));
        let mut read = [0; 64];
        let nothing = tokio::time::timeout(std::time::Duration::from_millis(5), far.read(&mut read)).await;
        assert!(nothing.is_err());
        now(out.poll_flush(&mut cx)).unwrap();
        let length = far.read(&mut read).await.unwrap();
        assert_eq!(&read[..length], b"head data status");
    }

    #[tokio::test]
    async fn large_writes_pass_by_behind_what_was_gathered() {
        let (near, mut far) = tokio::io::duplex(4 * LIMIT);
        let (mut gather, _out) = Gather::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let mut gather = Pin::new(&mut gather);
        now(gather.as_mut().poll_write(&mut cx, b"first")).unwrap();
        let large = vec![b'x'; LIMIT + 1];
        assert_eq!(now(gather.as_mut().poll_write(&mut cx, &large)), Some(LIMIT + 1));
        let mut read = vec![0; 5 + LIMIT + 1];
        far.read_exact(&mut read).await.unwrap();
        assert!(read.starts_with(b"firstx"));
    }

    #[test]
    fn a_full_socket_holds_the_writer_back_and_loses_nothing() {
        let (near, mut far) = tokio::io::duplex(100);
        let (mut gather, out) = Gather::new(near);
        let mut cx = Context::from_waker(Waker::noop());
        let mut gather = Pin::new(&mut gather);
        let piece = vec![b'x'; LIMIT / 2];
        let mut taken = 0;
        while now(gather.as_mut().poll_write(&mut cx, &piece)).is_some() {
            taken += piece.len();
        }
        assert_eq!(taken, LIMIT);
        let mut got = 0;
        while got < taken {
            let _more_to_come = out.poll_flush(&mut cx);
            let mut read = [0; 64];
            let mut buf = ReadBuf::new(&mut read);
            now(Pin::new(&mut far).poll_read(&mut cx, &mut buf)).unwrap();
            got += buf.filled().len();
        }
        now(out.poll_flush(&mut cx)).unwrap();
    }
}
