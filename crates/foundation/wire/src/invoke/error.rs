//! Errors in messages from another sidecar.

/// An invalid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are not a protobuf message.
    #[error("{message} is not a protobuf message: {problem}")]
    Malformed {
        /// The message, or the field with it.
        message: &'static str,
        /// The cause.
        problem: &'static str,
    },
    /// A text field is not UTF-8.
    #[error("{field} is not valid UTF-8")]
    Utf8 {
        /// The field.
        field: &'static str,
    },
    /// A metadata name that is not a valid header name.
    #[error("metadata name {name:?} is not a legal header name")]
    Name {
        /// The name, truncated to 64 characters.
        name: String,
    },
    /// A metadata value that is not a valid header value.
    #[error("a value of metadata {name:?} is not legal in a header: {problem}")]
    Value {
        /// The name of the entry, truncated to 64 characters.
        name: String,
        /// The cause.
        problem: &'static str,
    },
    /// More metadata values than [`Limits`](super::Limits) allows.
    #[error("more than {limit} metadata values")]
    TooManyValues {
        /// The maximum number of values.
        limit: usize,
    },
    /// A required part is absent.
    #[error("{field} is missing")]
    Missing {
        /// The absent field.
        field: &'static str,
    },
}
