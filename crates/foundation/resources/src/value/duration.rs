//! Parsing and formatting of Go durations (`1m30s`, `1.5h`, `500ms`).

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    /// Not number-unit pairs, or beyond ±292 years.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit other than `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The text in place of the unit.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// Negative, where only a time span is valid.
    #[error("duration {0:?} is negative")]
    Negative(String),
}

/// Parses a non-negative Go duration.
///
/// ```
/// use std::time::Duration;
///
/// use outrigger_resources::value::go_duration;
///
/// assert_eq!(go_duration("1m30s").unwrap(), Duration::from_secs(90));
/// assert!(go_duration("90").is_err());
/// ```
pub fn go_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let nanos = go_nanos(text)?;
    let nanos = u64::try_from(nanos).map_err(|_| ParseDurationError::Negative(text.to_owned()))?;
    Ok(Duration::from_nanos(nanos))
}

/// Parses a signed Go duration to nanoseconds.
pub fn go_nanos(text: &str) -> Result<i64, ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if unsigned == "0" {
        return Ok(0);
    }
    if unsigned.is_empty() {
        return Err(invalid());
    }
    // The sum may exceed i64::MAX by one: negated, it is the smallest i64.
    let limit = 1u64 << 63;
    let mut total = 0u64;
    let mut rest = unsigned;
    while !rest.is_empty() {
        let (term, after) = term(rest, text)?;
        total = total
            .checked_add(term)
            .filter(|sum| *sum <= limit)
            .ok_or_else(invalid)?;
        rest = after;
    }
    if negative {
        // `total` is at most 2^63, so the wrapping cast yields exactly its negation.
        Ok((total as i64).wrapping_neg())
    } else {
        i64::try_from(total).map_err(|_| invalid())
    }
}

/// Parses one number with its unit. Returns nanoseconds and the rest.
fn term<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let (whole, rest) = digits(rest);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    let scale: u64 = match unit {
        "" => return Err(ParseDurationError::MissingUnit(text.to_owned())),
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => {
            return Err(ParseDurationError::UnknownUnit {
                unit: unit.to_owned(),
                text: text.to_owned(),
            });
        }
    };
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().map_err(|_| invalid())?
    };
    let whole = whole
        .checked_mul(scale)
        .filter(|n| *n <= 1 << 63)
        .ok_or_else(invalid)?;
    Ok((whole + fraction_nanos(fraction, scale), after))
}

/// `0.<digits>` of a unit in nanoseconds, rounded down.
fn fraction_nanos(digits: &str, scale: u64) -> u64 {
    // 18 digits resolve far below a nanosecond even for hours.
    let digits = &digits[..digits.len().min(18)];
    let value = digits.parse::<u128>().unwrap_or(0);
    let divisor = 10u128.pow(digits.len() as u32);
    // Below `scale`, which is a u64.
    (value * u128::from(scale) / divisor) as u64
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Formats a duration like Go: `5s`, `1m30s`, `500ms`, `1h0m0s`, `0s`.
pub fn format_go_duration(duration: Duration) -> String {
    format_go_nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Formats signed nanoseconds as a Go duration.
pub fn format_go_nanos(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let body = match n {
        0 => return "0s".to_owned(),
        1..1_000 => format!("{n}ns"),
        1_000..1_000_000 => decimal(n, 1_000, "\u{b5}s"),
        1_000_000..1_000_000_000 => decimal(n, 1_000_000, "ms"),
        _ => {
            let seconds = decimal(n % 60_000_000_000, 1_000_000_000, "s");
            let minutes = n / 60_000_000_000;
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, m) => format!("{m}m{seconds}"),
                (h, m) => format!("{h}h{m}m{seconds}"),
            }
        }
    };
    format!("{sign}{body}")
}

fn decimal(n: u64, scale: u64, unit: &str) -> String {
    let (whole, fraction) = (n / scale, n % scale);
    if fraction == 0 {
        return format!("{whole}{unit}");
    }
    let width = scale.ilog10() as usize;
    let fraction = format!("{fraction:0width$}");
    format!("{whole}.{}{unit}", fraction.trim_end_matches('0'))
}

/// Parses a duration of a Resiliency document: a bare integer means milliseconds, anything else is a Go
/// duration.
pub fn resiliency_duration(text: &str) -> Result<Duration, ParseDurationError> {
    match text.parse::<i64>() {
        Ok(millis) => {
            let millis = u64::try_from(millis).map_err(|_| ParseDurationError::Negative(text.to_owned()))?;
            Ok(Duration::from_millis(millis))
        }
        Err(_) => go_duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_like_go() {
        let ok: &[(&str, i64)] = &[
            ("0", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("-1.5h", -5_400_000_000_000),
            ("1h30m", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("10.5s4m", 250_500_000_000),
            ("39h9m14.425s", 140_954_425_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("0.100000000000000000000h", 360_000_000_000),
        ];
        for (text, nanos) in ok {
            assert_eq!(go_nanos(text), Ok(*nanos), "{text}");
        }
        for bad in [
            "",
            "-",
            "s",
            ".",
            "-.s",
            ".s",
            "1s.",
            "9223372036854775808ns",
            "3000000h",
            "1 s",
        ] {
            assert!(go_nanos(bad).is_err(), "{bad}");
        }
        assert_eq!(
            go_nanos("3").unwrap_err().to_string(),
            "time: missing unit in duration \"3\""
        );
        assert_eq!(
            go_nanos("3d").unwrap_err().to_string(),
            "time: unknown unit \"d\" in duration \"3d\""
        );
        assert_eq!(
            go_nanos("x").unwrap_err().to_string(),
            "time: invalid duration \"x\""
        );
        assert!(matches!(go_duration("-1s"), Err(ParseDurationError::Negative(_))));
    }

    #[test]
    fn formats_like_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (500_000_000, "500ms"),
            (5_000_000_000, "5s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format_go_nanos(nanos), text);
            assert_eq!(go_nanos(text), Ok(nanos), "{text} reads back");
        }
        assert_eq!(format_go_duration(Duration::from_millis(1_500)), "1.5s");
    }

    #[test]
    fn resiliency_integers_mean_milliseconds() {
        assert_eq!(resiliency_duration("250"), Ok(Duration::from_millis(250)));
        assert_eq!(resiliency_duration("250s"), Ok(Duration::from_secs(250)));
        assert!(resiliency_duration("-1").is_err());
        assert!(resiliency_duration("soon").is_err());
    }

    proptest::proptest! {
        #[test]
        fn durations_round_trip(nanos: i64) {
            proptest::prop_assert_eq!(go_nanos(&format_go_nanos(nanos)), Ok(nanos));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "[-+]?[0-9.]{0,25}[a-z\u{b5}]{0,3}[0-9.]{0,3}\\PC{0,3}") {
            let _ = go_nanos(&text);
            let _ = crate::value::quantity(&text);
        }
    }
}
