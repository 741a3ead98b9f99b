//! Validation of Configuration values. Dapr silently ignores most invalid values; here they are reported
//! with their lines.

mod telemetry;

use std::path::Path;

use outrigger_nearest::hint;

use super::features;
use super::known::{Check, ValueChecks};
use crate::problem::Problem;
use crate::yaml::{Kind, Node};

const ACTIONS: [&str; 2] = ["allow", "deny"];
const VERBS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*",
];
const PROTOCOLS: [&str; 2] = ["http", "grpc"];

/// Validation results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Invalid values, with the values that apply instead.
    pub mistakes: Vec<Problem>,
    /// Values that may be valid in another version.
    pub warnings: Vec<Problem>,
}

/// Validates the values of a file.
pub(super) fn find(file: &Path, document: &Node, known: &ValueChecks) -> Found {
    let mut search = Search {
        file,
        known,
        found: Found::default(),
    };
    if let Some(spec) = document.get("spec") {
        search.tracing(spec);
        search.metrics(spec);
        search.access_control(spec);
        search.apis(spec);
        search.name_resolution(spec);
        search.features(spec);
    }
    search.found
}

struct Search<'a> {
    file: &'a Path,
    known: &'a ValueChecks,
    found: Found,
}

impl Search<'_> {
    fn add(&mut self, line: usize, what: String, remedy: String) {
        let problem = Problem::new(self.file, line, what, remedy);
        self.found.mistakes.push(problem);
    }

    /// Reports a value that the validator `check` rejects.
    fn check(&mut self, value: Option<&Node>, path: &str, check: Check, remedy: &str) {
        if let Some((text, line)) = value.and_then(filled)
            && let Some(reason) = check(text)
        {
            self.add(
                line,
                format!("{path} {text:?} cannot be used: {reason}"),
                remedy.to_owned(),
            );
        }
    }

    /// Reports a value that is not one of `known`, ignoring case. An empty value is skipped.
    fn word(&mut self, value: Option<&Node>, path: &str, known: &[&str], effect: &str) {
        self.one_of(value, path, known, effect, str::eq_ignore_ascii_case);
    }

    /// The same for case-sensitive names.
    fn name(&mut self, value: Option<&Node>, path: &str, known: &[&str], effect: &str) {
        self.one_of(value, path, known, effect, |one, other| one == other);
    }

    fn one_of(
        &mut self,
        value: Option<&Node>,
        path: &str,
        known: &[&str],
        effect: &str,
        same: fn(&str, &str) -> bool,
    ) {
        let Some((text, line)) = value.and_then(filled) else {
            return;
        };
        if !known.iter().any(|known| same(known, text)) {
            let what = format!("{path} {text:?} {effect}");
            let remedy = format!("{}write {}", hint(text, known.iter().copied()), list(known));
            self.add(line, what, remedy);
        }
    }

    fn name_resolution(&mut self, spec: &Node) {
        let component = spec
            .get("nameResolution")
            .and_then(|resolution| resolution.get("component"));
        if !self.known.resolvers.is_empty() {
            self.word(
                component,
                "spec.nameResolution.component",
                &self.known.resolvers,
                "is not a name resolver: other apps cannot be called",
            );
        }
    }

    /// Unknown features are only warnings, because another version may have them.
    fn features(&mut self, spec: &Node) {
        for (index, feature) in items(spec.get("features")) {
            let Some((name, line)) = feature.get("name").and_then(filled) else {
                continue;
            };
            if !features::ALL.contains(&name) {
                let what = format!("spec.features[{index}].name {name:?} is not a feature: it has no effect");
                // A name that differs only in case is similar.
                let remedy = format!("{}write {}", hint(name, features::ALL), list(&features::ALL));
                let problem = Problem::new(self.file, line, what, remedy);
                self.found.warnings.push(problem);
            }
        }
    }

    fn access_control(&mut self, spec: &Node) {
        let Some(control) = spec.get("accessControl") else {
            return;
        };
        let path = "spec.accessControl";
        let denies = "is not an action: it counts as deny";
        self.word(
            control.get("defaultAction"),
            &format!("{path}.defaultAction"),
            &ACTIONS,
            denies,
        );
        for (index, policy) in items(control.get("policies")) {
            let path = format!("{path}.policies[{index}]");
            for key in ["appId", "trustDomain", "namespace"] {
                if policy.get(key).and_then(filled).is_none() {
                    self.add(
                        policy.line,
                        format!("{path}.{key} is missing: accessControl cannot be used without it"),
                        format!("set {key}; a policy needs appId, trustDomain and namespace"),
                    );
                }
            }
            self.word(
                policy.get("defaultAction"),
                &format!("{path}.defaultAction"),
                &ACTIONS,
                denies,
            );
            for (index, operation) in items(policy.get("operations")) {
                self.operation(operation, &format!("{path}.operations[{index}]"));
            }
        }
    }

    fn operation(&mut self, operation: &Node, path: &str) {
        let action = format!("{path}.action");
        match operation.get("action").and_then(filled) {
            Some(_) => self.word(
                operation.get("action"),
                &action,
                &ACTIONS,
                "is not an action: it counts as deny",
            ),
            None => self.add(
                operation.line,
                format!("{action} is missing: the operation is denied"),
                "write allow or deny".to_owned(),
            ),
        }
        for (index, verb) in items(operation.get("httpVerb")) {
            let (text, line) = filled(verb).unwrap_or(("", verb.line));
            if !VERBS.contains(&text) {
                let what =
                    format!("{path}.httpVerb[{index}] {text:?} is not an HTTP verb: it matches no call");
                // A verb that differs only in case is similar.
                let remedy = format!("{}write {}", hint(text, VERBS), list(&VERBS));
                self.add(line, what, remedy);
            }
        }
    }

    fn apis(&mut self, spec: &Node) {
        let apis = &self.known.apis;
        for group in ["allowed", "denied"] {
            for (index, rule) in items(spec.get("api").and_then(|api| api.get(group))) {
                let path = format!("spec.api.{group}[{index}]");
                let name = rule.get("name").and_then(filled);
                let (text, line) = name.unwrap_or(("", rule.line));
                // Older rules name a route.
                let first = text.split('/').next().unwrap_or_default();
                if !apis.is_empty() && !apis.contains(&first) {
                    let what = format!("{path}.name {text:?} is not a part of the API");
                    let near = hint(first, apis.iter().copied());
                    let remedy = format!("{near}write one of {}", apis.join(", "));
                    self.add(line, what, remedy);
                }
                let protocol = format!("{path}.protocol");
                match rule.get("protocol").and_then(filled) {
                    Some(_) => {
                        let effect = "is not a protocol: the rule has no effect";
                        self.word(rule.get("protocol"), &protocol, &PROTOCOLS, effect);
                    }
                    None => self.add(
                        rule.line,
                        format!("{protocol} is missing: the rule has no effect"),
                        "write http or grpc".to_owned(),
                    ),
                }
            }
        }
    }
}

/// The text of a non-empty value, and its line.
fn filled(node: &Node) -> Option<(&str, usize)> {
    match &node.kind {
        Kind::Scalar(scalar) if !node.is_null() && !scalar.text.is_empty() => Some((&scalar.text, node.line)),
        _ => None,
    }
}

/// The items of a list with their indices.
pub(super) fn items(node: Option<&Node>) -> impl Iterator<Item = (usize, &Node)> {
    let items = match node.map(|node| &node.kind) {
        Some(Kind::Seq(items)) => items.as_slice(),
        _ => &[],
    };
    items.iter().enumerate()
}

/// `a, b or c`.
fn list(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}
