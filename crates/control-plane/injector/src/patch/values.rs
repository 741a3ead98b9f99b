//! Valid values of annotations: those that the API server accepts in a container, and those that the sidecar
//! accepts as flags.

use std::fmt;
use std::net::IpAddr;

use outrigger_kube::annotations::{go_nanos, is_truthy, quantity};
use outrigger_kube::is_object_name;

/// The kind of an annotation's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum AnnotationKind {
    Text,
    Switch,
    Number,
    /// Port of the app; 0 means none.
    AppPort,
    /// Port of a container.
    Port,
    /// Setting of a probe of the sidecar.
    Probe,
    /// Amount of processor or memory.
    Amount,
    /// Size in bytes.
    Size,
    Duration,
    Protocol,
    Level,
    /// Name of an object in the cluster.
    Name,
    /// Listen addresses of the sidecar.
    Hosts,
    /// Addresses of a control plane service; empty disables it.
    Addresses,
    Endpoints,
    Seccomp,
    Image,
    Mounts,
    Variables,
    Secrets,
}

/// The effect of an invalid value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Problem {
    /// Refused, because the API server would reject the pod without naming the annotation.
    Refused,
    /// Ignored, as if it were absent.
    Ignored,
    /// Passed on to the sidecar or to the cluster, with this effect.
    Counts(&'static str),
}

impl fmt::Display for AnnotationKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Text => "a text",
            Self::Switch => "true or false",
            Self::Number => "a whole number",
            Self::AppPort => "a whole number from 1 to 65535, or 0 for none",
            Self::Port => "a port (1 to 65535)",
            Self::Probe => "a whole number from 0 (which is Kubernetes' default)",
            Self::Amount => "a quantity such as 100m, 64Mi or 4",
            Self::Size => "a number of bytes such as 4Mi, 512Ki or 1048576",
            Self::Duration => "a duration such as 5s or 1m30s",
            Self::Protocol => "http, https, h2c, grpc or grpcs",
            Self::Level => "debug, info, warn, error or fatal",
            Self::Name => "the name of an object (lower case letters, digits, '-' and '.')",
            Self::Hosts => "host,host (IP addresses or names)",
            Self::Addresses => "host:port,host:port",
            Self::Endpoints => "config, subscribe or config,subscribe",
            Self::Seccomp => "RuntimeDefault or Unconfined",
            Self::Image => "an image without white space around it",
            Self::Mounts => "name:path,name:path",
            Self::Variables => "NAME=value,NAME=value (NAME: printable ASCII)",
            Self::Secrets => {
                "NAME=secret,NAME=secret:key (NAME: printable ASCII; key: letters, digits, '-', '_', '.')"
            }
        })
    }
}

/// The effect of a value that is not of the wanted kind.
pub(super) fn problem(want: AnnotationKind, value: &str) -> Option<Problem> {
    use Problem::{Counts, Ignored, Refused};
    let number = || value.parse::<i32>().ok();
    let one_of = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    let parts = || value.split(',').map(str::trim);
    let unless = |holds: bool, problem| (!holds).then_some(problem);
    match want {
        AnnotationKind::Text | AnnotationKind::Mounts | AnnotationKind::Variables => None,
        AnnotationKind::Switch => unless(is_switch(value), Counts("it counts as false")),
        AnnotationKind::Number => unless(number().is_some(), Ignored),
        AnnotationKind::AppPort => unless(number().is_some_and(|port| (0..=65535).contains(&port)), Ignored),
        AnnotationKind::Port => match number() {
            None => Some(Ignored),
            Some(port) => unless((1..=65535).contains(&port), Refused),
        },
        AnnotationKind::Probe => match number() {
            None => Some(Ignored),
            Some(number) => unless(number >= 0, Refused),
        },
        AnnotationKind::Amount if value.is_empty() => None,
        AnnotationKind::Amount if !is_quantity(value) => {
            Some(Counts("none of the sidecar's resources is set"))
        }
        AnnotationKind::Amount => unless(amount(value) >= Some(0), Refused),
        AnnotationKind::Size => unless(value.is_empty() || quantity(value).is_ok(), Ignored),
        AnnotationKind::Duration => unless(go_nanos(value).is_ok(), Ignored),
        AnnotationKind::Protocol => unless(one_of(&["", "http", "https", "h2c", "grpc", "grpcs"]), Ignored),
        AnnotationKind::Level => unless(one_of(&["debug", "info", "warn", "error", "fatal"]), Ignored),
        AnnotationKind::Name => unless(
            value.is_empty() || is_object_name(value),
            Counts("it is not a valid name of an object of the cluster, and the sidecar does not start"),
        ),
        AnnotationKind::Hosts => unless(parts().all(is_host), Ignored),
        AnnotationKind::Addresses => {
            let text = value.trim_matches(['"', '\'']).trim();
            let right = text.is_empty() || text.split(',').all(|part| is_address(part.trim()));
            unless(right, Counts("the sidecar cannot connect to it"))
        }
        AnnotationKind::Endpoints => {
            let known = |part: &str| {
                ["", "config", "subscribe"]
                    .iter()
                    .any(|word| part.eq_ignore_ascii_case(word))
            };
            unless(parts().all(known), Ignored)
        }
        // "Localhost" requires a file, for which there is no annotation.
        AnnotationKind::Seccomp => unless(matches!(value, "" | "RuntimeDefault" | "Unconfined"), Refused),
        AnnotationKind::Image => unless(value.trim() == value, Refused),
        AnnotationKind::Secrets => unless(
            value.is_empty() || value.split(',').all(is_secret),
            Counts("malformed entries are ignored"),
        ),
    }
}

