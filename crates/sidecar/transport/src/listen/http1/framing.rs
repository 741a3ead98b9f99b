//! Finds the end of a request body.

use super::chunks::Chunks;

/// The remaining part of a request body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Framing {
    /// This many bytes.
    Length(u64),
    /// Everything up to the last chunk.
    Chunks(Chunks),
}

impl Framing {
    /// The framing of a body of this length; chunked without one.
    #[inline]
    pub(super) fn of(length: Option<u64>) -> Self {
        length.map_or_else(|| Self::Chunks(Chunks::default()), Self::Length)
    }

    /// Whether the body has ended.
    #[inline]
    pub(super) fn ended(self) -> bool {
        match self {
            Self::Length(left) => left == 0,
            Self::Chunks(chunks) => chunks.ended(),
        }
    }

    /// How many of `bytes` belong to the body.
    ///
    /// # Errors
    /// Why the chunks are malformed.
    #[inline]
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match self {
            Self::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= taken as u64;
                Ok(taken)
            }
            Self::Chunks(chunks) => chunks.follow(bytes),
        }
    }
}
