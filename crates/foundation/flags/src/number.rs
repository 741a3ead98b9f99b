//! Number parsing of Go's flag package.

/// Integer types of flag values.
pub trait Int: Sized {
    /// Whether a sign, including plus, is accepted.
    const SIGNED: bool;

    /// Parses digits without prefix or sign in `radix`, with the sign applied.
    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self>;
}

impl Int for i64 {
    const SIGNED: bool = true;

    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self> {
        let value = i128::from_str_radix(digits, radix).ok()?;
        Self::try_from(if negative { -value } else { value }).ok()
    }
}

impl Int for u64 {
    const SIGNED: bool = false;

    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self> {
        if negative {
            None
        } else {
            Self::from_str_radix(digits, radix).ok()
        }
    }
}

/// Parses a number: an optional sign, then decimal digits or a `0x`, `0o`, `0b`, `0` prefix. Single
/// underscores are accepted between digits and after a prefix.
pub(crate) fn read<T: Int>(text: &str) -> Result<T, String> {
    let syntax = || format!("parsing \"{text}\": invalid syntax");
    let (sign, rest) = match text.as_bytes().first() {
        Some(b'-') => (Some('-'), &text[1..]),
        Some(b'+') => (Some('+'), &text[1..]),
        _ => (None, text),
    };
    if sign.is_some() && !T::SIGNED {
        return Err(syntax());
    }
    let (radix, digits) = match rest.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &rest[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &rest[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &rest[2..]),
        [b'0', _, ..] => (8, &rest[1..]),
        _ => (10, rest),
    };
    // After a prefix, including the leading 0 of an octal number, an underscore may precede the first
    // digit.
    let digits = match radix {
        10 => digits,
        _ => digits.strip_prefix('_').unwrap_or(digits),
    };
    if digits.is_empty() || !digits.split('_').all(|part| is_number(part, radix)) {
        return Err(syntax());
    }
    T::from_digits(sign == Some('-'), &digits.replace('_', ""), radix)
        .ok_or_else(|| format!("parsing \"{text}\": value out of range"))
}

fn is_number(digits: &str, radix: u32) -> bool {
    !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_go_number_forms() {
        assert_eq!(read::<i64>("-1"), Ok(-1));
        assert_eq!(read::<i64>("+12"), Ok(12));
        assert_eq!(read::<i64>("0"), Ok(0));
        assert_eq!(read::<i64>("0x1F"), Ok(31));
        assert_eq!(read::<i64>("010"), Ok(8));
        assert_eq!(read::<i64>("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(read::<u64>("3"), Ok(3));
        assert_eq!(read::<i64>("1_000"), Ok(1000));
        assert_eq!(read::<i64>("-0x_1f"), Ok(-31));
        assert_eq!(read::<i64>("0_10"), Ok(8));
    }

    #[test]
    fn rejects_non_numbers() {
        for text in ["", "-", "1a", "0x", "1.5", "--1", "09", "é", "_1", "1_", "1__0"] {
            assert!(
                read::<i64>(text).unwrap_err().ends_with("invalid syntax"),
                "{text:?}"
            );
        }
        assert!(
            read::<i64>("9223372036854775808")
                .unwrap_err()
                .ends_with("out of range")
        );
        for text in ["-1", "+1"] {
            assert!(
                read::<u64>(text).unwrap_err().ends_with("invalid syntax"),
                "{text:?}"
            );
        }
    }
}