fn is_switch(value: &str) -> bool {
    let off = ["", "n", "no", "false", "f", "off", "0"];
    is_truthy(value) || off.iter().any(|word| value.trim().eq_ignore_ascii_case(word))
}

fn is_host(text: &str) -> bool {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    bare.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.bytes().all(in_name))
}

/// Whether the text is host and port, optionally with a scheme that gRPC knows.
fn is_address(text: &str) -> bool {
    let port = text
        .rsplit_once(':')
        .map(|(host, port)| (host.is_empty(), port.parse::<u16>()));
    matches!(port, Some((false, Ok(1..))))
}

fn is_secret(text: &str) -> bool {
    let pair = text.split_once('=');
    pair.is_some_and(|(name, from)| {
        !name.trim().is_empty() && !from.trim().is_empty() && from.matches(':').count() <= 1
    })
}

/// Whether Kubernetes parses a text as a quantity: a number with a suffix (`m`, `Ki`, `M`, ...) or an
/// exponent.
pub(super) fn is_quantity(text: &str) -> bool {
    amount(text).is_some()
}

/// Billionths of a unit, the resolution of Kubernetes, which rounds up.
const NANO: i128 = 1_000_000_000;
/// Maximum quantity of Kubernetes.
const MAX_AMOUNT: i128 = i64::MAX as i128 * NANO;

/// A quantity in billionths of its unit.
pub(super) fn amount(text: &str) -> Option<i128> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 || number.len() - digits > 1 {
        return None;
    }
    let decimal = |places: i64| shifted(number, places.saturating_add(9));
    // At most 18 fractional digits count.
    let binary = |bits: u32| {
        shifted(number, 18)
            .checked_mul(1 << bits)
            .map_or(MAX_AMOUNT, |all| all / NANO + i128::from(all % NANO > 0))
    };
    let amount = match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(sign * amount.min(MAX_AMOUNT))
}

