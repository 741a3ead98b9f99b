//! JSON as Go's encoder writes a decoded value: the form in which Dapr's stores hold JSON values.
//!
//! Keys are sorted by bytes, there is no white space, numbers have their shortest form, and the last of
//! duplicate keys wins. One intended difference: 64-bit integers keep all digits, where Go's decoder rounds
//! to a double.
//!
//! ```
//! use outrigger_go_json::{Html, canonical};
//!
//! let text = canonical(br#"{ "b": 1.0, "a": "<" }"#, Html::Escape).unwrap();
//! assert_eq!(text, r#"{"a":"\u003c","b":1}"#);
//! ```

mod repair;
mod shape;

use std::collections::HashMap;

use bytes::Bytes;
use memchr::memchr3_iter;
use outrigger_resources::json::parse;
use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;

pub use repair::{out_of_range, repaired, whole};
pub use shape::{MAX_DEPTH, MAX_VALUES, Shape, check_values, has_more_values};

/// Whether HTML characters are written as `\u` escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Html {
    /// `<`, `>` and `&` become `\u003c`, `\u003e`, `\u0026`, as in Go's standard encoder (SQL stores,
    /// in-memory).
    Escape,
    /// No escapes, as in the encoder of the Redis store.
    Keep,
}

/// A map of strings as Go decodes it: null becomes the empty string.
#[derive(Debug, Default)]
pub struct Strings(pub HashMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = HashMap::<String, Option<String>>::deserialize(deserializer)?;
        let strings = read
            .into_iter()
            .map(|(name, value)| (name, value.unwrap_or_default()));
        Ok(Self(strings.collect()))
    }
}

/// Decodes JSON as Go does: see [`repaired`].
///
/// # Errors
/// `text` is not JSON, or not a `T`.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(text).or_else(|error| match repaired(text) {
        Some(repaired) => serde_json::from_slice(&repaired),
        None => Err(error),
    })
}

/// Decodes the first value of a JSON text, as Go does from a stream: see [`parse`] and [`repaired`]. Used for
/// responses of apps.
///
/// # Errors
/// `text` does not begin with JSON, or not with a `T`.
pub fn first_from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    parse(text).or_else(|error| match repaired(text) {
        Some(repaired) => parse(&repaired),
        None => Err(error),
    })
}

/// Converts [`canonical`] text from [`Html::Keep`] to [`Html::Escape`]. The three characters occur only in
/// strings.
pub fn escaped(kept: &Bytes) -> Bytes {
    let mut places = memchr3_iter(b'<', b'>', b'&', kept).peekable();
    if places.peek().is_none() {
        return kept.clone();
    }
    let mut out = Vec::with_capacity(kept.len() + kept.len() / 8);
    let mut from = 0;
    for at in places {
        out.extend_from_slice(&kept[from..at]);
        escape(char::from(kept[at]), &mut out);
        from = at + 1;
    }
    out.extend_from_slice(&kept[from..]);
    out.into()
}

/// Rewrites a JSON text as Go's encoder would.
///
/// # Errors
/// `text` is not JSON.
pub fn canonical(text: &[u8], html: Html) -> Result<Bytes, serde_json::Error> {
    if stays(text, html) {
        return Ok(Bytes::copy_from_slice(text));
    }
    let value: Value = from_slice(text)?;
    let mut out = Vec::with_capacity(text.len());
    write(&value, html, &mut out);
    Ok(out.into())
}

fn write(value: &Value, html: Html, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => write_float(float, out),
            _ => out.extend_from_slice(number.to_string().as_bytes()),
        },
        Value::String(text) => write_text(text, html, out),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, html, out);
            }
            out.push(b']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| key.as_bytes());
            out.push(b'{');
            for (index, (key, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(key, html, out);
                out.push(b':');
                write(member, html, out);
            }
            out.push(b'}');
        }
    }
}

/// Plain digits between 1e-6 and 1e21, otherwise an exponent, as in ECMAScript and Go.
fn write_float(float: f64, out: &mut Vec<u8>) {
    let magnitude = float.abs();
    if float == 0.0 {
        out.extend_from_slice(if float.is_sign_negative() { b"-0" } else { b"0" });
    } else if (1e-6..1e21).contains(&magnitude) {
        out.extend_from_slice(format!("{float}").as_bytes());
    } else {
        let text = format!("{float:e}");
        match text.split_once('e') {
            Some((digits, exponent)) if !exponent.starts_with('-') => {
                out.extend_from_slice(format!("{digits}e+{exponent:0>2}").as_bytes());
            }
            _ => out.extend_from_slice(text.as_bytes()),
        }
    }
}

fn write_text(text: &str, html: Html, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| may_change(byte, html)) {
        let (plain, changing) = rest.split_at(at);
        out.extend_from_slice(plain.as_bytes());
        let mut characters = changing.chars();
        if let Some(character) = characters.next() {
            write_character(character, html, out);
        }
        rest = characters.as_str();
    }
    out.extend_from_slice(rest.as_bytes());
    out.push(b'"');
}

