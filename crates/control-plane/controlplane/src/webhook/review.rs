//! Limits for reviews of the API server.

use outrigger_go_json::has_more_values;

/// Maximum number of values and member names in an object that is decoded whole. Stored objects have
/// thousands; each takes up to a few hundred bytes when decoded, whatever its size in the text.
pub const MAX_VALUES: usize = 256 << 10;
/// Maximum number of characters of a client's text in logs and errors.
pub const MAX_SHOWN: usize = 1000;

/// Checks that a text has no more than [`MAX_VALUES`].
///
/// # Errors
/// For the sender, if it has more.
pub fn check_values(json: &[u8]) -> Result<(), String> {
    match has_more_values(json, MAX_VALUES) {
        true => Err(format!("more than {MAX_VALUES} values and member names")),
        false => Ok(()),
    }
}

/// The first `most` characters of a text.
pub fn cut(text: &str, most: usize) -> &str {
    let end = text.char_indices().nth(most).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

/// A client's text, shortened for display.
pub fn shown(text: &str) -> &str {
    cut(text, MAX_SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_at_character_boundary() {
        assert_eq!((cut("äöü", 2), cut("äöü", 3), cut("", 1)), ("äö", "äöü", ""));
        assert_eq!(shown(&"ä".repeat(2 * MAX_SHOWN)), "ä".repeat(MAX_SHOWN));
    }

    #[test]
    fn limits_number_of_values_only() {
        let list = |values: usize| format!("[0{}]", ",0".repeat(values - 2));
        assert!(check_values(list(MAX_VALUES).as_bytes()).is_ok());
        assert!(check_values(list(MAX_VALUES + 1).as_bytes()).is_err());
        let text = format!("[\"{}\"]", ",".repeat(2 * MAX_VALUES));
        assert!(check_values(text.as_bytes()).is_ok());
    }
}
