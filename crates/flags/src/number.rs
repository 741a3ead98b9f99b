//! Numbers as Go programs read them from a command line.

/// Integers a flag value can be read into.
pub trait Int: Sized {
    /// Reads digits without prefix or sign in `radix`, with the sign applied.
    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self>;
}

impl Int for i64 {
    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self> {
        let value = i128::from_str_radix(digits, radix).ok()?;
        Self::try_from(if negative { -value } else { value }).ok()
    }
}

impl Int for u64 {
    fn from_digits(negative: bool, digits: &str, radix: u32) -> Option<Self> {
        if negative {
            None
        } else {
            Self::from_str_radix(digits, radix).ok()
        }
    }
}

/// Reads a number: optional sign, then decimal digits or a `0x`, `0o`, `0b`, `0` prefix.
pub(crate) fn read<T: Int>(text: &str) -> Result<T, String> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match rest.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &rest[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &rest[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &rest[2..]),
        [b'0', _, ..] => (8, &rest[1..]),
        _ => (10, rest),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(format!("parsing \"{text}\": invalid syntax"));
    }
    T::from_digits(negative, digits, radix).ok_or_else(|| format!("parsing \"{text}\": value out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_forms_go_reads() {
        assert_eq!(read::<i64>("-1"), Ok(-1));
        assert_eq!(read::<i64>("+12"), Ok(12));
        assert_eq!(read::<i64>("0"), Ok(0));
        assert_eq!(read::<i64>("0x1F"), Ok(31));
        assert_eq!(read::<i64>("010"), Ok(8));
        assert_eq!(read::<i64>("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(read::<u64>("3"), Ok(3));
    }

    #[test]
    fn refuses_what_is_not_a_number() {
        for text in ["", "-", "1a", "0x", "1.5", "--1", "09", "é"] {
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
        assert!(read::<u64>("-1").unwrap_err().ends_with("out of range"));
    }
}
