//! Targets that refer to undefined policies.

use std::collections::BTreeSet;

use outrigger_nearest::hint;
use outrigger_resources::meta::in_scope;
use outrigger_resources::resiliency as spec;

use super::Problem;
use super::builtin::Builtin;

/// Policy names of all documents, by kind.
struct Defined<'d> {
    timeouts: BTreeSet<&'d str>,
    retries: BTreeSet<&'d str>,
    breakers: BTreeSet<&'d str>,
}

/// Reports policies that targets refer to and no document in scope for an app defines: calls are made
/// without them.
pub fn undefined<'d>(docs: impl IntoIterator<Item = &'d spec::Resiliency>, app_id: &str) -> Vec<Problem> {
    let docs: Vec<_> = docs
        .into_iter()
        .filter(|doc| in_scope(&doc.scopes, app_id))
        .collect();
    let mut defined = Defined {
        timeouts: BTreeSet::new(),
        retries: Builtin::ALL.iter().map(|policy| policy.name()).collect(),
        breakers: BTreeSet::new(),
    };
    for doc in &docs {
        let policies = &doc.policies;
        defined
            .timeouts
            .extend(policies.timeouts.keys().map(String::as_str));
        defined
            .retries
            .extend(policies.retries.keys().map(String::as_str));
        let breakers = policies.circuit_breakers.keys();
        defined.breakers.extend(breakers.map(String::as_str));
    }
    docs.into_iter().flat_map(|doc| defined.missing(doc)).collect()
}

/// The targets by their keys below `spec.targets`, with the names of their timeout, retry policy and
/// circuit breaker.
pub(super) fn policies_of(targets: &spec::Targets) -> Vec<(String, [&String; 3])> {
    let apps = targets.apps.iter().map(|(name, target)| {
        let names = [&target.timeout, &target.retry, &target.circuit_breaker];
        (format!("apps.{name}"), names)
    });
    let actors = targets.actors.iter().map(|(name, target)| {
        let names = [&target.timeout, &target.retry, &target.circuit_breaker];
        (format!("actors.{name}"), names)
    });
    let components = targets.components.iter().flat_map(|(name, target)| {
        let directions = [("inbound", &target.inbound), ("outbound", &target.outbound)];
        directions.map(|(direction, policies)| {
            let names = [&policies.timeout, &policies.retry, &policies.circuit_breaker];
            (format!("components.{name}.{direction}"), names)
        })
    });
    apps.chain(actors).chain(components).collect()
}

impl Defined<'_> {
    fn missing(&self, doc: &spec::Resiliency) -> Vec<Problem> {
        policies_of(&doc.targets)
            .into_iter()
            .flat_map(|(target, names)| self.missing_of(doc, &target, names))
            .collect()
    }

    fn missing_of(&self, doc: &spec::Resiliency, target: &str, names: [&String; 3]) -> Vec<Problem> {
        let kinds = [
            ("timeout", "timeout", &self.timeouts),
            ("retry", "retry policy", &self.retries),
            ("circuitBreaker", "circuit breaker", &self.breakers),
        ];
        let missing = kinds.into_iter().zip(names);
        missing
            .filter(|((_, _, defined), name)| !name.is_empty() && !defined.contains(name.as_str()))
            .map(|((key, what, defined), name)| {
                let text = format!(
                    "Resiliency policy {}: no {what} is named {name:?}; {}calls of the target go without it",
                    doc.name,
                    hint(name, defined.iter().copied()),
                );
                Problem {
                    error: true,
                    ..Problem::warning(doc, &format!("spec.targets.{target}.{key}"), text)
                }
            })
            .collect()
    }
}
