//! Formatting of numbers.

/// Three significant digits, with separators: 12,300; 1,230; 12.3; 0.0123.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => grouped(value),
        10.0.. => trimmed(&format!("{value:.1}")),
        1.0.. => trimmed(&format!("{value:.2}")),
        size => {
            // The first significant digit, and one more.
            let digits = (1 - size.log10().floor() as i32).clamp(2, 9) as usize;
            format!("{value:.digits$}")
        }
    }
}

/// A tick of an axis, without trailing zeros.
pub(super) fn tick(value: f64) -> String {
    match value.abs() {
        1e6.. => format!("{}M", trimmed(&format!("{:.1}", value / 1e6))),
        1e3.. => grouped(value),
        _ => trimmed(&format!("{value:.4}")),
    }
}

/// A number of bytes with a suitable unit.
pub(super) fn bytes(count: usize) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count / 1024),
        _ => format!("{} MiB", count / 1_048_576),
    }
}

/// Removes trailing zeros of a decimal fraction.
fn trimmed(text: &str) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs().round());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::{bytes, short, tick};

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (12_345.6, "12,346"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.2, "1.2"),
            (0.1234, "0.12"),
            (0.01234, "0.012"),
            (-1_234.0, "-1,234"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            (tick(2_500_000.0), tick(0.25), tick(1000.0)),
            ("2.5M".into(), "0.25".into(), "1,000".into())
        );
        assert_eq!(
            (bytes(0), bytes(1024), bytes(1 << 20)),
            ("0 B".into(), "1 KiB".into(), "1 MiB".into())
        );
    }
}
