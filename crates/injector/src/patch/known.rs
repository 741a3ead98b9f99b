//! The annotations that there are, and what is wrong with those of a pod.
//!
//! One of which the API server would take no container is refused, by its name: the API server names the field alone. One with
//! which a sidecar would not start does not count, so that the pod works; whoever creates the pod is told. What decides
//! about access counts as it is, whatever it is.

use std::collections::BTreeMap;

use outrigger_kube::annotations::{Annotations, ENABLE_METRICS};

use super::environment::pairs;
use super::values::{AnnotationKind, Problem, problem};
use super::volumes::given;

const PREFIX: &str = "dapr.io/";
/// Starts the sidecar under a debugger.
pub(super) const ENABLE_DEBUG: &str = "dapr.io/enable-debug";
/// Warnings of a pod, and characters of each: API servers cut longer ones.
const MAX_WARNINGS: usize = 10;
const MAX_LENGTH: usize = 240;
/// Characters of a value that a message shows.
const SHOWN: usize = 60;

use AnnotationKind::{
    Addresses, Amount, AppPort, Duration, Endpoints, Hosts, Level, Mounts, Name, Number, Port, Probe,
    Protocol, Seccomp, Secrets, Size, Switch, Text, Variables,
};

const KNOWN: &[(&str, AnnotationKind)] = &[
    ("enabled", Switch),
    ("enable-native-sidecar", Switch),
    ("app-id", Text),
    ("app-port", AppPort),
    ("app-protocol", Protocol),
    ("app-ssl", Switch),
    ("app-channel-address", Text),
    ("app-max-concurrency", Number),
    ("config", Name),
    ("log-level", Level),
    ("log-as-json", Switch),
    ("enable-api-logging", Switch),
    ("enable-profiling", Switch),
    ("enable-metrics", Switch),
    ("metrics-port", Port),
    ("enable-debug", Switch),
    ("debug-port", Port),
    ("grpc-port", Port),
    ("internal-grpc-port", Port),
    ("sidecar-listen-addresses", Hosts),
    ("env", Variables),
    ("env-from-secret", Secrets),
    ("api-token-secret", Name),
    ("app-token-secret", Name),
    ("sidecar-cpu-request", Amount),
    ("sidecar-cpu-limit", Amount),
    ("sidecar-memory-request", Amount),
    ("sidecar-memory-limit", Amount),
    ("sidecar-liveness-probe-delay-seconds", Probe),
    ("sidecar-liveness-probe-timeout-seconds", Probe),
    ("sidecar-liveness-probe-period-seconds", Probe),
    ("sidecar-liveness-probe-threshold", Probe),
    ("sidecar-readiness-probe-delay-seconds", Probe),
    ("sidecar-readiness-probe-timeout-seconds", Probe),
    ("sidecar-readiness-probe-period-seconds", Probe),
    ("sidecar-readiness-probe-threshold", Probe),
    ("sidecar-image", Text),
    ("sidecar-seccomp-profile-type", Seccomp),
    ("http-max-request-size", Number),
    ("max-body-size", Size),
    ("http-read-buffer-size", Number),
    ("read-buffer-size", Size),
    ("graceful-shutdown-seconds", Number),
    ("block-shutdown-duration", Duration),
    ("unix-domain-socket-path", Text),
    ("volume-mounts", Mounts),
    ("volume-mounts-rw", Mounts),
    ("disable-builtin-k8s-secret-store", Switch),
    ("enable-app-health-check", Switch),
    ("app-health-check-path", Text),
    ("app-health-probe-interval", Number),
    ("app-health-probe-timeout", Number),
    ("app-health-threshold", Number),
    ("app-binding-options-timeout", Duration),
    ("placement-host-address", Addresses),
    ("actors-handover", Switch),
    ("scheduler-host-address", Addresses),
    ("sentry-request-jwt-audiences", Text),
    ("pluggable-components", Text),
    ("pluggable-components-sockets-folder", Text),
    ("inject-pluggable-components", Switch),
    ("component-container", Text),
    ("sidecar-svc-annotations", Text),
    ("disable-init-endpoints", Endpoints),
    ("control-plane", Text),
];

