//! Kubernetes quantities (`4Mi`, `10k`, `1e3`) as integers.

/// Why a text is not an integer quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Not a number with an optional suffix.
    #[error("{0:?} is not a quantity (examples: 4Mi, 512Ki, 1G, 1048576)")]
    Syntax(String),
    /// A quantity, but not an integer between -2^63 and 2^63-1.
    #[error("quantity {0:?} is not a whole number of bytes in range")]
    NotWhole(String),
}

/// Parses a Kubernetes quantity that must be an integer.
///
/// Suffixes: `Ki Mi Gi Ti Pi Ei` (powers of 1024), `n u m k M G T P E` (powers of 1000) and `e<N>` or
/// `E<N>` (powers of ten).
///
/// ```
/// use outrigger_resources::value::quantity;
///
/// assert_eq!(quantity("4Mi").unwrap(), 4 << 20);
/// assert!(quantity("0.5").is_err());
/// ```
pub fn quantity(text: &str) -> Result<i64, ParseQuantityError> {
    let syntax = || ParseQuantityError::Syntax(text.to_owned());
    let not_whole = || ParseQuantityError::NotWhole(text.to_owned());
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let (binary, decimal) = scale(suffix).ok_or_else(syntax)?;
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.is_empty() && fraction.is_empty() {
        return Ok(0);
    }
    // i64 has 19 digits; anything longer cannot be an integer in range.
    if whole.len() + fraction.len() > 30 {
        return Err(not_whole());
    }
    let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| syntax())?;
    let exponent = decimal - fraction.len() as i32;
    let mut value = digits.checked_mul(1i128 << binary).ok_or_else(not_whole)?;
    let power = 10i128
        .checked_pow(exponent.unsigned_abs())
        .ok_or_else(not_whole)?;
    if exponent >= 0 {
        value = value.checked_mul(power).ok_or_else(not_whole)?;
    } else if value % power == 0 {
        value /= power;
    } else {
        return Err(not_whole());
    }
    i64::try_from(if negative { -value } else { value }).map_err(|_| not_whole())
}

/// The suffix as (power of two, power of ten).
fn scale(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            // Larger exponents are out of range whatever the digits.
            (0, exponent.parse::<i32>().ok().filter(|e| e.abs() <= 38)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_integer_quantities() {
        for (text, value) in [
            ("0", 0),
            ("4Mi", 4 << 20),
            ("4Ki", 4 << 10),
            ("1.5Ki", 1536),
            ("-1", -1),
            ("+2k", 2_000),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1000m", 1),
            ("0.5k", 500),
            (".5k", 500),
            ("1Ei", 1 << 60),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(quantity(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn rejects_other_quantities() {
        for bad in ["", "Mi", "4mi", "4 Mi", "1.2.3", "x", "4MiB", "--1", "1e", "e3"] {
            assert!(
                matches!(quantity(bad), Err(ParseQuantityError::Syntax(_))),
                "{bad}"
            );
        }
        for odd in [
            "1m",
            "10E",
            "1.0001Ki",
            "9223372036854775808",
            "99999999999999999999999999999999",
        ] {
            assert!(
                matches!(quantity(odd), Err(ParseQuantityError::NotWhole(_))),
                "{odd}"
            );
        }
    }
}