/// Whether a character with this first byte may be escaped.
fn may_change(byte: u8, html: Html) -> bool {
    // Without branches, so that the compiler vectorises it.
    let always = (byte == b'"') | (byte == b'\\') | (byte < b' ');
    let of_html = (byte == b'<') | (byte == b'>') | (byte == b'&');
    // First byte of U+2028 and U+2029, and of other characters.
    let separator = byte == 0xe2;
    always | separator | (of_html & (html == Html::Escape))
}

/// Bytes checked at a time.
const BLOCK: usize = 256;

/// Whether a JSON text is a string that needs no rewriting.
fn stays(text: &[u8], html: Html) -> bool {
    let [b'"', inner @ .., b'"'] = text else {
        return false;
    };
    let changes = |block: &[u8]| {
        block
            .iter()
            .fold(false, |found, byte| found | may_change(*byte, html))
    };
    !inner.chunks(BLOCK).any(changes) && str::from_utf8(inner).is_ok()
}

fn write_character(character: char, html: Html, out: &mut Vec<u8>) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '<' | '>' | '&' if html == Html::Escape => escape(character, out),
        '\u{2028}' | '\u{2029}' => escape(character, out),
        control if control < ' ' => escape(control, out),
        other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

fn escape(character: char, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("\\u{:04x}", u32::from(character)).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn go(text: &str) -> String {
        String::from_utf8(canonical(text.as_bytes(), Html::Escape).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn sorts_keys_and_strips_space() {
        assert_eq!(
            go(r#"{ "b": [1, 2 ], "a": null, "b": {"z":1,"y":2} }"#),
            r#"{"a":null,"b":{"y":2,"z":1}}"#
        );
    }

    #[test]
    fn shortens_numbers() {
        for (given, written) in [
            ("1.0", "1"),
            ("1e3", "1000"),
            ("0.1", "0.1"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("1.5e300", "1.5e+300"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("-0.0", "-0"),
            ("9007199254740993", "9007199254740993"),
        ] {
            assert_eq!(go(given), written);
        }
    }

    #[test]
    fn rewrites_strings() {
        for (given, written) in [
            (r#""""#, r#""""#),
            (r#""plain é 水 ™""#, r#""plain é 水 ™""#),
            (r#" "space around" "#, r#""space around""#),
            (r#""a\/b\u0041\"<\n""#, r#""a/bA\"\u003c\n""#),
            ("\"a\u{2028}b\u{2029}c™\"", r#""a\u2028b\u2029c™""#),
        ] {
            assert_eq!(go(given), written);
        }
        for wrong in [&b"\""[..], b"\"a", b"\"a\"b\"", b"\"a\nb\"", b"\xff"] {
            assert!(canonical(wrong, Html::Escape).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn escapes_or_keeps_markup() {
        assert_eq!(
            go(r#""<a>&\u2028\u0001""#),
            r#""\u003ca\u003e\u0026\u2028\u0001""#
        );
        let kept = canonical(br#""<a>&""#, Html::Keep).unwrap();
        assert_eq!(&kept[..], br#""<a>&""#);
    }

    #[test]
    fn replaces_invalid_characters() {
        for (given, written) in [
            (&br#""\ud800""#[..], "\"\u{fffd}\""),
            (
                br#"{"\ud800a": ["\udc00", "\uD83D\uDE00"]}"#,
                "{\"\u{fffd}a\":[\"\u{fffd}\",\"😀\"]}",
            ),
            (b"{\"a\xff\":1}", "{\"a\u{fffd}\":1}"),
        ] {
            assert_eq!(canonical(given, Html::Escape).unwrap(), written);
        }
        let text: String = from_slice(br#""\udfff""#).unwrap();
        assert_eq!(text, "\u{fffd}");
        let text: String = first_from_slice(br#""\udfff" and more"#).unwrap();
        assert_eq!(text, "\u{fffd}");
    }

    #[test]
    fn rejects_invalid_json() {
        assert!(canonical(b"{", Html::Keep).is_err());
        assert!(canonical(b"", Html::Keep).is_err());
    }

    proptest! {
        #[test]
        fn rewriting_is_stable(text in "\\PC*", number in any::<f64>()) {
            prop_assume!(number.is_finite());
            let value = serde_json::json!({ "text": text, "number": number, "list": [text] });
            let once = canonical(value.to_string().as_bytes(), Html::Escape).unwrap();
            let back: Value = serde_json::from_slice(&once).unwrap();
            prop_assert_eq!(&back["text"], &value["text"]);
            prop_assert_eq!(back["number"].as_f64(), Some(number));
            let twice = canonical(&once, Html::Escape).unwrap();
            prop_assert_eq!(&once, &twice);
            let kept = canonical(value.to_string().as_bytes(), Html::Keep).unwrap();
            prop_assert_eq!(escaped(&kept), once);
        }
    }
}
