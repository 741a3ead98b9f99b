//! Header compression: RFC 7541.
//!
//! One [`Decoder`] and one [`Encoder`] belong to a connection, as their tables do; each block of the connection goes
//! through them, in order.

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

/// What a field costs in a table and in a list, beside the bytes of its name and value: RFC 7541 section 4.1,
/// RFC 9113 section 6.5.2.
const OVERHEAD: usize = 32;

/// One field, parsed.
///
/// Entries of the tables are kept parsed, so that a field that comes by its index costs no more than counting a
/// reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// `:method`.
    Method(Method),
    /// `:scheme`: visible ASCII or bytes from 0x80, possibly none; the same of the other texts.
    Scheme(Bytes),
    /// `:authority`.
    Authority(Bytes),
    /// `:path`, with the query.
    Path(Bytes),
    /// `:protocol`: RFC 8441.
    Protocol(Bytes),
    /// `:status`.
    Status(StatusCode),
    /// Any other field. The value is marked as sensitive when it came as one that is never to be indexed.
    ///
    /// Spaces around the value stay where they are, as in other implementations: RFC 9113 would have such a message
    /// refused, but gRPC allows them in metadata.
    Header(HeaderName, HeaderValue),
    /// A field that breaks RFC 9113 sections 8.2 and 8.3: a name that is illegal or in upper case, an illegal value,
    /// an unknown pseudo-header, a status that is no number of three digits. Its message is malformed; the
    /// connection is not.
    Malformed,
}

/// Why a block cannot be decoded. The tables of the two sides may differ from then on, so this is always an error of
/// the connection: `COMPRESSION_ERROR` (RFC 9113 section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// An integer or a string goes on after the end of the block.
    #[error("the header block ends within a field")]
    Truncated,
    /// More than five bytes after the first.
    #[error("an integer in the header block is too large")]
    Integer,
    /// The end-of-string symbol, or padding that is too long or not all ones.
    #[error("a string in the header block is not correct Huffman code")]
    Huffman,
    /// 0, or beyond the dynamic table.
    #[error("the header tables have no entry {0}")]
    Index(usize),
    /// More than our settings allow.
    #[error("header table size update to {0} bytes exceeds the limit")]
    TableSize(usize),
    /// A size update after a field.
    #[error("header table size update in the middle of a header block")]
    LateUpdate,
}

#[cfg(test)]
mod tests;
