//! Interpretation of plain scalars: YAML 1.1 as read by Go.

use super::Flavour;

/// A scalar whose type is not resolved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Unquoted and untagged: may be a number, boolean or null.
    pub(crate) plain: bool,
}

/// The type of a scalar without a type expectation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resolved {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Str,
}

impl Scalar {
    pub(crate) fn plain(text: impl Into<String>) -> Scalar {
        Scalar {
            text: text.into(),
            plain: true,
        }
    }

    pub(crate) fn quoted(text: impl Into<String>) -> Scalar {
        Scalar {
            text: text.into(),
            plain: false,
        }
    }

    pub(crate) fn resolve(&self, flavour: Flavour) -> Resolved {
        if !self.plain {
            return Resolved::Str;
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
            "true" | "True" | "TRUE" => Resolved::Bool(true),
            "false" | "False" | "FALSE" => Resolved::Bool(false),
            text => match (flavour, old_bool(text)) {
                (Flavour::Json, Some(b)) => Resolved::Bool(b),
                _ => number(text).unwrap_or(Resolved::Str),
            },
        }
    }

    /// The value if a boolean is expected.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        match self.resolve(Flavour::Json) {
            Resolved::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// The value if a text is expected.
    pub(crate) fn as_text(&self, flavour: Flavour) -> String {
        if flavour == Flavour::Text {
            return self.text.clone();
        }
        match self.resolve(flavour) {
            Resolved::Null => String::new(),
            Resolved::Bool(b) => b.to_string(),
            Resolved::Int(n) => n.to_string(),
            Resolved::Uint(n) => n.to_string(),
            Resolved::Float(f) => shortest(f, 6, -4),
            Resolved::Str => self.text.clone(),
        }
    }

    /// The text of the value after a round trip through JSON: the form of numbers and booleans that
    /// components see.
    pub(crate) fn json_text(&self) -> String {
        match self.resolve(Flavour::Json) {
            Resolved::Null => "null".to_owned(),
            Resolved::Float(f) => json_float(f),
            Resolved::Str => quote(&self.text),
            _ => self.as_text(Flavour::Json),
        }
    }
}

/// A JSON string literal.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn old_bool(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Option<Resolved> {
    let first = text.bytes().next()?;
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) {
        return None;
    }
    let digits = text.replace('_', "");
    integer(&digits).or_else(|| float(&digits).map(Resolved::Float))
}

/// Decimal, `0x`, `0o`, `0b`, and a leading zero for octal.
fn integer(text: &str) -> Option<Resolved> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match unsigned.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &unsigned[2..]),
        Some("0o") => (8, &unsigned[2..]),
        Some("0b") => (2, &unsigned[2..]),
        _ if unsigned.len() > 1 && unsigned.starts_with('0') => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if digits.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if negative { -magnitude } else { magnitude };
    match i64::try_from(value) {
        Ok(n) => Some(Resolved::Int(n)),
        Err(_) => u64::try_from(value).ok().map(Resolved::Uint),
    }
}

fn float(text: &str) -> Option<f64> {
    // Rust also accepts `inf` and `nan`, and hexadecimal was handled: only digits, one dot and one exponent
    // may remain.
    if !text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
    {
        return None;
    }
    text.parse::<f64>().ok().filter(|f| f.is_finite())
}

/// Go's JSON numbers: plain digits unless very small or very large.
fn json_float(f: f64) -> String {
    let text = shortest(f, 21, -6);
    // JSON omits the zero of one-digit negative exponents: 1e-07 becomes 1e-7.
    match text.split_once("e-0") {
        Some((mantissa, digit)) => format!("{mantissa}e-{digit}"),
        None => text,
    }
}

/// The shortest digits that parse back to `f`; scientific from exponent `large` and below `small`.
fn shortest(f: f64, large: i32, small: i32) -> String {
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count() as i32;
    // With `large` = 6, Go prints longer integers in full up to their own digits, at most 21.
    let large = if large == 6 && digits > 6 && digits > exponent {
        digits.min(21)
    } else {
        large
    };
    if exponent < small || exponent >= large {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{f}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> Resolved {
        Scalar::plain(text).resolve(Flavour::Json)
    }

    #[test]
    fn resolves_yaml_1_1_scalars() {
        for null in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(meaning(null), Resolved::Null);
        }
        for yes in ["true", "True", "y", "Y", "yes", "on", "ON"] {
            assert_eq!(meaning(yes), Resolved::Bool(true), "{yes}");
        }
        for no in ["false", "FALSE", "n", "no", "Off"] {
            assert_eq!(meaning(no), Resolved::Bool(false), "{no}");
        }
        for (text, n) in [
            ("0", 0),
            ("-5", -5),
            ("+5", 5),
            ("0644", 420),
            ("0x1F", 31),
            ("0o17", 15),
            ("0b11", 3),
            ("1_000", 1000),
        ] {
            assert_eq!(meaning(text), Resolved::Int(n), "{text}");
        }
        assert_eq!(meaning("18446744073709551615"), Resolved::Uint(u64::MAX));
        assert_eq!(meaning("1.5"), Resolved::Float(1.5));
        assert_eq!(meaning("08"), Resolved::Float(8.0));
        for text in [
            "abc",
            "1.2.3",
            "5s",
            "2024-01-01",
            ".inf",
            "nan",
            "-",
            "+",
            ".",
            "1e",
            "0x",
            "--1",
            "0-7",
        ] {
            assert_eq!(meaning(text), Resolved::Str, "{text}");
        }
        assert_eq!(Scalar::quoted("5").resolve(Flavour::Json), Resolved::Str);
        assert_eq!(Scalar::plain("yes").resolve(Flavour::Text), Resolved::Str);
        assert_eq!(Scalar::plain("yes").as_bool(), Some(true));
    }

    #[test]
    fn numbers_as_texts_become_canonical() {
        for (text, canonical) in [
            ("0644", "420"),
            ("yes", "true"),
            ("1.0", "1"),
            ("1e6", "1e+06"),
            ("1.50", "1.5"),
            ("abc", "abc"),
        ] {
            assert_eq!(Scalar::plain(text).as_text(Flavour::Json), canonical);
        }
        assert_eq!(Scalar::plain("0644").as_text(Flavour::Text), "0644");
        for (text, json) in [
            ("1.0", "1"),
            ("1e6", "1000000"),
            ("1e21", "1e+21"),
            ("0.0000001", "1e-7"),
            ("on", "true"),
            ("a\"b", "\"a\\\"b\""),
        ] {
            assert_eq!(Scalar::plain(text).json_text(), json);
        }
    }
}
