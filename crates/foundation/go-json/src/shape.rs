//! Size and depth of a JSON text, computed without decoding.

use super::repair::after_string;

/// Maximum nesting of decoded values.
pub const MAX_DEPTH: usize = 127;
/// Maximum values and member names of a decoded text. Each takes some hundred bytes in memory, however short
/// its text.
pub const MAX_VALUES: usize = 64 << 10;

/// Size and depth of a text that may be JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of values, including member names; never too low.
    pub values: usize,
    /// Nesting depth of arrays and objects.
    pub depth: usize,
}

impl Shape {
    /// Scans a text once.
    pub fn of(json: &[u8]) -> Self {
        let (mut values, mut open, mut depth) = (1, 0_usize, 0);
        let mut at = 0;
        while let Some(byte) = json.get(at) {
            match byte {
                b'"' => {
                    at = after_string(json, at + 1);
                    continue;
                }
                b'[' | b'{' => {
                    values += 1;
                    open += 1;
                    depth = depth.max(open);
                }
                b']' | b'}' => open = open.saturating_sub(1),
                b',' | b':' => values += 1,
                _ => {}
            }
            at += 1;
        }
        Self { values, depth }
    }
}

/// Checks that a text has at most [`MAX_VALUES`] values.
///
/// # Errors
/// A message for the sender.
pub fn check_values(json: &[u8]) -> Result<(), String> {
    if has_more_values(json, MAX_VALUES) {
        return Err(format!(
            "it has more than {MAX_VALUES} values and names of members: send less, or large data as a string"
        ));
    }
    Ok(())
}

/// Whether a text has more than `most` values and member names.
pub fn has_more_values(json: &[u8], most: usize) -> bool {
    // Each value takes at least one byte.
    json.len() > most && Shape::of(json).values > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outside_strings() {
        for (text, values, depth) in [
            ("", 1, 0),
            ("1", 1, 0),
            (r#""[{,:\"[""#, 1, 0),
            ("[0,0,0]", 4, 1),
            (r#"{"a":{"b,":[]},"c\\":1}"#, 8, 3),
            ("]]]]", 1, 0),
            ("[[[", 4, 3),
            ("[\"", 2, 1),
        ] {
            assert_eq!(Shape::of(text.as_bytes()), Shape { values, depth }, "{text}");
        }
    }

    #[test]
    fn max_depth_matches_decoder() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let decoded = |depth| serde_json::from_str::<serde_json::Value>(&nested(depth)).is_ok();
        assert!(decoded(MAX_DEPTH) && !decoded(MAX_DEPTH + 1));
        assert_eq!(Shape::of(nested(MAX_DEPTH).as_bytes()).depth, MAX_DEPTH);
    }
}
