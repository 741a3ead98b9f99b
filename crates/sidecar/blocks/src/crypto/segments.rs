//! The payload of a document: segments, each encrypted with a nonce that contains its position and a flag for
//! the last one. So removed, moved and truncated segments are detected.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};
use bytes::{Bytes, BytesMut};

use super::scheme::PREFIX;

/// Plaintext bytes of a segment; the last may be shorter.
pub(super) const SEGMENT: usize = 64 << 10;
/// Overhead of an encrypted segment, bytes.
pub(super) const TAG: usize = 16;

/// Why a segment failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SegmentError {
    /// The segment was modified or is incomplete.
    #[error("error processing segment {0}: failed to decrypt segment")]
    Decrypt(u32),
    /// The cipher refused the segment.
    #[error("error processing segment {0}: failed to encrypt segment")]
    Encrypt(u32),
    /// The segment counter is exhausted.
    #[error("input stream is too large")]
    TooLarge,
}

/// Encrypts or decrypts a payload that arrives in pieces of any size.
pub(super) struct Segments {
    key: LessSafeKey,
    prefix: [u8; PREFIX],
    next: Option<u32>,
    held: BytesMut,
}

/// Encrypt or decrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Encrypt,
    Decrypt,
}

impl Direction {
    /// Length of an input segment, bytes.
    fn length(self) -> usize {
        match self {
            Self::Encrypt => SEGMENT,
            Self::Decrypt => SEGMENT + TAG,
        }
    }
}

impl Segments {
    pub(super) fn new(key: LessSafeKey, prefix: [u8; PREFIX]) -> Self {
        Self {
            key,
            prefix,
            next: Some(0),
            held: BytesMut::new(),
        }
    }

    /// Adds a piece of the payload.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.held.extend_from_slice(piece);
    }

    /// Whether there is a full segment that is certainly not the last.
    pub(super) fn has_next(&self, direction: Direction) -> bool {
        self.held.len() > direction.length()
    }

    /// Buffered bytes.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Processes all buffered segments; with `last`, including the last one.
    pub(super) fn work(&mut self, direction: Direction, last: bool) -> Result<Vec<Bytes>, SegmentError> {
        let mut ready = Vec::new();
        while let Some(segment) = self.next(direction)? {
            ready.push(segment);
        }
        if last {
            ready.extend(self.last(direction)?);
        }
        Ok(ready)
    }

    /// The next segment, if it is certainly not the last.
    fn next(&mut self, direction: Direction) -> Result<Option<Bytes>, SegmentError> {
        if !self.has_next(direction) {
            return Ok(None);
        }
        let segment = self.held.split_to(direction.length());
        self.process(direction, segment, false).map(Some)
    }

    /// The last segment, at the end of the input; `None` for an empty payload. In Dapr's format, an empty
    /// document and one truncated after its header are the same.
    pub(super) fn last(&mut self, direction: Direction) -> Result<Option<Bytes>, SegmentError> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let segment = self.held.split();
        self.process(direction, segment, true).map(Some)
    }

    fn process(
        &mut self,
        direction: Direction,
        segment: BytesMut,
        last: bool,
    ) -> Result<Bytes, SegmentError> {
        let number = self.next.ok_or(SegmentError::TooLarge)?;
        self.next = number.checked_add(1);
        let mut nonce = [0; 12];
        nonce[..PREFIX].copy_from_slice(&self.prefix);
        nonce[PREFIX..PREFIX + 4].copy_from_slice(&number.to_be_bytes());
        nonce[PREFIX + 4] = u8::from(last);
        let nonce = Nonce::assume_unique_for_key(nonce);
        match direction {
            Direction::Encrypt => self.seal(nonce, &segment).ok_or(SegmentError::Encrypt(number)),
            Direction::Decrypt => self.open(nonce, segment).ok_or(SegmentError::Decrypt(number)),
        }
    }

    fn seal(&self, nonce: Nonce, plain: &[u8]) -> Option<Bytes> {
        let mut sealed = BytesMut::with_capacity(plain.len() + TAG);
        sealed.extend_from_slice(plain);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut sealed)
            .ok()?;
        sealed.extend_from_slice(tag.as_ref());
        Some(sealed.freeze())
    }

    fn open(&self, nonce: Nonce, mut segment: BytesMut) -> Option<Bytes> {
        let plain = self.key.open_in_place(nonce, Aad::empty(), &mut segment).ok()?;
        let length = plain.len();
        segment.truncate(length);
        Some(segment.freeze())
    }
}
