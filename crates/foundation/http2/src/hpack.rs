//! Header compression: RFC 7541.
//!
//! A connection has one [`Decoder`] and one [`Encoder`]. Every field block must pass through them in order.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

mod decode;
mod encode;
mod huffman;
mod integer;
mod names;
mod table;

pub use decode::Decoder;
pub use encode::Encoder;

/// Overhead of a field in a table and in a list, besides its name and value: RFC 7541 section 4.1, RFC 9113
/// section 6.5.2.
const OVERHEAD: usize = 32;

/// One parsed field.
///
/// Table entries are stored parsed, so an indexed field costs one reference count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `:method`.
    Method(Method),
    /// `:scheme`: visible ASCII or bytes from 0x80, possibly empty. The same applies to the other texts.
    Scheme(Bytes),
    /// `:authority`.
    Authority(Bytes),
    /// `:path`, with the query.
    Path(Bytes),
    /// `:protocol`: RFC 8441.
    Protocol(Bytes),
    /// `:status`.
    Status(StatusCode),
    /// A regular field. The value is marked sensitive if it arrived as never indexed.
    ///
    /// Spaces around the value are preserved, as in other implementations: RFC 9113 calls such a message
    /// malformed, but gRPC allows them in metadata.
    Header(HeaderName, HeaderValue),
    /// A field that violates RFC 9113 sections 8.2 and 8.3: an illegal or upper-case name, an illegal
    /// value, an unknown pseudo-header, or a status that is not three digits. The message is malformed; the
    /// connection stays valid.
    Malformed,
}

/// Why a block cannot be decoded. The tables of both sides may differ afterwards, so this is always a
/// connection error, `COMPRESSION_ERROR` (RFC 9113 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// The block ends within an integer or a string.
    #[error("the header block ends within a field")]
    Truncated,
    /// More than five bytes after the first.
    #[error("an integer in the header block is too large")]
    Integer,
    /// The string contains the end-of-string symbol, or its padding is too long or not all ones.
    #[error("invalid Huffman code in the header block")]
    Huffman,
    /// Index 0, or an index beyond the dynamic table.
    #[error("the header tables have no entry {0}")]
    Index(usize),
    /// The size exceeds our setting.
    #[error("header table size update to {0} bytes exceeds the limit")]
    TableSize(usize),
    /// A table size update after a field.
    #[error("header table size update in the middle of a header block")]
    LateUpdate,
}

#[cfg(test)]
mod tests;
