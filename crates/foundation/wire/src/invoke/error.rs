//! What can be wrong with bytes from another sidecar.

/// A message that cannot be read as the protocol's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not a protobuf message.
    #[error("{message} is not a protobuf message: {problem}")]
    Malformed {
        /// The message (or field holding it) being read.
        message: &'static str,
        /// The reason, for the message.
        problem: &'static str,
    },
    /// A text field holds something else.
    #[error("{field} is not valid UTF-8")]
    Utf8 {
        /// The field.
        field: &'static str,
    },
    /// A metadata name that cannot name a header.
    #[error("metadata name {name:?} is not a legal header name")]
    Name {
        /// The name, shortened to 64 characters.
        name: String,
    },
    /// A metadata value that cannot be the value of a header.
    #[error("a value of metadata {name:?} is not legal in a header: {problem}")]
    Value {
        /// The name of the entry, shortened to 64 characters.
        name: String,
        /// The reason, for the message.
        problem: &'static str,
    },
    /// More metadata values than [`Limits`](super::Limits) allows.
    #[error("more than {limit} metadata values")]
    TooManyValues {
        /// How many values are allowed.
        limit: usize,
    },
    /// A part that the protocol requires is absent.
    #[error("{field} is missing")]
    Missing {
        /// The absent field.
        field: &'static str,
    },
}

/// A gRPC frame that cannot be taken or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is marked as compressed; no compression is negotiated between sidecars.
    #[error("a gRPC frame has compression flag {flag}, but no compression was agreed")]
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
        /// Bytes of the frame that arrived, its prefix included.
        have: usize,
    },
}
