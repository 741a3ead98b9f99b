//! The annotations that there are, and what is wrong with those of a pod. A wrong one does not count, as in Dapr; whoever
//! creates the pod is told of it.

use std::collections::BTreeMap;

use super::environment::pairs;
use super::volumes::given;

const PREFIX: &str = "dapr.io/";
/// Warnings of a pod, and characters of each: API servers cut longer ones.
const MAX_WARNINGS: usize = 10;
const MAX_LENGTH: usize = 240;

/// What an annotation holds.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Switch,
    Number,
    Quantity,
    Mounts,
    Variables,
}

use Kind::{Mounts, Number, Quantity, Switch, Text, Variables};

const KNOWN: &[(&str, Kind)] = &[
    ("enabled", Switch),
    ("app-id", Text),
    ("app-port", Number),
    ("app-protocol", Text),
    ("app-ssl", Switch),
    ("app-channel-address", Text),
    ("app-max-concurrency", Number),
    ("config", Text),
    ("log-level", Text),
    ("log-as-json", Switch),
    ("enable-api-logging", Switch),
    ("enable-profiling", Switch),
    ("enable-metrics", Switch),
    ("metrics-port", Number),
    ("enable-debug", Switch),
    ("debug-port", Number),
    ("grpc-port", Number),
    ("internal-grpc-port", Number),
    ("sidecar-listen-addresses", Text),
    ("env", Variables),
    ("env-from-secret", Variables),
    ("api-token-secret", Text),
    ("app-token-secret", Text),
    ("sidecar-cpu-request", Quantity),
    ("sidecar-cpu-limit", Quantity),
    ("sidecar-memory-request", Quantity),
    ("sidecar-memory-limit", Quantity),
    ("sidecar-liveness-probe-delay-seconds", Number),
    ("sidecar-liveness-probe-timeout-seconds", Number),
    ("sidecar-liveness-probe-period-seconds", Number),
    ("sidecar-liveness-probe-threshold", Number),
    ("sidecar-readiness-probe-delay-seconds", Number),
    ("sidecar-readiness-probe-timeout-seconds", Number),
    ("sidecar-readiness-probe-period-seconds", Number),
    ("sidecar-readiness-probe-threshold", Number),
    ("sidecar-image", Text),
    ("sidecar-seccomp-profile-type", Text),
    ("http-max-request-size", Number),
    ("max-body-size", Quantity),
    ("http-read-buffer-size", Number),
    ("read-buffer-size", Quantity),
    ("graceful-shutdown-seconds", Number),
    ("block-shutdown-duration", Text),
    ("unix-domain-socket-path", Text),
    ("volume-mounts", Mounts),
    ("volume-mounts-rw", Mounts),
    ("disable-builtin-k8s-secret-store", Switch),
    ("enable-app-health-check", Switch),
    ("app-health-check-path", Text),
    ("app-health-probe-interval", Number),
    ("app-health-probe-timeout", Number),
    ("app-health-threshold", Number),
    ("app-binding-options-timeout", Text),
    ("placement-host-address", Text),
    ("scheduler-host-address", Text),
    ("sentry-request-jwt-audiences", Text),
    ("pluggable-components", Text),
    ("pluggable-components-sockets-folder", Text),
    ("inject-pluggable-components", Switch),
    ("component-container", Text),
    ("sidecar-svc-annotations", Text),
    ("disable-init-endpoints", Text),
    ("control-plane", Text),
];

/// What is wrong with annotations.
pub(crate) fn warnings(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let ours = annotations
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
    let mut all: Vec<String> = ours.filter_map(|(name, value)| warning(name, value)).collect();
    all.truncate(MAX_WARNINGS);
    for text in &mut all {
        let end = text
            .char_indices()
            .nth(MAX_LENGTH)
            .map_or(text.len(), |(end, _)| end);
        text.truncate(end);
    }
    all
}

fn warning(name: &str, value: &str) -> Option<String> {
    let Some((_, kind)) = KNOWN.iter().find(|(known, _)| *known == name) else {
        let nearest = outrigger_nearest::nearest(name, KNOWN.iter().map(|(known, _)| *known));
        return Some(match nearest {
            Some(known) => format!("annotation {PREFIX}{name} is unknown (did you mean {PREFIX}{known}?)"),
            None => format!("annotation {PREFIX}{name} is unknown"),
        });
    };
    let wanted = match kind {
        Number if value.parse::<i32>().is_err() => "a whole number",
        Switch if !is_switch(value) => "true or false",
        Quantity if !value.is_empty() && !is_quantity(value) => "a quantity such as 100m, 64Mi or 4",
        Mounts if given(value).count() != value.split(',').count() => "name:path,name:path",
        Variables if pairs(value).is_empty() && !value.is_empty() => "NAME=value,NAME=value",
        Text | Number | Switch | Quantity | Mounts | Variables => return None,
    };
    Some(format!(
        "annotation {PREFIX}{name}: {value:?} is not {wanted}, and does not count"
    ))
}

fn is_switch(value: &str) -> bool {
    let off = ["", "n", "no", "false", "f", "off", "0"];
    outrigger_kube::annotations::is_truthy(value)
        || off.iter().any(|word| value.trim().eq_ignore_ascii_case(word))
}

/// Whether Kubernetes reads a text as an amount: a number with a suffix (`m`, `Ki`, `M`, ...) or an exponent.
pub(super) fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 || number.len() - digits > 1 {
        return false;
    }
    let suffixes = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
    suffixes.contains(&suffix)
        || exponent.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Vec<String> {
        warnings(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for good in ["1", "100m", "1.5", "64Mi", "2Gi", ".5", "1e3", "1E-2", "4k", "+1"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "m", "1.2.3", "10MB", "1 Mi", "e3", "1e", "lots"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }

    #[test]
    fn wrong_annotations_are_named() {
        for (name, value, text) in [
            ("dapr.io/app-port", "http", "\"http\" is not a whole number"),
            ("dapr.io/enable-metrics", "perhaps", "is not true or false"),
            ("dapr.io/sidecar-cpu-limit", "fast", "is not a quantity"),
            ("dapr.io/volume-mounts", "a:/x,b", "name:path"),
            ("dapr.io/env", "A", "NAME=value"),
            ("dapr.io/app-prot", "1", "did you mean dapr.io/app-protocol?"),
            ("dapr.io/zzzzzz", "1", "dapr.io/zzzzzz is unknown"),
        ] {
            let found = of(name, value);
            assert!(found.len() == 1 && found[0].contains(text), "{name}: {found:?}");
        }
    }

    #[test]
    fn right_ones_and_those_of_others_are_not() {
        for (name, value) in [
            ("dapr.io/app-port", "80"),
            ("dapr.io/enabled", "Yes"),
            ("dapr.io/sidecar-memory-limit", "64Mi"),
            ("dapr.io/volume-mounts", "a:/x,b:/y"),
            ("example.com/app-port", "x"),
        ] {
            assert_eq!(of(name, value), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn warnings_are_bounded() {
        let many = (0..100)
            .map(|number| (format!("dapr.io/x{number}"), "1".to_owned()))
            .collect();
        assert_eq!(warnings(&many).len(), MAX_WARNINGS);
        let long = of("dapr.io/app-port", &"ü".repeat(1000));
        assert!(long[0].chars().count() <= MAX_LENGTH);
    }
}
