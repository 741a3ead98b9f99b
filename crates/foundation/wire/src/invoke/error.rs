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