/// What is wrong with annotations that are admitted.
pub(crate) fn warnings(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let mut all: Vec<String> = used(annotations)
        .filter_map(|(name, value)| warning(name, value))
        .collect();
    all.extend(late_probe(annotations).then(|| {
        format!(
            "annotation {PREFIX}{PROBE_TIMEOUT} is ignored: it is longer than {PREFIX}{PROBE_INTERVAL}; give at most that"
        )
    }));
    all.extend(shared_port(annotations));
    all.truncate(MAX_WARNINGS);
    for text in &mut all {
        *text = cut(text, MAX_LENGTH).to_owned();
    }
    all
}

/// The annotations that count.
///
/// # Errors
/// What is wrong with those of which the API server would take no container.
pub(super) fn counting(annotations: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut counting = annotations.clone();
    let mut refused = Vec::new();
    let has_resources = amounts(annotations).is_some();
    for (name, value) in used(annotations) {
        let Some((want, problem)) = wrong(name, value) else {
            continue;
        };
        match problem {
            // The cluster is given none of them.
            Problem::Refused if want == Amount && !has_resources => {}
            Problem::Refused => refused.push(mismatch(
                name,
                value,
                want,
                "the API server rejects such a container",
            )),
            Problem::Ignored => drop(counting.remove(&format!("{PREFIX}{name}"))),
            Problem::Counts(_) => {}
        }
    }
    for what in beyond_limit(annotations) {
        refused.push(format!(
            "annotation {PREFIX}sidecar-{what}-request is more than {PREFIX}sidecar-{what}-limit, and the API \
             server rejects such a container: give at most the limit"
        ));
    }
    if late_probe(annotations) {
        counting.remove(&format!("{PREFIX}{PROBE_TIMEOUT}"));
    }
    match refused.is_empty() {
        true => Ok(counting),
        false => Err(refused.join("; ")),
    }
}

/// Processor and memory, and of each the request and the limit.
type ResourceAmounts = [(&'static str, [Option<i128>; 2]); 2];

/// The amounts; none where one of the four cannot be read: then the
/// sidecar's container has none.
fn amounts(annotations: &BTreeMap<String, String>) -> Option<ResourceAmounts> {
    let mut all = [("cpu", [None; 2]), ("memory", [None; 2])];
    for (what, both) in &mut all {
        for (kind, amount) in ["request", "limit"].into_iter().zip(both) {
            let text = annotations.get(&format!("{PREFIX}sidecar-{what}-{kind}"));
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                *amount = Some(super::values::amount(text)?);
            }
        }
    }
    Some(all)
}

/// What is requested beyond its limit.
fn beyond_limit(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &'static str> {
    let all = amounts(annotations).into_iter().flatten();
    all.filter_map(|(what, both)| match both {
        [Some(request), Some(limit)] if request > limit => Some(what),
        _ => None,
    })
}

const PROBE_INTERVAL: &str = "app-health-probe-interval";
const PROBE_TIMEOUT: &str = "app-health-probe-timeout";

/// Whether probes of the app would take longer (milliseconds) than what is between them (seconds): no sidecar starts so.
fn late_probe(annotations: &BTreeMap<String, String>) -> bool {
    let number = |name: &str, default: i64| {
        let text = annotations.get(&format!("{PREFIX}{name}"));
        let given = text.and_then(|text| text.parse::<i32>().ok()).map(i64::from);
        given.filter(|number| *number > 0).unwrap_or(default)
    };
    number(PROBE_TIMEOUT, 500) > number(PROBE_INTERVAL, 5) * 1000
}

/// A port that two would listen on.
fn shared_port(annotations: &BTreeMap<String, String>) -> Option<String> {
    let number = |name: &str, default: i32| {
        let given = annotations.get(&format!("{PREFIX}{name}"));
        given.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let has_metrics = Annotations(annotations).boolean(ENABLE_METRICS, true);
    let mut ports = vec![
        ("the sidecar's HTTP API".to_owned(), 3500),
        ("the sidecar's health".to_owned(), 3501),
    ];
    let annotated = [
        ("grpc-port", 50001),
        ("internal-grpc-port", 50002),
        ("metrics-port", if has_metrics { 9090 } else { 0 }),
        ("app-port", 0),
    ];
    ports.extend(annotated.map(|(name, default)| (format!("{PREFIX}{name}"), number(name, default))));
    // None listens there.
    ports.retain(|(_, port)| *port > 0);
    let mut pairs = ports
        .iter()
        .enumerate()
        .flat_map(|(index, one)| ports[index + 1..].iter().map(move |other| (one, other)));
    let ((one, port), (other, _)) = pairs.find(|((_, one), (_, other))| one == other)?;
    Some(format!(
        "{other} is {port}, as is {one}: only one can listen there, and the sidecar or the app does not start; give each a port of its own"
    ))
}

fn ours(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    annotations
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str())))
}

