//! Reconciles the access of other apps to workflows with WorkflowAccessPolicy resources.

use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_blocks_actors::workflow::access::WorkflowAccess;
use outrigger_resources::{Kind, WorkflowAccessPolicy};
use outrigger_wire::operator::v1 as wire;

use super::{LOG, Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, opening};
use crate::sidecar::{self, SidecarError};

/// Applies policies. An invalid one has no rules; in place of a valid one of its name, that one stays.
pub(crate) struct WorkflowAccessReconciler {
    access: Arc<WorkflowAccess>,
    /// The policies applied last.
    applied: Vec<WorkflowAccessPolicy>,
}

impl OperatorResource for WorkflowAccessPolicy {
    const PLURAL: &'static str = "workflow access policies";

    fn watch(mut requester: Requester) -> Opening {
        let namespace = requester.namespace;
        let request = wire::WorkflowAccessPolicyUpdateRequest { namespace };
        let call = async move { requester.client.workflow_access_policy_update(request).await };
        opening(call, |event| Change {
            event: event.r#type(),
            json: event.policy,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let namespace = requester.namespace;
        let request = wire::ListWorkflowAccessPolicyRequest { namespace };
        Box::pin(async move {
            let listed = requester.client.list_workflow_access_policy(request).await?;
            Ok(listed.map(|listed| listed.policies))
        })
    }
}

impl Reloaded for WorkflowAccessPolicy {
    type Reconciler = WorkflowAccessReconciler;

    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        running.workflow_access.apply(loaded);
        if !loaded.is_empty() {
            let valid = running.workflow_access.names().len();
            tracing::info!(target: sidecar::LOG, "Loaded {valid} workflow access policy resource(s)");
        }
        Box::pin(ready(Ok(())))
    }

    fn reconciler(running: &Running, loaded: &[Self]) -> WorkflowAccessReconciler {
        WorkflowAccessReconciler {
            access: Arc::clone(&running.workflow_access),
            applied: loaded.to_vec(),
        }
    }
}

impl Reconcile for WorkflowAccessReconciler {
    type Desired = [WorkflowAccessPolicy];

    fn reconcile<'a>(
        &'a mut self,
        desired: &'a [WorkflowAccessPolicy],
    ) -> BoxFuture<'a, Result<(), ReloadError>> {
        let policies = next(&self.applied, desired);
        let is_same = |(a, b): (&WorkflowAccessPolicy, &WorkflowAccessPolicy)| a.same_as(b);
        if policies.len() != self.applied.len() || !policies.iter().zip(&self.applied).all(is_same) {
            self.access.apply(&policies);
            let names = self.access.names().join(", ");
            tracing::info!(target: LOG, "{} resources in use: [{names}]", Kind::WorkflowAccessPolicy.name());
        }
        self.applied = policies;
        Box::pin(ready(Ok(())))
    }
}

/// The policies to apply: invalid ones are replaced by the applied ones of their names.
fn next(applied: &[WorkflowAccessPolicy], desired: &[WorkflowAccessPolicy]) -> Vec<WorkflowAccessPolicy> {
    let is_valid = |policy: &&WorkflowAccessPolicy| policy.mistakes.is_empty();
    let chosen = desired.iter().map(|policy| {
        let known = applied.iter().find(|known| known.name == policy.name);
        match known.filter(is_valid).filter(|_| !policy.mistakes.is_empty()) {
            Some(known) => known,
            None => policy,
        }
    });
    chosen.cloned().collect()
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load;

    use super::*;

    fn policy(name: &str, rules: &str) -> WorkflowAccessPolicy {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {{name: {name}}}\nspec: {{rules: {rules}}}\n"
        );
        let mut loaded = load::text(&yaml, "app").unwrap();
        loaded.workflow_access_policies.remove(0)
    }

    fn shown(policies: &[WorkflowAccessPolicy]) -> Vec<(&str, usize, bool)> {
        let one = |policy: &WorkflowAccessPolicy| policy.rules.len();
        let policies = policies.iter();
        policies
            .map(|policy| (&*policy.name, one(policy), policy.mistakes.is_empty()))
            .collect()
    }

    #[test]
    fn invalid_policy_keeps_valid_predecessor() {
        const RULE: &str = "[{callers: [{appID: a}], activities: [{name: '*'}]}]";
        const WRONG: &str = "[{callers: []}]";
        let applied = next(&[], &[policy("a", RULE), policy("b", WRONG)]);
        assert_eq!(shown(&applied), [("a", 1, true), ("b", 0, false)]);
        let applied = next(
            &applied,
            &[policy("a", WRONG), policy("b", RULE), policy("c", WRONG)],
        );
        assert_eq!(shown(&applied), [("a", 1, true), ("b", 1, true), ("c", 0, false)]);
        // Still invalid at the next list.
        let applied = next(&applied, &[policy("a", WRONG)]);
        assert_eq!(shown(&applied), [("a", 1, true)]);
        let applied = next(&applied, &[policy("a", "[]")]);
        assert_eq!(shown(&applied), [("a", 0, true)]);
        assert!(next(&applied, &[]).is_empty());
    }
}
