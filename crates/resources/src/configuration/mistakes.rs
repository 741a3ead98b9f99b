//! Values of a Configuration that mean nothing. The contract goes on with them in silence: they are told here.

use std::path::Path;

use outrigger_nearest::hint;

use super::tracing::DEFAULT_SAMPLING;
use crate::problem::Problem;
use crate::yaml::{Kind, Node};

const ACTIONS: [&str; 2] = ["allow", "deny"];
const VERBS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*",
];
const PROTOCOLS: [&str; 2] = ["http", "grpc"];
/// What is wrong with the values of a file; `apis` as of [`super::load`].
pub(super) fn find(file: &Path, document: &Node, apis: &[&str]) -> Vec<Problem> {
    let mut found = Found {
        file,
        apis,
        problems: Vec::new(),
    };
    if let Some(spec) = document.get("spec") {
        found.sampling(spec);
        found.access_control(spec);
        found.apis(spec);
    }
    found.problems
}

struct Found<'a> {
    file: &'a Path,
    /// The parts of the API; empty = they are not known here.
    apis: &'a [&'a str],
    problems: Vec<Problem>,
}

impl Found<'_> {
    fn add(&mut self, line: usize, what: String, remedy: String) {
        self.problems.push(Problem::new(self.file, line, what, remedy));
    }

    /// A value that is none of those that there are. An empty one is left to whoever reads it.
    fn word(&mut self, value: Option<&Node>, path: &str, known: &[&str], effect: &str) {
        let Some((text, line)) = value.and_then(filled) else {
            return;
        };
        if !known.iter().any(|known| known.eq_ignore_ascii_case(text)) {
            let what = format!("{path} {text:?} {effect}");
            let remedy = format!("{}write {}", hint(text, known.iter().copied()), list(known));
            self.add(line, what, remedy);
        }
    }

    fn sampling(&mut self, spec: &Node) {
        let rate = spec
            .get("tracing")
            .and_then(|tracing| tracing.get("samplingRate"));
        let Some((text, line)) = rate.and_then(filled) else {
            return;
        };
        let effect = match text.parse::<f64>() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => return,
            Ok(rate) if rate > 1.0 => "is more than 1: it counts as 1".to_owned(),
            Ok(rate) if rate < 0.0 => "is less than 0: it counts as 0".to_owned(),
            _ => format!("is not a number: it counts as {DEFAULT_SAMPLING}"),
        };
        let what = format!("spec.tracing.samplingRate {text:?} {effect}");
        self.add(line, what, "write a number from \"0\" to \"1\"".to_owned());
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
                // What differs in case only is near.
                let remedy = format!("{}write {}", hint(text, VERBS), list(&VERBS));
                self.add(line, what, remedy);
            }
        }
    }

    fn apis(&mut self, spec: &Node) {
        for group in ["allowed", "denied"] {
            for (index, rule) in items(spec.get("api").and_then(|api| api.get(group))) {
                let path = format!("spec.api.{group}[{index}]");
                let name = rule.get("name").and_then(filled);
                let (text, line) = name.unwrap_or(("", rule.line));
                // Old rules name a route.
                let first = text.split('/').next().unwrap_or_default();
                if !self.apis.is_empty() && !self.apis.contains(&first) {
                    let what = format!("{path}.name {text:?} is not a part of the API");
                    let near = hint(first, self.apis.iter().copied());
                    let remedy = format!("{near}write one of {}", self.apis.join(", "));
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

/// The text of a value, unless it is empty, and its line.
fn filled(node: &Node) -> Option<(&str, usize)> {
    match &node.kind {
        Kind::Scalar(scalar) if !node.is_null() && !scalar.text.is_empty() => Some((&scalar.text, node.line)),
        _ => None,
    }
}

/// The items of a list, by index.
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