/// Moves the decimal point of a number to the right by this many places, and rounds up.
fn shifted(number: &str, places: i64) -> i128 {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let length = (whole.len() + fraction.len()) as i64;
    let point = (whole.len() as i64).saturating_add(places);
    let digits = || {
        whole
            .bytes()
            .chain(fraction.bytes())
            .map(|digit| i128::from(digit - b'0'))
    };
    let kept = point.clamp(0, length) as usize;
    let more = |value: i128, digit| value.saturating_mul(10).saturating_add(digit);
    let value = digits().take(kept).fold(0, more);
    let is_rounded = digits().skip(kept).any(|digit| digit > 0);
    // More zeros than an `i128` has digits change nothing.
    let zeros = (0..(point - kept as i64).min(40)).map(|_| 0);
    zeros.fold(value, more).saturating_add(is_rounded.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kubernetes_quantities() {
        for good in ["1", "100m", "1.5", "64Mi", "2Gi", ".5", "1e3", "1E-2", "4k", "+1"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in [
            "", "m", "1.2.3", "10MB", "1 Mi", "e3", "1e", "1e+", "1e1.5", ".", "-", "lots",
        ] {
            assert!(!is_quantity(bad), "{bad}");
        }
        assert!(
            amount("1Gi") > amount("1G") && amount("250m") < amount("0.5") && amount("1e3") == amount("1k")
        );
    }

    #[test]
    fn computes_exact_amounts() {
        for (one, other) in [
            ("700m", "0.7"),
            ("1100m", "1.1"),
            ("0.3", "300000u"),
            ("1.1G", "1100M"),
            ("1.5Ki", "1536"),
            ("0.1Gi", "107374182400m"),
            (".7", "7e-1"),
            (
                "0700.000m",
                "+0.70000000000000000000000000000000000000000000000000",
            ),
            ("0.1n", "1n"),
            ("1e-400", "1n"),
            ("0e99999", "0"),
            ("1e99999", "9223372036854775807"),
            ("8Ei", "1000000000000000000000000000000000000000000000000000000E"),
        ] {
            assert_eq!(amount(one), amount(other), "{one} {other}");
        }
        assert_eq!(amount("-1.5"), Some(-1_500_000_000));
        assert_eq!(amount("1Gi"), Some((1 << 30) * NANO));
        assert!(amount("0.700000001") > amount("700m") && amount("0.699999999") < amount("700m"));
        let long = "9".repeat(1 << 16);
        assert_eq!(amount(&long), Some(MAX_AMOUNT));
        assert_eq!(amount(&format!("0.{long}")), Some(NANO));
    }

    #[test]
    fn classifies_invalid_values() {
        use Problem::{Counts, Ignored, Refused};
        let counts = |problem: Option<Problem>| matches!(problem, Some(Counts(_)));
        for (want, value, expected) in [
            (AnnotationKind::Port, "99999", Some(Refused)),
            (AnnotationKind::Port, "0", Some(Refused)),
            (AnnotationKind::Port, "http", Some(Ignored)),
            (AnnotationKind::Port, "65535", None),
            (AnnotationKind::AppPort, "65536", Some(Ignored)),
            (AnnotationKind::AppPort, "-1", Some(Ignored)),
            (AnnotationKind::AppPort, "0", None),
            (AnnotationKind::Probe, "-1", Some(Refused)),
            (AnnotationKind::Probe, "0", None),
            (AnnotationKind::Amount, "-1", Some(Refused)),
            (AnnotationKind::Amount, "-0", None),
            (AnnotationKind::Amount, "64Mi", None),
            (AnnotationKind::Size, "0.5", Some(Ignored)),
            (AnnotationKind::Size, "-1", None),
            (AnnotationKind::Duration, "5", Some(Ignored)),
            (AnnotationKind::Duration, "1m30s", None),
            (AnnotationKind::Protocol, "soap", Some(Ignored)),
            (AnnotationKind::Protocol, "GRPC", None),
            (AnnotationKind::Level, "trace", Some(Ignored)),
            (AnnotationKind::Level, "Warn", None),
            (AnnotationKind::Hosts, "[::1],127.0.0.1", None),
            (AnnotationKind::Hosts, "0.0.0.0:80", Some(Ignored)),
            (AnnotationKind::Endpoints, "Config, subscribe", None),
            (AnnotationKind::Endpoints, "all", Some(Ignored)),
            (AnnotationKind::Seccomp, "runtimedefault", Some(Refused)),
            (AnnotationKind::Seccomp, "Localhost", Some(Refused)),
            (AnnotationKind::Seccomp, "RuntimeDefault", None),
            (AnnotationKind::Name, "appconfig", None),
            (AnnotationKind::Addresses, "'p:1, q:2'", None),
            (AnnotationKind::Addresses, " ", None),
            (AnnotationKind::Secrets, "A=s,B=t:k", None),
            (AnnotationKind::Image, "daprd:1 ", Some(Refused)),
            (AnnotationKind::Image, "", None),
        ] {
            assert_eq!(problem(want, value), expected, "{want:?} {value:?}");
        }
        for (want, value) in [
            (AnnotationKind::Switch, "perhaps"),
            (AnnotationKind::Amount, "fast"),
            (AnnotationKind::Name, "my config"),
            (AnnotationKind::Addresses, "placement"),
            (AnnotationKind::Addresses, "p:0"),
            (AnnotationKind::Secrets, "A=s:k:x"),
        ] {
            assert!(counts(problem(want, value)), "{want:?} {value:?}");
        }
    }
}
