//! The output buffer. Small pieces are merged, so that a turn ends in one write and one TLS record; large
//! payloads are not copied.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use crate::error::Reason;
use crate::frame::{HEAD, Head, Kind, flag};

/// Payloads of at least this many bytes are not copied.
const LARGE: usize = 8 * 1024;
/// Pieces passed to the socket in one call.
const PIECES: usize = 16;
/// Capacity retained between turns.
const KEPT_CAPACITY: usize = 4 * 1024;
/// Bytes of replies to the peer's control frames that may be unread.
const UNREAD_REPLIES: usize = 64 * 1024;

/// Queued frames.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// Pieces written before `tail`.
    pieces: VecDeque<Bytes>,
    /// Total bytes of `pieces`.
    ahead: usize,
    tail: BytesMut,
    /// Bytes of replies to control frames since the buffer was last empty.
    replies: usize,
    /// Bytes written to the socket since the connection started.
    written: u64,
}

impl WriteBuffer {
    /// Bytes written to the socket since the connection started.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// The value of [`Self::written`] once the current output is written.
    pub(crate) fn end(&self) -> u64 {
        self.written + self.len() as u64
    }

    /// Bytes queued.
    pub(crate) fn len(&self) -> usize {
        self.ahead + self.tail.len()
    }

    /// True if nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the peer causes replies and does not read them.
    pub(crate) fn is_flooded(&self) -> bool {
        self.replies > UNREAD_REPLIES
    }

    /// The buffer to which new frames are written.
    pub(crate) fn tail(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    fn frame(&mut self, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
        let head = Head {
            length: payload.len(),
            kind,
            flags,
            stream,
        };
        self.tail.extend_from_slice(&head.bytes());
        self.tail.extend_from_slice(payload);
    }

    fn reply(&mut self, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
        self.replies += HEAD + payload.len();
        self.frame(kind, flags, stream, payload);
    }

    pub(crate) fn settings_ack(&mut self) {
        self.reply(Kind::Settings, flag::ACK, 0, &[]);
    }

    pub(crate) fn ping_ack(&mut self, payload: &[u8]) {
        self.reply(Kind::Ping, flag::ACK, 0, payload);
    }

    pub(crate) fn ping(&mut self, payload: [u8; 8]) {
        self.frame(Kind::Ping, 0, 0, &payload);
    }

    pub(crate) fn rst_stream(&mut self, stream: u32, reason: Reason) {
        self.reply(Kind::Reset, 0, stream, &reason.0.to_be_bytes());
    }

    pub(crate) fn window_update(&mut self, stream: u32, more: u32) {
        self.frame(Kind::WindowUpdate, 0, stream, &more.to_be_bytes());
    }

    /// `last` is the highest stream that was or may still be served.
    pub(crate) fn go_away(&mut self, last: u32, reason: Reason) {
        let [l3, l2, l1, l0] = last.to_be_bytes();
        let [r3, r2, r1, r0] = reason.0.to_be_bytes();
        self.frame(Kind::GoAway, 0, 0, &[l3, l2, l1, l0, r3, r2, r1, r0]);
    }

    pub(crate) fn data(&mut self, stream: u32, payload: Bytes, ended: bool) {
        let head = Head {
            length: payload.len(),
            kind: Kind::Data,
            flags: if ended { flag::END_STREAM } else { 0 },
            stream,
        };
        self.tail.extend_from_slice(&head.bytes());
        if payload.len() < LARGE {
            self.tail.extend_from_slice(&payload);
            return;
        }
        self.seal();
        self.ahead += payload.len();
        self.pieces.push_back(payload);
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.ahead += self.tail.len();
            self.pieces.push_back(self.tail.split().freeze());
        }
    }

    /// Writes the queued output and flushes.
    pub(crate) fn poll_flush<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.ahead > 0 {
            self.seal();
            ready!(self.poll_pieces(io, cx))?;
        }
        while !self.tail.is_empty() {
            let sent = ready!(Pin::new(&mut *io).poll_write(cx, &self.tail))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += sent as u64;
            if sent == self.tail.len() {
                self.tail.clear();
            } else {
                self.tail.advance(sent);
            }
        }
        self.replies = 0;
        if self.tail.capacity() > KEPT_CAPACITY {
            self.tail = BytesMut::new();
        }
        Pin::new(io).poll_flush(cx)
    }

    fn poll_pieces<I: AsyncWrite + Unpin>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let mut sent = ready!(Pin::new(io).poll_write_vectored(cx, &slices[..count]))?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.ahead -= sent;
        self.written += sent as u64;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.len() > sent {
                piece.advance(sent);
                break;
            }
            sent -= piece.len();
            self.pieces.pop_front();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
impl WriteBuffer {
    /// Drains the output as a socket would.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.seal();
        let written = self.end();
        let all = std::mem::take(self).pieces;
        self.written = written;
        all.iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn frames_keep_order() {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let mut out = WriteBuffer::default();
        out.ping(*b"first...");
        out.data(1, vec![b'x'; LARGE].into(), false);
        out.data(1, Bytes::from_static(b"last"), true);
        let length = out.len();
        let reading = tokio::spawn(async move {
            let mut got = vec![0; length];
            far.read_exact(&mut got).await.unwrap();
            got
        });
        std::future::poll_fn(|cx| out.poll_flush(&mut near, cx))
            .await
            .unwrap();
        assert!(out.is_empty());
        let got = reading.await.unwrap();
        assert_eq!(&got[HEAD..HEAD + 8], b"first...");
        let data = Head::read(&got[17..]).unwrap();
        assert_eq!((data.kind, data.length, data.flags), (Kind::Data, LARGE, 0));
        assert!(got.ends_with(b"\0\0\x04\0\x01\0\0\0\x01last"));
    }

    #[test]
    fn full_socket_keeps_rest() {
        let (mut near, mut far) = tokio::io::duplex(100);
        let mut out = WriteBuffer::default();
        out.data(1, vec![b'x'; 3 * LARGE].into(), true);
        let (mut cx, mut got, all) = (Context::from_waker(Waker::noop()), 0, out.len());
        while out.poll_flush(&mut near, &mut cx).is_pending() {
            let mut read = [0; 64];
            let mut buffer = tokio::io::ReadBuf::new(&mut read);
            let read = tokio::io::AsyncRead::poll_read(Pin::new(&mut far), &mut cx, &mut buffer);
            assert!(read.is_ready());
            got += buffer.filled().len();
        }
        assert!(out.is_empty());
        assert!(all - got <= 100);
    }

    #[test]
    fn detects_unread_replies() {
        let mut out = WriteBuffer::default();
        while !out.is_flooded() {
            out.ping_ack(&[0; 8]);
            assert!(out.len() <= UNREAD_REPLIES + 17);
        }
    }
}
