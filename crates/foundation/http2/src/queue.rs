//! Queues of message parts after the head, to be read or to be sent. Small pieces are merged, so a body
//! takes about as much memory as it has bytes, whatever its frame sizes.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

/// Pieces of at least this many bytes are not copied.
const LARGE: usize = 4 * 1024;
/// Capacity of a chunk that small pieces are merged into.
const CHUNK: usize = 16 * 1024;

/// A part of a message after its head.
#[derive(Debug)]
pub(crate) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// FIFO. The first piece needs no allocation: most messages have one piece and trailers.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    first: Option<Bytes>,
    more: Option<Box<Overflow>>,
    trailers: Option<HeaderMap>,
}

#[derive(Debug, Default)]
struct Overflow {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
}

impl Overflow {
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }

    fn gather(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(CHUNK - self.tail.len()));
            self.tail.extend_from_slice(now);
            if self.tail.len() == CHUNK {
                self.seal();
            }
            bytes = rest;
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let tail = || (!self.tail.is_empty()).then(|| std::mem::take(&mut self.tail).freeze());
        self.chunks.pop_front().or_else(tail)
    }
}

impl Queue {
    /// Appends data. Small pieces are merged into the last chunk.
    pub(crate) fn push(&mut self, data: Bytes) {
        if self.is_empty() {
            self.first = Some(data);
            return;
        }
        let more = self.more.get_or_insert_default();
        if data.len() < LARGE {
            more.gather(&data);
        } else {
            more.seal();
            more.chunks.push_back(data);
        }
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.len() >= LARGE || self.is_empty() {
            self.push(Bytes::copy_from_slice(bytes));
        } else {
            self.more.get_or_insert_default().gather(bytes);
        }
    }

    /// Appends the trailers.
    pub(crate) fn push_trailers(&mut self, trailers: HeaderMap) {
        self.trailers = Some(trailers);
    }

    pub(crate) fn pop(&mut self) -> Option<Piece> {
        let data = self.first.take();
        data.or_else(|| self.more.as_mut()?.pop())
            .map(Piece::Data)
            .or_else(|| self.trailers.take().map(Piece::Trailers))
    }

    /// Puts back the rest of the last piece taken.
    pub(crate) fn push_front(&mut self, data: Bytes) {
        self.first = Some(data);
    }

    fn has_more(&self) -> bool {
        let more = self.more.as_ref();
        more.is_some_and(|more| !more.chunks.is_empty() || !more.tail.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.trailers.is_none() && !self.has_more()
    }

    /// True for one piece of data, or an empty queue.
    pub(crate) fn is_plain(&self) -> bool {
        self.trailers.is_none() && !self.has_more()
    }

    /// Bytes of data queued.
    pub(crate) fn bytes(&self) -> u64 {
        let first = self.first.as_ref().map_or(0, Bytes::len);
        let more = self.more.as_ref().map_or(0, |more| {
            more.chunks.iter().map(Bytes::len).sum::<usize>() + more.tail.len()
        });
        (first + more) as u64
    }

    /// Bytes allocated but unused: at most about as many as there are bytes of data.
    pub(crate) fn slack(&self) -> usize {
        self.more
            .as_ref()
            .map_or(0, |more| more.tail.capacity() - more.tail.len())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Queue {
        /// Bytes allocated for data.
        pub(crate) fn held(&self) -> usize {
            let more = self.more.as_ref();
            let slots = more.map_or(0, |more| more.chunks.capacity() * size_of::<Bytes>());
            usize::try_from(self.bytes()).unwrap() + self.slack() + slots
        }
    }

    fn text(piece: Option<Piece>) -> String {
        match piece {
            Some(Piece::Data(data)) => String::from_utf8(data.to_vec()).unwrap(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn pieces_leave_in_order() {
        let mut queue = Queue::default();
        assert!(queue.is_plain() && queue.is_empty());
        queue.push(Bytes::from_static(b"a"));
        assert!(queue.is_plain());
        queue.push(Bytes::from_static(b"b"));
        queue.push_trailers(HeaderMap::new());
        assert!(!queue.is_plain());
        assert_eq!(text(queue.pop()), "a");
        queue.push_front(Bytes::from_static(b"A"));
        for expected in ["A", "b", "Some(Trailers({}))", "None"] {
            assert_eq!(text(queue.pop()), expected);
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn one_byte_pieces_are_merged() {
        let mut queue = Queue::default();
        for _ in 0..1 << 20 {
            queue.push_copy(b"x");
        }
        assert_eq!(queue.bytes(), 1 << 20);
        assert!(queue.held() < (1 << 20) + CHUNK, "{}", queue.held());
    }

    proptest! {
        #[test]
        fn queue_preserves_bytes(sizes in prop::collection::vec((0usize..6000, any::<bool>(), any::<bool>()), 0..40)) {
            let (mut queue, mut sent, mut got) = (Queue::default(), Vec::new(), Vec::new());
            for (n, (size, copied, read)) in sizes.into_iter().enumerate() {
                let piece: Vec<u8> = (0..size).map(|at| (at * 7 + n) as u8).collect();
                sent.extend_from_slice(&piece);
                if copied {
                    queue.push_copy(&piece);
                } else {
                    queue.push(piece.into());
                }
                prop_assert_eq!(queue.bytes() as usize + got.len(), sent.len());
                prop_assert!(queue.held() <= 2 * queue.bytes() as usize + CHUNK);
                if read && let Some(Piece::Data(data)) = queue.pop() {
                    got.extend_from_slice(&data);
                }
            }
            while let Some(Piece::Data(data)) = queue.pop() {
                got.extend_from_slice(&data);
            }
            prop_assert!(queue.is_empty() && got == sent);
        }
    }
}
