//! `WorkflowAccessPolicy` (`dapr.io/v1alpha1`): which apps may use the workflows and activities of an app.
//!
//! An invalid policy is loaded without rules, with its mistakes: the presence of a policy denies, so that a policy
//! with a mistake opens nothing.

use std::str::FromStr;

use outrigger_nearest::nearest;
use serde::Deserialize;

use crate::glob::Glob;
use crate::load::{Broken, Document, Read, V1};
use crate::meta::{ObjectMeta, Source};
use crate::problem::Problem;
use crate::yaml;

/// An allow-list of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowAccessPolicy {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.rules`; none if there are mistakes.
    pub rules: Vec<Rule>,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Why the policy is invalid.
    pub mistakes: Vec<Mistake>,
    /// Location of the definition.
    pub source: Source,
}

/// A mistake in a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Starts with the path.
    what: String,
    /// 0 if unknown.
    line: usize,
}

/// What some callers may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// App IDs of the callers; at least one.
    pub callers: Vec<String>,
    /// Allowed operations on workflows.
    pub workflows: Vec<WorkflowRule>,
    /// Names of the activities that may be scheduled.
    pub activities: Vec<Glob>,
}

/// Allowed operations on workflows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowRule {
    /// Names of the workflows.
    pub name: Glob,
    /// At least one.
    pub operations: Vec<Operation>,
}

/// An operation on a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Create an instance.
    Schedule,
    /// End an instance.
    Terminate,
    /// Raise an event.
    Raise,
    /// Suspend an instance.
    Pause,
    /// Resume an instance.
    Resume,
    /// Remove the state of an instance.
    Purge,
    /// Read the status of an instance.
    Get,
    /// Run an instance again from an event.
    Rerun,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 8] = [
        Operation::Schedule,
        Operation::Terminate,
        Operation::Raise,
        Operation::Pause,
        Operation::Resume,
        Operation::Purge,
        Operation::Get,
        Operation::Rerun,
    ];

    /// Its name in policies, errors and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Terminate => "terminate",
            Self::Raise => "raise",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Purge => "purge",
            Self::Get => "get",
            Self::Rerun => "rerun",
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name);
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| match nearest(name, names) {
            Some(near) => format!("unknown operation {name:?}, did you mean {near}?"),
            None => format!(
                "unknown operation {name:?}: the operations are {}",
                names.join(", ")
            ),
        })
    }
}

impl WorkflowAccessPolicy {
    /// Whether both have the same content, regardless of location; used by hot reload.
    pub fn same_as(&self, other: &Self) -> bool {
        let at = |policy: &Self| {
            let mut policy = policy.clone();
            policy.source = Source::default();
            policy.mistakes.iter_mut().for_each(|mistake| mistake.line = 0);
            policy
        };
        at(self) == at(other)
    }
}

impl Read for WorkflowAccessPolicy {
    /// Any: a policy of an unknown version is invalid.
    const VERSIONS: &'static [&'static str] = &[];

    fn read(document: &mut Document<'_>, api_version: &str) -> Result<Option<Self>, Broken> {
        let policy = document.decode_usable(Raw::finish)?;
        let known = match api_version {
            V1 => None,
            other => Some(format!("apiVersion is {other:?}, and not {V1}")),
        };
        Ok(Some(policy.with(known.map(|what| Mistake { what, line: 0 }))))
    }

    fn with_mistakes(self, errors: Vec<yaml::Error>) -> Result<Self, Vec<yaml::Error>> {
        Ok(self.with(errors.into_iter().map(|error| Mistake {
            what: error.to_string(),
            line: error.line,
        })))
    }

    fn unreadable(source: Source) -> Option<Self> {
        let what = "it cannot be read, and may be or contain one".to_owned();
        let unread = Self {
            name: String::new(),
            namespace: String::new(),
            rules: Vec::new(),
            scopes: Vec::new(),
            mistakes: vec![Mistake { what, line: 0 }],
            source,
        };
        Some(unread)
    }

    fn problems(&self) -> Vec<Problem> {
        let problem = |mistake: &Mistake| {
            let line = match mistake.line {
                0 => self.source.line,
                line => line,
            };
            Problem::new(
                &self.source.file,
                line,
                format!(
                    "WorkflowAccessPolicy {:?} failed validation, skipping: {}",
                    self.name, mistake.what
                ),
                "correct it: until then it allows nothing, and other apps may only do what a valid policy allows",
            )
            .into_error()
        };
        self.mistakes.iter().map(problem).collect()
    }
}

