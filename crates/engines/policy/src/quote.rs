//! Quoting of text in error messages, in Dapr's style.

use std::fmt::{self, Display, Formatter, Write};

/// Displays a text in double quotes, with quotes, backslashes and control characters escaped.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\u{7}' => f.write_str("\\a")?,
                '\u{8}' => f.write_str("\\b")?,
                '\t' => f.write_str("\\t")?,
                '\n' => f.write_str("\\n")?,
                '\u{b}' => f.write_str("\\v")?,
                '\u{c}' => f.write_str("\\f")?,
                '\r' => f.write_str("\\r")?,
                control if control < ' ' || control == '\u{7f}' => {
                    write!(f, "\\x{:02x}", u32::from(control))?
                }
                control if control.is_control() => write!(f, "\\u{:04x}", u32::from(control))?,
                plain => f.write_char(plain)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::Quoted;

    #[test]
    fn escapes_control_characters() {
        assert_eq!(
            Quoted("a\"b\\c\n\u{1}\u{85}é").to_string(),
            r#""a\"b\\c\n\x01\u0085é""#
        );
    }
}
