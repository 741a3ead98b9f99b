//! How errors read.

use std::error::Error;
use std::fmt::Write;

/// An error and its causes on one line, skipping causes whose text the line holds already.
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
