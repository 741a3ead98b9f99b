//! Formatting of error chains.

use std::error::Error;
use std::fmt::Write;
use std::io;

/// An error and its causes on one line. A cause whose text is already on the line is skipped.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            let _infallible = write!(text, ": {next}");
        }
        cause = error.source();
    }
    text
}

/// Whether a body error says that the bytes violate the protocol.
pub fn is_malformed(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let kind = error.kind();
            return matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
        }
        next = error.source();
    }
    false
}
