//! The environment of the sidecar.

use outrigger_kube::annotations::Annotations;
use serde_json::{Value, json};

use super::volumes::Plan;
use super::{PatchContext, components};
use crate::config::Settings;

/// Maximum length of a Secret's key.
const KEY_LENGTH: usize = 253;

/// A variable with a literal value.
pub(super) fn literal(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn secret(name: &str, secret: &str, key: &str) -> Value {
    json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// All variables, in Dapr's order.
pub(super) fn variables(
    annotations: Annotations<'_>,
    settings: &Settings,
    context: &PatchContext,
    plan: &Plan,
) -> Vec<Value> {
    let mut all = vec![
        literal("NAMESPACE", &context.namespace),
        literal("DAPR_TRUST_ANCHORS", &context.trust_anchors),
        field("POD_NAME", "metadata.name"),
        literal("DAPR_CONTROLPLANE_NAMESPACE", &settings.namespace),
        literal("DAPR_CONTROLPLANE_TRUST_DOMAIN", &settings.trust_domain),
    ];
    if settings.downward {
        all.push(field("DAPR_HOST_IP", "status.podIP"));
    }
    let text = |name: &str| annotations.text(name).unwrap_or_default();
    let given = pairs(text("dapr.io/env"));
    let secrets = secrets(text("dapr.io/env-from-secret"));
    let names: Vec<&str> = given
        .iter()
        .map(|(name, _)| *name)
        .chain(secrets.iter().map(|(name, ..)| *name))
        .collect();
    all.extend(given.iter().map(|(name, value)| literal(name, value)));
    all.extend(secrets.iter().map(|(name, from, key)| secret(name, from, key)));
    if !names.is_empty() {
        all.push(literal("DAPR_ENV_KEYS", &names.join(" ")));
    }
    if let Some(folder) = &plan.sockets {
        all.push(literal(components::FOLDER, folder));
    }
    for (name, annotation) in [
        ("DAPR_API_TOKEN", "dapr.io/api-token-secret"),
        ("APP_API_TOKEN", "dapr.io/app-token-secret"),
    ] {
        if !text(annotation).is_empty() {
            all.push(secret(name, text(annotation), "token"));
        }
    }
    all
}

/// Parses `A=1,B=2`. A comma ends a value only if a name and `=` follow, because values may contain commas.
pub(super) fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .match_indices(',')
            .map(|(at, _)| at)
            .find(|at| begins_with_name(rest[at + 1..].trim_start()))
            .unwrap_or(rest.len());
        if let Some((name, value)) = rest[..end].split_once('=') {
            pairs.push((name.trim(), value.trim()));
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    pairs.retain(|(name, _)| !name.is_empty());
    pairs
}

fn begins_with_name(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else {
        return false;
    };
    let mut bytes = name.trim_end().bytes();
    bytes
        .next()
        .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Parses `VAR=secret` or `VAR=secret:key`; the default key is the secret's name.
pub(super) fn secrets(text: &str) -> Vec<(&str, &str, &str)> {
    let one = |part: &'_ str| -> Option<(usize, usize)> {
        let at = part.find('=')?;
        (part[at + 1..].matches(':').count() <= 1).then_some((at, at + 1))
    };
    text.split(',')
        .filter_map(|part| {
            let (name, from) = one(part).map(|(end, begin)| (part[..end].trim(), part[begin..].trim()))?;
            let (from, key) = from.split_once(':').unwrap_or((from, from));
            (!name.is_empty() && !from.is_empty()).then_some((name, from, key))
        })
        .collect()
}

/// Whether the API server accepts this name of a variable.
pub(super) fn is_name(name: &str) -> bool {
    name.bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
}

/// Whether the API server accepts this key of a Secret.
pub(super) fn is_key(key: &str) -> bool {
    let in_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=KEY_LENGTH).contains(&key.len()) && key.bytes().all(in_key) && key != "." && !key.starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_values_before_names() {
        assert_eq!(pairs("A=1,B=2"), [("A", "1"), ("B", "2")]);
        assert_eq!(pairs("A=1,2,3, B_C=x=y,z"), [("A", "1,2,3"), ("B_C", "x=y,z")]);
        assert_eq!(pairs("HTTP=http://a/?x=1,y"), [("HTTP", "http://a/?x=1,y")]);
        assert_eq!(pairs("A=,B=2"), [("A", ""), ("B", "2")]);
        assert!(pairs("").is_empty() && pairs("A").is_empty() && pairs("=x").is_empty());
    }

    #[test]
    fn parses_secret_references() {
        let expected = [("A", "one", "one"), ("B", "two", "k")];
        assert_eq!(secrets("A=one, B=two:k,C=three:k:x,D"), expected);
        assert!(secrets("").is_empty());
    }

    #[test]
    fn accepts_kubernetes_names_and_keys() {
        assert!(is_name("A b-C.1") && !is_name("N\u{c4}ME") && !is_name("A\t") && !is_name("A=B"));
        for good in ["a", "A_1-b.c", ".a", &"k".repeat(KEY_LENGTH)] {
            assert!(is_key(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "..a",
            "a/b",
            "a b",
            "\u{e4}",
            &"k".repeat(KEY_LENGTH + 1),
        ] {
            assert!(!is_key(bad), "{bad}");
        }
    }
}
