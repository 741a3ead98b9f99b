//! Percent-decoding with the semantics of Go's `net/url`, for which peers and SDKs are tested.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::quote::Quoted;

/// Why a percent-encoded text is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EscapeError {
    /// `%` is not followed by two hexadecimal digits. Holds the invalid sequence, at most three bytes.
    #[error("invalid URL escape {}", Quoted(.0))]
    Sequence(String),
    /// The decoded bytes are not UTF-8, which the protocol cannot carry.
    #[error("invalid URL escape: the decoded bytes are not valid UTF-8")]
    NotText,
}

/// Characters to escape in a path. Includes the percent sign, so that decoding inverts encoding.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'@')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b'[')
    .remove(b']');
/// Characters to escape in a segment that is decoded as a query component.
const PARAMETER: &AsciiSet = &PATH.add(b'/').add(b'+');

/// Encodes a decoded path, inverting [`path_unescape`]. Keeps slashes.
pub fn path_escape(path: &[u8]) -> percent_encoding::PercentEncode<'_> {
    percent_encode(path, PATH)
}

/// Encodes a decoded path parameter as one segment, inverting [`query_unescape`].
pub fn parameter_escape(parameter: &str) -> percent_encoding::PercentEncode<'_> {
    percent_encode(parameter.as_bytes(), PARAMETER)
}

/// Decodes a query component: `%XX` sequences, and `+` as a space.
///
/// # Errors
/// A malformed `%` sequence, or invalid UTF-8.
pub fn query_unescape(text: &str) -> Result<Cow<'_, str>, EscapeError> {
    unescape(text, true)
}

/// Decodes a path: `%XX` sequences only, not `+`.
///
/// # Errors
/// A malformed `%` sequence, or invalid UTF-8.
pub fn path_unescape(text: &str) -> Result<Cow<'_, str>, EscapeError> {
    unescape(text, false)
}

fn unescape(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, EscapeError> {
    Ok(match unescape_bytes(text, plus_is_space)? {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8(bytes).map_err(|_| EscapeError::NotText)?),
    })
}

/// Decodes a path to arbitrary bytes.
///
/// # Errors
/// A malformed `%` sequence.
pub fn path_unescape_bytes(text: &str) -> Result<Cow<'_, [u8]>, EscapeError> {
    unescape_bytes(text, false)
}

fn unescape_bytes(text: &str, plus_is_space: bool) -> Result<Cow<'_, [u8]>, EscapeError> {
    let special = |byte: &u8| *byte == b'%' || (plus_is_space && *byte == b'+');
    let bytes = text.as_bytes();
    let Some(first) = bytes.iter().position(special) else {
        return Ok(Cow::Borrowed(bytes));
    };
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(&bytes[..first]);
    let mut rest = &bytes[first..];
    while let Some((&byte, tail)) = rest.split_first() {
        rest = match byte {
            b'%' => match tail {
                [high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                    out.push(nibble(*high) << 4 | nibble(*low));
                    tail
                }
                _ => {
                    let shown = &rest[..rest.len().min(3)];
                    return Err(EscapeError::Sequence(String::from_utf8_lossy(shown).into_owned()));
                }
            },
            b'+' if plus_is_space => {
                out.push(b' ');
                tail
            }
            other => {
                out.push(other);
                tail
            }
        };
    }
    Ok(Cow::Owned(out))
}

/// The value of a valid hexadecimal digit.
const fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decodes_sequences_and_plus() {
        assert_eq!(query_unescape("a%2Fb+c%20d").unwrap(), "a/b c d");
        assert_eq!(path_unescape("a%2fb+c%20d").unwrap(), "a/b+c d");
        assert_eq!(path_unescape("caf%C3%A9").unwrap(), "café");
    }

    #[test]
    fn borrows_text_without_escapes() {
        assert!(matches!(path_unescape("a+b"), Ok(Cow::Borrowed("a+b"))));
        assert!(matches!(query_unescape("a-b"), Ok(Cow::Borrowed("a-b"))));
    }

    #[test]
    fn reports_invalid_sequence() {
        let message = |text| query_unescape(text).unwrap_err().to_string();
        assert_eq!(message("a%zz"), r#"invalid URL escape "%zz""#);
        assert_eq!(message("a%2"), r#"invalid URL escape "%2""#);
        assert_eq!(message("%"), r#"invalid URL escape "%""#);
        assert_eq!(message("%1xyz"), r#"invalid URL escape "%1x""#);
        assert_eq!(path_unescape("%ff").unwrap_err(), EscapeError::NotText);
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in ".*") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(path_unescape(&encoded).unwrap(), text.as_str());
            prop_assert_eq!(query_unescape(&encoded).unwrap(), text.as_str());
        }

        #[test]
        fn decoding_inverts_encoding(text in ".*") {
            let path = path_escape(text.as_bytes()).to_string();
            prop_assert_eq!(path_unescape(&path).unwrap(), text.as_str());
            let parameter = parameter_escape(&text).to_string();
            prop_assert_eq!(query_unescape(&parameter).unwrap(), text.as_str());
            prop_assert!(!parameter.contains(['/', '+', ' ', '?', '#']));
        }
    }
}
