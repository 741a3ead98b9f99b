//! Where the body of a request ends.

use super::chunks::Chunks;

/// What is left of the body of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Everything up to the last chunk.
    Chunks(Chunks),
}

impl Framing {
    /// The framing of a body of this length; without one it is chunked.
    #[inline]
    pub(super) fn of(length: Option<u64>) -> Self {
        length.map_or_else(|| Self::Chunks(Chunks::default()), Self::Length)
    }

    /// Whether nothing is left.
    #[inline]
    pub(super) fn ended(self) -> bool {
        match self {
            Self::Length(left) => left == 0,
            Self::Chunks(chunks) => chunks.ended(),
        }
    }

    /// Takes what belongs to the body off `bytes`; returns how many bytes that is.
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
