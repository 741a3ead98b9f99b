//! A connection that ends when its certificates expire.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::reached;

/// A stream whose reads and writes fail after a given time, including pending ones.
///
/// Reader and writer must be the same task, as in an HTTP/2 connection: expiry wakes the last task that
/// polled.
pub struct UntilExpired<S> {
    stream: S,
    end: Timestamp,
    /// `None` after expiry.
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S> UntilExpired<S> {
    /// Limits `stream` until `end`.
    pub fn new(stream: S, end: Timestamp) -> Self {
        Self {
            stream,
            end,
            waiting: Some(Box::pin(reached(end))),
        }
    }

    /// Pending while the certificates are valid.
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if let Some(waiting) = &mut self.waiting {
            ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
        }
        let text = format!("a certificate of this connection expired at {}", self.end);
        Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, text))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UntilExpired<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.poll_expired(cx) {
            Poll::Ready(expired) => Poll::Ready(Err(expired)),
            Poll::Pending => Pin::new(&mut this.stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UntilExpired<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.poll_expired(cx) {
            Poll::Ready(expired) => Poll::Ready(Err(expired)),
            Poll::Pending => Pin::new(&mut this.stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.poll_expired(cx) {
            Poll::Ready(expired) => Poll::Ready(Err(expired)),
            Poll::Pending => Pin::new(&mut this.stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.poll_expired(cx) {
            Poll::Ready(expired) => Poll::Ready(Err(expired)),
            Poll::Pending => Pin::new(&mut this.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn expiry_fails_pending_reads() {
        let (near, mut far) = duplex(16);
        let mut near = UntilExpired::new(near, Timestamp::now() + Duration::from_millis(200));
        far.write_all(b"early").await.unwrap();
        let mut text = [0; 5];
        near.read_exact(&mut text).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(30), near.read(&mut text)).await;
        let error = read.expect("a read outlives the certificate").unwrap_err();
        assert!(error.to_string().contains("expired at"), "{error}");
        assert!(near.write_all(b"late").await.is_err());
        assert!(near.flush().await.is_err());
        near.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn expired_stream_fails() {
        let (near, mut far) = duplex(16);
        let mut near = UntilExpired::new(near, Timestamp::now());
        assert!(near.write_all(b"late").await.is_err());
        drop(near);
        assert_eq!(far.read(&mut [0; 5]).await.unwrap(), 0);
    }
}
