//! Input that Go's decoder accepts and serde_json rejects.

use bytes::Bytes;
use memchr::{memchr, memchr2, memmem};
use serde::de::IgnoredAny;

/// Replacement for invalid characters.
const REPLACEMENT: &str = "\u{fffd}";
/// The same as an escape.
const ESCAPED_REPLACEMENT: &[u8] = b"\\ufffd";
/// Length of `\u0000`.
const ESCAPE: usize = 6;

/// Replaces lone surrogate escapes, which JavaScript may write, and invalid UTF-8 bytes with U+FFFD. `None`
/// if there are none. Invalid JSON stays invalid.
pub fn repaired(text: &[u8]) -> Option<Vec<u8>> {
    let mut characters = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        characters.extend_from_slice(chunk.valid().as_bytes());
        for _ in chunk.invalid() {
            characters.extend_from_slice(REPLACEMENT.as_bytes());
        }
    }
    let mut changed = characters.len() != text.len();
    let mut at = 0;
    while let Some(found) = characters.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        at += found;
        at += match unit(&characters[at..]) {
            // Skips both characters of an escaped backslash.
            None => 2,
            Some(0xd800..=0xdbff) if is_low(unit(&characters[at + ESCAPE..])) => 2 * ESCAPE,
            Some(0xd800..=0xdfff) => {
                characters[at..at + ESCAPE].copy_from_slice(ESCAPED_REPLACEMENT);
                changed = true;
                ESCAPE
            }
            Some(_) => ESCAPE,
        };
    }
    changed.then_some(characters)
}

/// Replaces lone surrogate escapes, which strict readers reject, with U+FFFD. Other texts, including invalid
/// JSON, stay unchanged.
pub fn whole(text: &Bytes) -> Bytes {
    if memmem::find(text, b"\\u").is_none() || str::from_utf8(text).is_err() {
        return text.clone();
    }
    match repaired(text) {
        Some(repaired) if serde_json::from_slice::<IgnoredAny>(text).is_ok() => repaired.into(),
        _ => text.clone(),
    }
}

fn is_low(unit: Option<u16>) -> bool {
    matches!(unit, Some(0xdc00..=0xdfff))
}

/// The UTF-16 unit of a leading `\u` escape.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?;
    u16::from_str_radix(digits, 16).ok()
}

/// The first number that overflows a double, which Go's decoder rejects.
pub fn out_of_range(json: &str) -> Option<&str> {
    // A number this short without an exponent cannot overflow.
    const SHORT: usize = 300;
    let is_part = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
    let bytes = json.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = after_string(bytes, at + 1),
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| is_part(**byte)).count();
                let number = json.get(at..at + length)?;
                let may_be = length > SHORT || number.contains(['e', 'E']);
                if may_be && number.parse::<f64>().is_ok_and(f64::is_infinite) {
                    return Some(number);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// The index after the string that contains `from`.
pub(super) fn after_string(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(text: &[u8]) -> Option<String> {
        repaired(text).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn replaces_lone_surrogates() {
        for (given, expected) in [
            (r#""\ud800""#, r#""\ufffd""#),
            (r#""\uDFFF\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\ud83d\ud83d\ude00x""#, r#""\ufffd\ud83d\ude00x""#),
            (r#""\ud83d\u0041""#, r#""\ufffd\u0041""#),
            (r#""\\\ud800\\ud800""#, r#""\\\ufffd\\ud800""#),
            (r#"{"\udc00":"\udc00"}"#, r#"{"\ufffd":"\ufffd"}"#),
        ] {
            assert_eq!(repair(given.as_bytes()).as_deref(), Some(expected), "{given}");
        }
        for fine in [
            r#""""#,
            r#""\ud83d\ude00""#,
            r#""\\ud800""#,
            r#""\u00e9é""#,
            "\"\\",
            "\"\\u",
            r#""\u+d80""#,
        ] {
            assert_eq!(repair(fine.as_bytes()), None, "{fine}");
        }
    }

    #[test]
    fn whole_keeps_other_texts() {
        let whole = |text: &'static [u8]| whole(&Bytes::from_static(text));
        assert_eq!(
            whole(br#" {"\ud800":"a\uDC00"}"#),
            &br#" {"\ufffd":"a\ufffd"}"#[..]
        );
        for same in [
            &br#"{"a":"\ud83d\ude00 \u00e9"}"#[..],
            br#"say "\ud800""#,
            b"\"\\ud800\xff\"",
            b"{}",
            b"",
        ] {
            assert_eq!(whole(same), same, "{same:?}");
        }
    }

    #[test]
    fn replaces_invalid_bytes() {
        assert_eq!(repair(b"\"a\xffb\"").unwrap(), "\"a\u{fffd}b\"");
        assert_eq!(repair(b"\"\xe2\x82\"").unwrap(), "\"\u{fffd}\u{fffd}\"");
    }

    #[test]
    fn finds_numbers_out_of_range() {
        let long = "9".repeat(400);
        for (json, expected) in [
            ("1E400", Some("1E400")),
            ("[1, -1e999]", Some("-1e999")),
            (r#"{"a\"": {"b": 2e308}}"#, Some("2e308")),
            (&long, Some(long.as_str())),
            ("1e308", None),
            ("1e-999", None),
            (r#""1E400""#, None),
            (r#"["\\", "1E400", true, null, 12]"#, None),
            ("", None),
            ("\"", None),
        ] {
            assert_eq!(out_of_range(json), expected, "{json}");
        }
    }
}