/// Those of ours of which something comes: the debugger's port is nobody's where there is no debugger.
fn used(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    let has_debugger = Annotations(annotations).boolean(ENABLE_DEBUG, false);
    ours(annotations).filter(move |(name, _)| has_debugger || *name != "debug-port")
}

fn warning(name: &str, value: &str) -> Option<String> {
    if !KNOWN.iter().any(|(known, _)| *known == name) {
        let nearest = outrigger_nearest::nearest(name, KNOWN.iter().map(|(known, _)| *known));
        return Some(match nearest {
            Some(known) => format!("annotation {PREFIX}{name} is unknown (did you mean {PREFIX}{known}?)"),
            None => format!("annotation {PREFIX}{name} is unknown"),
        });
    }
    let (want, problem) = wrong(name, value)?;
    let effect = match problem {
        // Told by the refusal.
        Problem::Refused => return None,
        Problem::Ignored => "it is ignored",
        Problem::Counts(effect) => effect,
    };
    Some(mismatch(name, value, want, effect))
}

fn mismatch(name: &str, value: &str, want: AnnotationKind, effect: &str) -> String {
    let value = cut(value, SHOWN);
    format!("annotation {PREFIX}{name}: {value:?} is not {want}: {effect}")
}

/// What an annotation should hold, and what comes of it that it does not.
fn wrong(name: &str, value: &str) -> Option<(AnnotationKind, Problem)> {
    let (_, want) = KNOWN.iter().find(|(known, _)| *known == name)?;
    let problem = match want {
        Mounts if given(value).count() != value.split(',').count() => Some(Problem::Counts(PARTLY)),
        Variables if pairs(value).is_empty() && !value.is_empty() => Some(Problem::Ignored),
        _ => problem(*want, value),
    };
    Some((*want, problem?))
}

/// What comes of a list of which a part is wrong.
const PARTLY: &str = "entries of another form are ignored";

