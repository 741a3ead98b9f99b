//! Bytes on their way to the socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

/// Data of up to this many bytes is copied behind what waits: cheaper than a piece of its own.
const COPIED: usize = 4096;
/// So much may wait before it has to be written.
const FULL: usize = 16 * 1024;
/// Memory that an idle connection may keep.
const KEPT: usize = 4096;

/// What waits to be written: bytes, then data as it came, then a few bytes behind it.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
    data: Bytes,
    behind: &'static [u8],
    written: usize,
}

impl Out {
    /// Adds data, and `behind` it. Only where nothing [must be written](Self::must_be_written).
    pub(crate) fn data(&mut self, data: Bytes, behind: &'static [u8]) {
        if data.len() <= COPIED {
            self.bytes.extend_from_slice(&data);
            self.bytes.extend_from_slice(behind);
        } else {
            self.data = data;
            self.behind = behind;
        }
    }

    /// Whether nothing may be added before what is here has been written.
    pub(crate) fn must_be_written(&self) -> bool {
        !self.data.is_empty() || self.bytes.len() >= FULL
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.data.is_empty()
    }

    /// Whether some of it has been written.
    pub(crate) fn is_begun(&self) -> bool {
        self.written > 0 || self.is_empty()
    }

    /// Writes all of it.
    pub(crate) fn poll_write<I>(&mut self, io: &mut I, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        I: AsyncWrite + Unpin,
    {
        loop {
            let mut slices = [IoSlice::new(&[]); 3];
            let (mut count, mut skip) = (0, self.written);
            for part in [&*self.bytes, &*self.data, self.behind] {
                let (_, left) = part.split_at(skip.min(part.len()));
                skip = skip.saturating_sub(part.len());
                if !left.is_empty() {
                    slices[count] = IoSlice::new(left);
                    count += 1;
                }
            }
            let io = Pin::new(&mut *io);
            let written = match &slices[..count] {
                [] => break,
                [only] => ready!(io.poll_write(cx, only))?,
                several => ready!(io.poll_write_vectored(cx, several))?,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        self.clear();
        Pin::new(io).poll_flush(cx)
    }

    fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        self.data = Bytes::new();
        self.behind = &[];
        self.written = 0;
    }
}
