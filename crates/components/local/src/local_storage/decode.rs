use std::borrow::Cow;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// The bytes to store: without quotes, and decoded if they are Base64.
pub(super) fn data(given: &[u8]) -> Cow<'_, [u8]> {
    let text = unquote(given).map_or(Cow::Borrowed(given), Cow::Owned);
    let packed: Vec<u8> = text
        .iter()
        .copied()
        .filter(|byte| !matches!(byte, b'\r' | b'\n'))
        .collect();
    match BASE64.decode(packed) {
        Ok(decoded) => Cow::Owned(decoded),
        Err(_) => text,
    }
}

/// The content of a Go-quoted string, a superset of JSON's; `None` for other texts.
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let (&quote, rest) = text.split_first()?;
    let (&last, inside) = rest.split_last()?;
    if quote != last {
        return None;
    }
    match quote {
        b'`' if !inside.contains(&b'`') => {
            Some(inside.iter().copied().filter(|byte| *byte != b'\r').collect())
        }
        b'"' => escapes(inside, quote),
        b'\'' => {
            let one = escapes(inside, quote)?;
            let mut characters = std::str::from_utf8(&one).ok()?.chars();
            (characters.next().is_some() && characters.next().is_none()).then_some(one)
        }
        _ => None,
    }
}

fn escapes(mut text: &[u8], quote: u8) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        text = rest;
        if byte == quote || byte == b'\n' {
            return None;
        }
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, rest) = text.split_first()?;
        text = rest;
        let simple = match escape {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'\\' => b'\\',
            b'"' | b'\'' if escape == quote => escape,
            _ => {
                text = number(escape, text, &mut out)?;
                continue;
            }
        };
        out.push(simple);
    }
    Some(out)
}

/// Parses a numeric escape; returns the rest.
fn number<'t>(escape: u8, text: &'t [u8], out: &mut Vec<u8>) -> Option<&'t [u8]> {
    let (digits, radix, text) = match escape {
        b'x' => (text.get(..2)?.to_vec(), 16, &text[2..]),
        b'u' => (text.get(..4)?.to_vec(), 16, &text[4..]),
        b'U' => (text.get(..8)?.to_vec(), 16, &text[8..]),
        b'0'..=b'7' => ([&[escape], text.get(..2)?].concat(), 8, &text[2..]),
        _ => return None,
    };
    if !digits.iter().all(|digit| char::from(*digit).is_digit(radix)) {
        return None;
    }
    let value = u32::from_str_radix(std::str::from_utf8(&digits).ok()?, radix).ok()?;
    if matches!(escape, b'u' | b'U') {
        let character = char::from_u32(value)?;
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    } else {
        out.push(u8::try_from(value).ok()?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(given: &str) -> String {
        String::from_utf8_lossy(&data(given.as_bytes())).into_owned()
    }

    #[test]
    fn strips_one_pair_of_quotes() {
        assert_eq!(stored(r#""hello world""#), "hello world");
        assert_eq!(stored(r#""a\"b\\c\n\u003c""#), "a\"b\\c\n<");
        assert_eq!(stored("`raw \\n`"), "raw \\n");
        assert_eq!(stored(r"'\''"), "'");
        assert_eq!(stored(r#""\x41\102 é""#), "AB é");
        for whole in [
            r#"{"a":1}"#,
            "\"",
            "'ab'",
            r#""\q""#,
            r#""a"b""#,
            r#""\ud800""#,
            "\"a\nb\"",
            "plain!",
        ] {
            assert_eq!(stored(whole), whole);
        }
    }

    #[test]
    fn decodes_base64() {
        assert_eq!(stored(r#""aGVsbG8=""#), "hello");
        assert_eq!(stored("aGVs\nbG8="), "hello");
        assert_eq!(stored("aGVsbG8"), "aGVsbG8");
        assert_eq!(stored(""), "");
    }
}
