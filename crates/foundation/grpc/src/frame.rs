//! gRPC's length-prefixed frames.

use bytes::{Buf, Bytes, BytesMut};

/// Bytes before each message: a compression flag and the length, big-endian (gRPC over HTTP/2,
/// "Length-Prefixed-Message").
pub const PREFIX: usize = 5;

/// The prefix of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// 0 for an uncompressed message.
    pub flag: u8,
    /// Length of the message in bytes.
    pub length: usize,
}

impl Prefix {
    /// The prefix at the start of `data`, once it is complete.
    #[inline]
    pub fn read(data: &[u8]) -> Option<Self> {
        let &[flag, a, b, c, d] = data.first_chunk()?;
        Some(Self {
            flag,
            length: u32::from_be_bytes([a, b, c, d]) as usize,
        })
    }

    /// The prefix of an uncompressed message of this length; `None` above 4 GiB.
    #[inline]
    pub fn write(length: usize) -> Option<[u8; PREFIX]> {
        let [a, b, c, d] = u32::try_from(length).ok()?.to_be_bytes();
        Some([0, a, b, c, d])
    }
}

/// An invalid gRPC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is compressed; sidecars do not negotiate compression.
    #[error("a gRPC frame has compression flag {flag}, but no compression was negotiated")]
    Compressed {
        /// The flag byte.
        flag: u8,
    },
    /// The message exceeds the limit.
    #[error("a gRPC message of {len} bytes exceeds the limit of {max}")]
    TooLarge {
        /// Length of the message in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The stream ended within a frame.
    #[error("the stream ended within a gRPC frame, after {have} of its bytes")]
    Truncated {
        /// Bytes of the frame received, including the prefix.
        have: usize,
    },
}

/// Splits a stream into messages.
///
/// A message within one chunk is a slice of that chunk; one that spans chunks is assembled once. Memory is
/// bounded by the limit plus one chunk, and is allocated for received bytes only, not for a declared
/// length.
#[derive(Debug)]
pub struct FrameReader {
    max_message: usize,
    chunk: Bytes,
    partial: BytesMut,
}

impl FrameReader {
    /// A reader that rejects messages of more than `max_message` bytes.
    pub fn new(max_message: usize) -> Self {
        Self {
            max_message,
            chunk: Bytes::new(),
            partial: BytesMut::new(),
        }
    }

    /// Adds the next chunk of the stream. Call [`next`](Self::next) until it returns `None` before the next
    /// push: unread data is copied.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        }
    }

    /// The next complete message without its prefix; `None` if more data is needed. An error is final: it
    /// is returned again.
    #[allow(clippy::should_implement_trait, reason = "an iterator ends at its first None")]
    pub fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.partial.is_empty() {
            match self.frame_len(&self.chunk)? {
                Some(total) if self.chunk.len() >= total => {
                    return Ok(Some(message(self.chunk.split_to(total))));
                }
                // The rest of the frame is in later chunks.
                _ => self.fill_partial(self.chunk.len()),
            }
            return Ok(None);
        }
        self.fill_partial(PREFIX);
        if let Some(total) = self.frame_len(&self.partial)? {
            self.fill_partial(total);
            if self.partial.len() == total {
                return Ok(Some(message(self.partial.split().freeze())));
            }
        }
        Ok(None)
    }

    /// Whether a message is incomplete.
    pub fn is_within_message(&self) -> bool {
        !self.partial.is_empty() || !self.chunk.is_empty()
    }

    /// Bytes received but not taken yet.
    pub fn buffered(&self) -> usize {
        self.partial.len() + self.chunk.len()
    }

    /// Call at the end of the stream: an error if it ended within a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        match self.buffered() {
            0 => Ok(()),
            have => Err(FrameError::Truncated { have }),
        }
    }

    /// Moves data to `partial` until that holds `len` bytes or the chunk is used up.
    fn fill_partial(&mut self, len: usize) {
        let missing = len.saturating_sub(self.partial.len()).min(self.chunk.len());
        self.partial.extend_from_slice(&self.chunk[..missing]);
        self.chunk.advance(missing);
    }

    /// Length of the frame at the start of `data` including its prefix, once the prefix is complete.
    fn frame_len(&self, data: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(Prefix { flag, length: len }) = Prefix::read(data) else {
            return Ok(None);
        };
        if flag != 0 {
            return Err(FrameError::Compressed { flag });
        }
        if len > self.max_message {
            return Err(FrameError::TooLarge {
                len,
                max: self.max_message,
            });
        }
        Ok(Some(PREFIX + len))
    }
}

fn message(mut frame: Bytes) -> Bytes {
    frame.advance(PREFIX);
    frame
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&Prefix::write(message.len()).unwrap()[..], message].concat()
    }

    fn read_all(reader: &mut FrameReader, into: &mut Vec<Vec<u8>>) {
        while let Some(message) = reader.next().unwrap() {
            into.push(message.to_vec());
        }
    }

    #[test]
    fn frame_within_chunk_is_not_copied() {
        let chunk = Bytes::from([framed(b"one"), framed(b"two")].concat());
        let mut reader = FrameReader::new(16);
        reader.push(chunk.clone());
        let one = reader.next().unwrap().unwrap();
        assert_eq!(one.as_ptr(), chunk[5..].as_ptr());
        assert_eq!(reader.next().unwrap().unwrap(), "two");
        assert_eq!(reader.next().unwrap(), None);
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn rejects_compressed_frame() {
        let mut reader = FrameReader::new(16);
        reader.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(reader.next(), Err(FrameError::Compressed { flag: 1 }));
        assert_eq!(
            reader.next(),
            Err(FrameError::Compressed { flag: 1 }),
            "the error is final"
        );
    }

    #[test]
    fn rejects_large_message_early() {
        let mut reader = FrameReader::new(16);
        reader.push(Bytes::from_static(&[0, 0, 0]));
        assert_eq!(reader.next(), Ok(None));
        reader.push(Bytes::from_static(&[0, 17]));
        assert_eq!(reader.next(), Err(FrameError::TooLarge { len: 17, max: 16 }));
    }

    #[test]
    fn detects_truncated_frame() {
        let mut reader = FrameReader::new(16);
        reader.push(Bytes::from_static(&[0, 0, 0, 0, 2, 7]));
        assert_eq!(reader.next(), Ok(None));
        assert_eq!(reader.finish(), Err(FrameError::Truncated { have: 6 }));
    }

    proptest! {
        #[test]
        fn messages_survive_chunking(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            cuts in prop::collection::vec(1usize..30, 1..20),
            drain in any::<bool>(),
        ) {
            let stream: Vec<u8> = messages.iter().flat_map(|m| framed(m)).collect();
            let mut reader = FrameReader::new(40);
            let (mut read, mut rest) = (Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
                reader.push(Bytes::copy_from_slice(chunk));
                if drain {
                    read_all(&mut reader, &mut read);
                }
                rest = tail;
            }
            read_all(&mut reader, &mut read);
            prop_assert_eq!(read, messages);
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }
}
