//! Limits the size of a server's answers on the bytes of the connection, before the client library buffers
//! them.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Default limit of one answer in bytes; larger if larger bodies are allowed.
pub const MAX_ANSWER: usize = 64 << 20;

/// The answer limit for a body limit; `None` means unlimited. A stored value takes up to twice its size,
/// because it may be encrypted and Base64-encoded.
pub fn limit(max_body: Option<usize>) -> usize {
    max_body.map_or(usize::MAX, |bytes| bytes.saturating_mul(2).max(MAX_ANSWER))
}

/// Follows a protocol and removes oversized values from its bytes.
pub trait Filter: Send + Unpin {
    /// Whether the next `count` bytes lie within a value that fits; if so, they are counted and pass
    /// unchanged.
    fn pass(&mut self, count: usize) -> bool;

    /// Reads the next bytes and appends their replacement for the client to `shown`.
    ///
    /// # Errors
    /// The connection can no longer be used.
    fn take(&mut self, bytes: &[u8], shown: &mut Vec<u8>) -> io::Result<()>;
}

/// A connection whose client sees only what a filter lets through.
pub struct Filtered<S, F> {
    stream: S,
    filter: F,
    shown: Vec<u8>,
    /// Bytes of `shown` that the client has read.
    given: usize,
}

impl<S, F: Filter> Filtered<S, F> {
    /// Reads from `stream` through `filter`.
    pub fn new(stream: S, filter: F) -> Self {
        Self {
            stream,
            filter,
            shown: Vec::new(),
            given: 0,
        }
    }

    /// The underlying connection.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin, F: Filter> AsyncRead for Filtered<S, F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let rest = &this.shown[this.given..];
            if !rest.is_empty() {
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..count]);
                this.given += count;
                return Poll::Ready(Ok(()));
            }
            this.shown.clear();
            this.given = 0;
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            if read.is_empty() || this.filter.pass(read.len()) {
                return Poll::Ready(Ok(()));
            }
            this.filter.take(read, &mut this.shown)?;
            buffer.set_filled(before);
        }
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Filtered<S, F> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Passes lowercase letters, doubles uppercase letters and drops the rest.
    struct Letters;

    impl Filter for Letters {
        fn pass(&mut self, _: usize) -> bool {
            false
        }

        fn take(&mut self, bytes: &[u8], shown: &mut Vec<u8>) -> io::Result<()> {
            for byte in bytes {
                match byte {
                    b'a'..=b'z' => shown.push(*byte),
                    b'A'..=b'Z' => shown.extend([*byte, *byte]),
                    b'!' => return Err(io::ErrorKind::InvalidData.into()),
                    _ => {}
                }
            }
            Ok(())
        }
    }

    #[tokio::test]
    async fn client_reads_filtered_bytes() {
        let mut filtered = Filtered::new(&b"aBC123 d"[..], Letters);
        // With a buffer smaller than the answer.
        let mut read = Vec::new();
        let mut buffer = [0; 2];
        loop {
            match filtered.read(&mut buffer).await.unwrap() {
                0 => break,
                count => read.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(read, b"aBBCCd");
        let mut broken = Filtered::new(&b"a!"[..], Letters);
        assert!(broken.read(&mut [0; 8]).await.is_err());
    }

    #[test]
    fn answer_limit_follows_body_limit() {
        assert_eq!(limit(Some(4 << 20)), MAX_ANSWER);
        assert_eq!(limit(Some(100 << 20)), 200 << 20);
        assert_eq!(limit(None), usize::MAX);
    }
}
