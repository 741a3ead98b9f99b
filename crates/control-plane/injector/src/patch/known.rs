//! The known annotations, and the problems with those of a pod.
//!
//! An annotation that would make the API server reject the container is refused by name, because the API
//! server names the field only. One that would prevent a sidecar's start is ignored, so that the pod works,
//! and reported to its creator. Annotations that control access are always passed on.

use std::collections::BTreeMap;

use outrigger_controlplane::webhook::cut;
use outrigger_kube::annotations::{Annotations, ENABLE_METRICS};

use super::environment::{is_key, is_name, pairs, secrets};
use super::values::{AnnotationKind, Problem, problem};
use super::volumes::given;

const PREFIX: &str = "dapr.io/";
/// Runs the sidecar under a debugger, [`DEBUGGER`].
pub(super) const ENABLE_DEBUG: &str = "dapr.io/enable-debug";
pub(super) const DEBUGGER: &str = "/dlv";
/// Image of the sidecar, instead of the default one.
pub(super) const IMAGE: &str = "dapr.io/sidecar-image";
/// Maximum number of warnings per pod, and of characters per warning; API servers cut longer ones.
const MAX_WARNINGS: usize = 10;
const MAX_LENGTH: usize = 240;
/// Maximum number of characters of a value in a message.
const SHOWN: usize = 60;

use AnnotationKind::{
    Addresses, Amount, AppPort, Duration, Endpoints, Hosts, Image, Level, Mounts, Name, Number, Port, Probe,
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
    ("sidecar-image", Image),
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
    ("actors-disseminate-timeout", Duration),
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

/// Problems with annotations that are admitted.
pub(crate) fn warnings(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let mut all: Vec<String> = used(annotations)
        .filter_map(|(name, value)| warning(name, value))
        .take(MAX_WARNINGS)
        .collect();
    all.extend(late_probe(annotations).then(|| {
        format!("annotation {PREFIX}{PROBE_TIMEOUT} is ignored: it is longer than {PREFIX}{PROBE_INTERVAL}")
    }));
    all.extend(shared_port(annotations));
    all.extend(no_debugger(annotations));
    all.truncate(MAX_WARNINGS);
    for text in &mut all {
        *text = cut(text, MAX_LENGTH).to_owned();
    }
    all
}

/// The effective annotations.
///
/// # Errors
/// Problems with those that would make the API server reject the container.
pub(super) fn counting(annotations: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let mut counting = annotations.clone();
    let mut refused = Vec::new();
    let has_resources = amounts(annotations).is_some();
    for (name, value) in used(annotations) {
        let Some((want, problem)) = wrong(name, value) else {
            continue;
        };
        match problem {
            // The cluster gets none of them.
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
            "annotation {PREFIX}sidecar-{what}-request is more than {PREFIX}sidecar-{what}-limit, and the API server \
             rejects such a container: use at most the limit"
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

/// Request and limit of both processor and memory.
type ResourceAmounts = [(&'static str, [Option<i128>; 2]); 2];

/// The amounts; `None` if one of the four cannot be parsed, because the sidecar's container then gets none.
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

/// Resources whose request exceeds the limit.
fn beyond_limit(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &'static str> {
    let all = amounts(annotations).into_iter().flatten();
    all.filter_map(|(what, both)| match both {
        [Some(request), Some(limit)] if request > limit => Some(what),
        _ => None,
    })
}

const PROBE_INTERVAL: &str = "app-health-probe-interval";
const PROBE_TIMEOUT: &str = "app-health-probe-timeout";

/// Whether the app probe's timeout (milliseconds) exceeds its interval (seconds), which prevents the
/// sidecar's start.
fn late_probe(annotations: &BTreeMap<String, String>) -> bool {
    let number = |name: &str, default: i64| {
        let text = annotations.get(&format!("{PREFIX}{name}"));
        let given = text.and_then(|text| text.parse::<i32>().ok()).map(i64::from);
        given.filter(|number| *number > 0).unwrap_or(default)
    };
    number(PROBE_TIMEOUT, 500) > number(PROBE_INTERVAL, 5) * 1000
}

/// Warns of a debugger, which the default sidecar image lacks; a custom image may have it.
fn no_debugger(annotations: &BTreeMap<String, String>) -> Option<String> {
    let annotations = Annotations(annotations);
    let own = annotations.text(IMAGE).is_some_and(|image| !image.is_empty());
    (annotations.boolean(ENABLE_DEBUG, false) && !own).then(|| {
        format!(
            "annotation {ENABLE_DEBUG}: the sidecar does not start, because its image has no {DEBUGGER}; remove it, \
             or name an image with that debugger in {IMAGE}"
        )
    })
}

/// A port with two listeners.
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
    // Disabled listeners.
    ports.retain(|(_, port)| *port > 0);
    let mut pairs = ports
        .iter()
        .enumerate()
        .flat_map(|(index, one)| ports[index + 1..].iter().map(move |other| (one, other)));
    let ((one, port), (other, _)) = pairs.find(|((_, one), (_, other))| one == other)?;
    Some(format!(
        "{other} is {port}, the same as {one}: the sidecar or the app will not start; use separate ports"
    ))
}

fn ours(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    annotations
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value.as_str())))
}

/// Our annotations that have an effect; the debugger's port has none without a debugger.
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
        // Reported by the refusal.
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

/// The expected kind of an annotation, and the effect of a wrong value.
fn wrong(name: &str, value: &str) -> Option<(AnnotationKind, Problem)> {
    let (_, want) = KNOWN.iter().find(|(known, _)| *known == name)?;
    let problem = match want {
        Mounts if given(value).count() != value.split(',').count() => Some(Problem::Counts(PARTLY)),
        Variables if pairs(value).is_empty() && !value.is_empty() => Some(Problem::Ignored),
        Variables if !pairs(value).iter().all(|(name, _)| is_name(name)) => Some(Problem::Refused),
        Secrets
            if !secrets(value)
                .iter()
                .all(|(name, _, key)| is_name(name) && is_key(key)) =>
        {
            Some(Problem::Refused)
        }
        _ => problem(*want, value),
    };
    Some((*want, problem?))
}

/// The effect of a list with invalid entries.
const PARTLY: &str = "malformed entries are ignored";

#[cfg(test)]
mod tests;
