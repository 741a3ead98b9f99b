//! Prometheus text format 0.0.4 and OpenMetrics 1.0.

use std::fmt::Write as _;

use super::cell::Sample;

/// Exposition format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    #[default]
    Text,
    /// OpenMetrics text 1.0.0. Counters whose name lacks `_total` have type `unknown`, so that sample names
    /// are equal in both formats.
    OpenMetrics,
}

impl Format {
    /// Selects by the `Accept` header: the format with the highest `q`, the first of equals; text by
    /// default.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let mut best = (Self::Text, 0.0);
        for part in accept.unwrap_or_default().split(',') {
            let mut params = part.split(';').map(str::trim);
            let format = match params.next().unwrap_or_default() {
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Self::Text,
                _ => continue,
            };
            let quality = params
                .find_map(|p| p.strip_prefix("q="))
                .map_or(1.0, |q| q.parse().unwrap_or(0.0));
            if quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    /// `Content-Type` of the exposition.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// `HELP` and `TYPE` lines.
pub(super) fn header(format: Format, out: &mut String, name: &str, help: &str, kind: &str) {
    let (name, kind) = match format {
        Format::OpenMetrics if kind == "counter" => match name.strip_suffix("_total") {
            Some(family) => (family, kind),
            None => (name, "unknown"),
        },
        _ => (name, kind),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// The lines of one series. `labels` is rendered already, without braces.
pub(super) fn sample(format: Format, out: &mut String, name: &str, labels: &str, sample: &Sample<'_>) {
    match sample {
        Sample::Number(value) => line(format, out, name, "", labels, None, *value),
        Sample::Histogram {
            bounds,
            scale,
            counts,
            sum,
        } => {
            let mut total = 0;
            for (i, count) in counts.iter().enumerate() {
                total += count;
                let bound = bounds.get(i).map_or(f64::INFINITY, |bound| *bound as f64 / scale);
                line(format, out, name, "_bucket", labels, Some(bound), total as f64);
            }
            line(format, out, name, "_sum", labels, None, *sum);
            line(format, out, name, "_count", labels, None, total as f64);
        }
    }
}

fn line(
    format: Format,
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &str,
    le: Option<f64>,
    value: f64,
) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() || le.is_some() {
        out.push('{');
        out.push_str(labels);
        if let Some(le) = le {
            if !labels.is_empty() {
                out.push(',');
            }
            out.push_str("le=\"");
            out.push_str(&float(format, le));
            out.push('"');
        }
        out.push('}');
    }
    out.push(' ');
    let count = suffix == "_bucket" || suffix == "_count";
    out.push_str(&if count {
        go_float_or_integer(format, value)
    } else {
        float(format, value)
    });
    out.push('\n');
}

/// Counts are integers in OpenMetrics.
fn go_float_or_integer(format: Format, value: f64) -> String {
    match format {
        Format::Text => go_float(value),
        Format::OpenMetrics => format!("{value:.0}"),
    }
}

fn float(format: Format, value: f64) -> String {
    let mut text = go_float(value);
    if format == Format::OpenMetrics && value.is_finite() && !text.contains(['.', 'e']) {
        text.push_str(".0");
    }
    text
}

/// Ends the exposition.
pub(super) fn finish(format: Format, out: &mut String) {
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
}

/// Escapes a label value of the exposition, and appends it.
pub fn push_escaped(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
}

/// A float in Go's shortest form, which bucket labels depend on: with an exponent below 1e-4 and from 1e6
/// on.
pub(crate) fn go_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        format!("{value}")
    } else {
        exponential(mantissa, exponent)
    }
}

fn exponential(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_like_go() {
        for (value, text) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (1e5, "100000"),
            (123_456.789, "123456.789"),
            (1_048_576.0, "1.048576e+06"),
            (1e6, "1e+06"),
            (4_294_967_296.0, "4.294967296e+09"),
            (1e21, "1e+21"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5, "-2.5"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(go_float(value), text);
        }
    }

    #[test]
    fn negotiation() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::negotiate(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(
            Format::negotiate(Some("text/plain, application/openmetrics-text")),
            Format::Text
        );
        assert_eq!(
            Format::negotiate(Some("application/openmetrics-text; version=1.0.0")),
            Format::OpenMetrics
        );
        assert_eq!(Format::negotiate(Some("image/png")), Format::Text);
        assert_eq!(Format::negotiate(None), Format::Text);
    }
}