fn cut(text: &str, most: usize) -> &str {
    let end = text.char_indices().nth(most).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, value: &str) -> Vec<String> {
        warnings(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn wrong_annotations_are_named() {
        for (name, value, text) in [
            ("dapr.io/app-port", "http", "\"http\" is not a whole number"),
            ("dapr.io/enable-metrics", "perhaps", "is not true or false"),
            ("dapr.io/sidecar-cpu-limit", "fast", "is not a quantity"),
            ("dapr.io/volume-mounts", "a:/x,b", "name:path"),
            ("dapr.io/env", "A", "NAME=value"),
            (
                "dapr.io/app-protocol",
                "soap",
                "is not http, https, h2c, grpc or grpcs: it is ignored",
            ),
            (
                "dapr.io/log-level",
                "loud",
                "is not debug, info, warn, error or fatal: it is ignored",
            ),
            ("dapr.io/block-shutdown-duration", "5", "a duration such as 5s"),
            ("dapr.io/config", "My Config", "the sidecar does not start"),
            ("dapr.io/app-port", "9090", "give each a port of its own"),
            (
                "dapr.io/grpc-port",
                "3500",
                "dapr.io/grpc-port is 3500, as is the sidecar's HTTP API",
            ),
            (
                "dapr.io/app-health-probe-timeout",
                "6000",
                "longer than dapr.io/app-health-probe-interval",
            ),
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
            ("dapr.io/app-port", "0"),
            ("dapr.io/enable-metrics", "false"),
            ("dapr.io/app-protocol", "gRPC"),
            ("dapr.io/scheduler-host-address", ""),
            ("dapr.io/enabled", "Yes"),
            ("dapr.io/sidecar-memory-limit", "64Mi"),
            ("dapr.io/volume-mounts", "a:/x,b:/y"),
            ("example.com/app-port", "x"),
        ] {
            assert_eq!(of(name, value), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn what_the_api_server_would_not_take_is_refused_by_name() {
        for (name, value, text) in [
            ("metrics-port", "99999", "\"99999\" is not a port (1 to 65535)"),
            ("grpc-port", "0", "dapr.io/grpc-port: \"0\""),
            (
                "sidecar-liveness-probe-period-seconds",
                "-1",
                "is not a whole number from 0",
            ),
            (
                "sidecar-seccomp-profile-type",
                "Localhost",
                "is not RuntimeDefault or Unconfined",
            ),
            ("sidecar-memory-limit", "-1Gi", "is not a quantity"),
        ] {
            let one = BTreeMap::from([(format!("dapr.io/{name}"), value.to_owned())]);
            let refused = counting(&one).unwrap_err();
            assert!(refused.contains(text), "{name}: {refused}");
            assert!(warnings(&one).is_empty(), "{name} is refused, no warning besides");
        }
    }

    fn given<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<String, String> {
        all.map(|(name, value)| (format!("dapr.io/{name}"), value.to_owned()))
            .into()
    }

    #[test]
    fn a_request_beyond_its_limit_is_refused_and_one_that_is_as_much_is_not() {
        let cpu = |request, limit| given([("sidecar-cpu-request", request), ("sidecar-cpu-limit", limit)]);
        for (request, limit) in [
            ("700m", "0.7"),
            ("1100m", "1.1"),
            ("0.29", "290m"),
            ("", "1"),
            ("1", ""),
        ] {
            assert_eq!(counting(&cpu(request, limit)).err(), None, "{request} {limit}");
        }
        for (request, limit) in [("2", "500m"), ("701m", "0.7"), ("0.700000001", "700m")] {
            let refused = counting(&cpu(request, limit)).unwrap_err();
            assert!(
                refused.contains("give at most the limit"),
                "{request} {limit}: {refused}"
            );
        }
    }

    #[test]
    fn amounts_that_no_container_is_given_are_not_judged() {
        let mut all = given([
            ("sidecar-cpu-request", "2"),
            ("sidecar-cpu-limit", "1"),
            ("sidecar-memory-limit", "-1Gi"),
        ]);
        assert!(counting(&all).is_err());
        all.extend(given([("sidecar-memory-request", "lots")]));
        assert_eq!(counting(&all).err(), None);
        let warned = warnings(&all);
        assert!(warned.len() == 1 && warned[0].contains("\"lots\""), "{warned:?}");
    }

    #[test]
    fn the_port_of_a_debugger_is_judged_where_there_is_one() {
        for port in ["-1", "0", "99999", "port"] {
            let off = given([("debug-port", port), ("enable-debug", "false")]);
            for all in [&given([("debug-port", port)]), &off] {
                assert_eq!(counting(all).err(), None, "{port}");
                assert!(warnings(all).is_empty(), "{port}");
            }
        }
        let on = |port| given([("debug-port", port), ("enable-debug", "true")]);
        let refused = counting(&on("-1")).unwrap_err();
        assert!(refused.contains("dapr.io/debug-port"), "{refused}");
        assert!(warnings(&on("port"))[0].contains("dapr.io/debug-port"));
    }

    #[test]
    fn what_no_sidecar_would_take_does_not_count_and_what_protects_does() {
        let all = [
            ("app-protocol", "soap", false),
            ("log-level", "loud", false),
            ("app-port", "70000", false),
            ("max-body-size", "lots", false),
            ("sidecar-listen-addresses", "every where", false),
            ("app-health-probe-timeout", "6000", false),
            ("config", "My Config", true),
            ("api-token-secret", "My Secret", true),
            ("enable-metrics", "perhaps", true),
            ("sidecar-cpu-limit", "fast", true),
            ("unheard-of", "x", true),
        ];
        let given = all.map(|(name, value, _)| (format!("dapr.io/{name}"), value.to_owned()));
        let counting = counting(&given.into()).unwrap();
        for (name, _, counts) in all {
            assert_eq!(
                counting.contains_key(&format!("dapr.io/{name}")),
                counts,
                "{name}"
            );
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