impl WorkflowAccessPolicy {
    /// The policy with more mistakes.
    fn with(mut self, mistakes: impl IntoIterator<Item = Mistake>) -> Self {
        self.mistakes.extend(mistakes);
        if !self.mistakes.is_empty() {
            self.rules.clear();
        }
        self
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: Spec,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    rules: Vec<RawRule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawRule {
    callers: Vec<RawCaller>,
    workflows: Vec<RawWorkflow>,
    activities: Vec<RawActivity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCaller {
    #[serde(rename = "appID")]
    app_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawWorkflow {
    name: String,
    operations: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawActivity {
    name: String,
}

impl Raw {
    pub(crate) fn finish(self, source: Source) -> WorkflowAccessPolicy {
        let mut reading = Reading {
            source: &source,
            mistakes: Vec::new(),
        };
        let rules = self.spec.rules.into_iter().enumerate();
        let rules = rules.map(|(index, rule)| reading.rule(&format!("spec.rules[{index}]"), rule));
        let (rules, mistakes) = (rules.collect(), reading.mistakes);
        let policy = WorkflowAccessPolicy {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            rules,
            scopes: self.scopes,
            mistakes: Vec::new(),
            source,
        };
        policy.with(mistakes)
    }
}

/// Checks the values of a policy.
struct Reading<'a> {
    source: &'a Source,
    mistakes: Vec<Mistake>,
}

impl Reading<'_> {
    fn wrong(&mut self, path: &str, what: impl std::fmt::Display) {
        self.mistakes.push(Mistake {
            what: format!("{path}: {what}"),
            line: self.source.of(path).line,
        });
    }

    fn rule(&mut self, path: &str, rule: RawRule) -> Rule {
        if rule.callers.is_empty() {
            self.wrong(path, "callers must name at least one app");
        }
        if rule.workflows.is_empty() && rule.activities.is_empty() {
            self.wrong(
                path,
                "at least one of workflows or activities must contain a rule",
            );
        }
        let mut callers = Vec::with_capacity(rule.callers.len());
        for (index, caller) in rule.callers.into_iter().enumerate() {
            if caller.app_id.is_empty() {
                self.wrong(&format!("{path}.callers[{index}]"), "appID must not be empty");
            }
            callers.push(caller.app_id);
        }
        let mut workflows = Vec::new();
        for (index, workflow) in rule.workflows.into_iter().enumerate() {
            let path = format!("{path}.workflows[{index}]");
            let operations = self.operations(&path, &workflow.operations);
            let name = self.glob(&path, &workflow.name);
            workflows.extend(name.map(|name| WorkflowRule { name, operations }));
        }
        let mut activities = Vec::new();
        for (index, activity) in rule.activities.into_iter().enumerate() {
            activities.extend(self.glob(&format!("{path}.activities[{index}]"), &activity.name));
        }
        Rule {
            callers,
            workflows,
            activities,
        }
    }

    fn operations(&mut self, path: &str, names: &[String]) -> Vec<Operation> {
        if names.is_empty() {
            self.wrong(path, "operations must name at least one operation");
        }
        let mut operations = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            match name.parse() {
                Ok(operation) => operations.push(operation),
                Err(error) => self.wrong(&format!("{path}.operations[{index}]"), error),
            }
        }
        operations
    }

    fn glob(&mut self, path: &str, name: &str) -> Option<Glob> {
        if name.is_empty() {
            self.wrong(path, "name must not be empty");
            return None;
        }
        let glob = name.parse();
        glob.map_err(|error| self.wrong(&format!("{path}.name"), error))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::load::text;

    use super::*;

    fn policy(spec: &str) -> (WorkflowAccessPolicy, Vec<Problem>) {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {{name: p}}\n{spec}"
        );
        let mut loaded = text(&yaml, "app").unwrap();
        (loaded.workflow_access_policies.remove(0), loaded.warnings)
    }

    #[test]
    fn reads_rules() {
        let (policy, warnings) = policy(
            "scopes: [app]\nspec:\n  rules:\n  - callers: [{appID: a}, {appID: b}]\n    workflows:\n    - name: Order*\n      \
             operations: [schedule, get]\n  - callers: [{appID: c}]\n    activities: [{name: pay}]\n",
        );
        assert_eq!(
            (warnings, &*policy.name, &policy.mistakes),
            (vec![], "p", &vec![])
        );
        let [first, second] = &policy.rules[..] else {
            panic!("{policy:?}")
        };
        assert_eq!(first.callers, ["a", "b"]);
        assert_eq!(first.workflows[0].name.as_str(), "Order*");
        assert_eq!(
            first.workflows[0].operations,
            [Operation::Schedule, Operation::Get]
        );
        assert_eq!(second.activities[0].as_str(), "pay");
    }

    #[test]
    fn invalid_policy_has_no_rules() {
        let valid = "  - callers: [{appID: a}]\n    activities: [{name: pay}]\n";
        for (rule, line, said) in [
            (
                "  - workflows: [{name: w, operations: [get]}]\n",
                8,
                "callers must name at least one app",
            ),
            (
                "  - callers: []\n    activities: [{name: x}]\n",
                8,
                "callers must name at least one app",
            ),
            (
                "  - callers:\n    - appID: ''\n    activities: [{name: x}]\n",
                9,
                "appID must not be empty",
            ),
            (
                "  - callers: [{appID: b}]\n",
                8,
                "at least one of workflows or activities must contain a rule",
            ),
            (
                "  - callers: [{appID: b}]\n    activities:\n    - name: ''\n",
                10,
                "name must not be empty",
            ),
            (
                "  - callers: [{appID: b}]\n    activities:\n    - name: '[a'\n",
                10,
                "is no valid pattern",
            ),
            (
                "  - callers: [{appID: b}]\n    workflows:\n    - name: w\n      operations: []\n",
                10,
                "operations must name at least one operation",
            ),
            (
                "  - callers: [{appID: b}]\n    workflows:\n    - name: w\n      operations:\n      - get\n      - shedule\n",
                13,
                "unknown operation \"shedule\", did you mean schedule?",
            ),
            (
                "  - callers: a\n    activities: [{name: x}]\n",
                8,
                "expected a list",
            ),
        ] {
            let (policy, warnings) = policy(&format!("spec:\n  rules:\n{valid}{rule}"));
            assert!(policy.rules.is_empty(), "{rule}");
            let problem = warnings.iter().find(|problem| problem.what.contains(said));
            let problem = problem.unwrap_or_else(|| panic!("{rule}: {warnings:?}"));
            assert!(
                problem
                    .what
                    .starts_with("WorkflowAccessPolicy \"p\" failed validation, skipping: ")
            );
            assert_eq!((problem.line, problem.error), (line, true), "{rule}");
        }
    }

    #[test]
    fn empty_policy_is_valid() {
        for spec in ["", "spec: {}\n", "spec:\n  rules: []\n"] {
            let (policy, warnings) = policy(spec);
            assert_eq!(
                (policy.rules.len(), policy.mistakes, warnings),
                (0, vec![], vec![]),
                "{spec}"
            );
        }
    }

    #[test]
    fn unreadable_policy_is_not_skipped() {
        for yaml in [
            "kind: WorkflowAccessPolicy\nmetadata: {name: p}\n",
            "apiVersion: dapr.io/v2\nkind: WorkflowAccessPolicy\nmetadata: {name: p}\n",
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {name: a/b}\n",
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nspec: [\n",
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicies\nmetadata: {name: p}\n",
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nspec: deny\n",
        ] {
            let loaded = text(yaml, "app").unwrap();
            let [policy] = &loaded.workflow_access_policies[..] else {
                panic!("{yaml}: {loaded:?}")
            };
            assert!(
                !policy.mistakes.is_empty() && !loaded.warnings.is_empty(),
                "{yaml}"
            );
        }
        let other = text("kind: Component\nmetadata: [\n", "app").unwrap();
        assert!(other.workflow_access_policies.is_empty());
    }
}
