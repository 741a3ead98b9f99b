//! Access to workflows and activities of an app by other apps: which caller may use which operation on which name.
//!
//! The policies in scope form one allow-list. Without a policy everything is allowed; with one, everything that no
//! policy allows is denied. An invalid policy counts as a policy that allows nothing.

use std::collections::HashMap;

use outrigger_resources::glob::Glob;
use outrigger_resources::workflow_access_policy::{Operation, WorkflowAccessPolicy};

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// An operation on a workflow with this name.
    Workflow(Operation, &'a str),
    /// An activity with this name, to be scheduled.
    Activity(&'a str),
}

/// Compiled policies: the operations of each caller.
#[derive(Debug)]
pub struct AllowList {
    /// By app ID of the caller.
    callers: HashMap<String, Grants>,
}

/// The operations of a caller.
#[derive(Debug, Default)]
struct Grants {
    workflows: Vec<(Operation, Glob)>,
    activities: Vec<Glob>,
}

impl AllowList {
    /// Compiles the policies in scope; `None` without any, which allows everything.
    pub fn compile<'a>(policies: impl IntoIterator<Item = &'a WorkflowAccessPolicy>) -> Option<Self> {
        let mut policies = policies.into_iter().peekable();
        policies.peek()?;
        let mut callers: HashMap<String, Grants> = HashMap::new();
        for rule in policies.flat_map(|policy| &policy.rules) {
            for caller in &rule.callers {
                let grants = callers.entry(caller.clone()).or_default();
                grants.activities.extend(rule.activities.iter().cloned());
                for workflow in &rule.workflows {
                    let operations = workflow.operations.iter();
                    let allowed = operations.map(|operation| (*operation, workflow.name.clone()));
                    grants.workflows.extend(allowed);
                }
            }
        }
        Some(Self { callers })
    }

    /// Whether another app of the namespace may do this. An app's own calls need no decision.
    pub fn allows(&self, caller: &str, target: Target<'_>) -> bool {
        let Some(grants) = self.callers.get(caller) else {
            return false;
        };
        match target {
            Target::Workflow(operation, name) => {
                let mut all = grants.workflows.iter();
                all.any(|(allowed, names)| *allowed == operation && names.matches(name))
            }
            Target::Activity(name) => grants.activities.iter().any(|names| names.matches(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load;

    use super::*;

    fn compiled(specs: &[&str]) -> Option<AllowList> {
        let policies: Vec<_> = specs
            .iter()
            .flat_map(|spec| {
                let yaml = format!(
                    "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
                );
                load::text(&yaml, "app").unwrap().workflow_access_policies
            })
            .collect();
        AllowList::compile(&policies)
    }

    const SHOP: &str = "{rules: [
        {callers: [{appID: shop}, {appID: desk}], workflows: [
            {name: 'Order*', operations: [schedule, get]}, {name: Refund, operations: [terminate]}]},
        {callers: [{appID: desk}], workflows: [{name: 'Order*', operations: [purge]}], activities: [{name: 'pay-?'}]}]}";

    #[test]
    fn allows_what_a_rule_names() {
        use Operation::*;
        let access = compiled(&[SHOP]).unwrap();
        for (caller, target, expected) in [
            ("shop", Target::Workflow(Schedule, "Order"), true),
            ("shop", Target::Workflow(Get, "OrderOfYear"), true),
            ("shop", Target::Workflow(Schedule, "Order/Sub"), false),
            ("shop", Target::Workflow(Schedule, "order"), false),
            ("shop", Target::Workflow(Terminate, "Order"), false),
            ("shop", Target::Workflow(Terminate, "Refund"), true),
            ("shop", Target::Workflow(Schedule, "Refund"), false),
            ("shop", Target::Workflow(Purge, "Order"), false),
            ("shop", Target::Activity("pay-1"), false),
            ("desk", Target::Workflow(Purge, "Order"), true),
            ("desk", Target::Activity("pay-1"), true),
            ("desk", Target::Activity("pay-12"), false),
            ("desk", Target::Activity("Order"), false),
            ("desk", Target::Workflow(Rerun, "Order"), false),
            ("Shop", Target::Workflow(Schedule, "Order"), false),
            ("*", Target::Workflow(Schedule, "Order"), false),
            ("", Target::Workflow(Schedule, "Order"), false),
        ] {
            assert_eq!(access.allows(caller, target), expected, "{caller}: {target:?}");
        }
    }

    #[test]
    fn one_matching_rule_of_any_policy_suffices() {
        let second =
            "{rules: [{callers: [{appID: shop}], workflows: [{name: Refund, operations: [schedule]}]}]}";
        let access = compiled(&["{}", SHOP, second]).unwrap();
        assert!(access.allows("shop", Target::Workflow(Operation::Schedule, "Refund")));
        assert!(access.allows("shop", Target::Workflow(Operation::Schedule, "Order")));
    }

    #[test]
    fn policy_without_valid_rules_denies() {
        assert!(compiled(&[]).is_none());
        let valid = "{callers: [{appID: shop}], workflows: [{name: '*', operations: [schedule]}]}";
        for spec in [
            "{}".to_owned(),
            "deny".to_owned(),
            format!("{{rules: [{valid}, {{callers: []}}]}}"),
        ] {
            let access = compiled(&[&spec]).unwrap();
            assert!(
                !access.allows("shop", Target::Workflow(Operation::Schedule, "Order")),
                "{spec}"
            );
        }
    }

    #[test]
    fn wildcard_of_caller_is_literal() {
        let access = compiled(&["{rules: [{callers: [{appID: '*'}], activities: [{name: '*'}]}]}"]).unwrap();
        assert!(!access.allows("shop", Target::Activity("pay")));
    }
}
