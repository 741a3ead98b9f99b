//! How much there is to a JSON text, told without decoding it.

use super::repair::after_string;

/// How deep a value may be nested where it is decoded.
pub const MAX_DEPTH: usize = 127;
/// Values and names of members of a text that is decoded whole: each takes some hundred bytes until it is what it is
/// for, whatever it takes in the text.
pub const MAX_VALUES: usize = 64 << 10;

/// Amounts of a JSON text, or of what looks like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Values in it, the names of members included; at least those that there are.
    pub values: usize,
    /// Arrays and objects within each other.
    pub depth: usize,
}

impl Shape {
    /// Looks through a text once.
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

/// Whether a text has more than [`MAX_VALUES`].
///
/// # Errors
/// That it has, for whoever sent it.
pub fn check_values(json: &[u8]) -> Result<(), String> {
    if has_more_values(json, MAX_VALUES) {
        return Err(format!(
            "it has more than {MAX_VALUES} values and names of members: send less, or large data as a string"
        ));
    }
    Ok(())
}

/// Whether a text has more values and names of members than `most`.
pub fn has_more_values(json: &[u8], most: usize) -> bool {
    // Each takes a byte of it at least.
    json.len() > most && Shape::of(json).values > most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_depth_are_counted_outside_of_strings() {
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
    fn what_is_nested_no_deeper_is_decoded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let decoded = |depth| serde_json::from_str::<serde_json::Value>(&nested(depth)).is_ok();
        assert!(decoded(MAX_DEPTH) && !decoded(MAX_DEPTH + 1));
        assert_eq!(Shape::of(nested(MAX_DEPTH).as_bytes()).depth, MAX_DEPTH);
    }
}
