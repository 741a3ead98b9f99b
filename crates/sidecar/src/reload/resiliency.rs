//! Resiliency policies that follow their resources.

use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_policy::resiliency::{Resiliency as Policies, undefined};
use outrigger_resources::Resiliency;
use outrigger_runtime::resilience::Resilience;
use outrigger_wire::operator::v1 as wire;

use super::{LOG, Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Listing, OperatorResource, Requester};
use crate::sidecar::SidecarError;

/// Builds the policies anew when a document changes. One that cannot be used is reported, and its predecessor stays.
pub(crate) struct ResiliencyReconciler {
    resilience: Arc<Resilience>,
    app_id: String,
    /// What the policies were built from.
    applied: Vec<Resiliency>,
    /// What could not be used, and was said to.
    refused: Vec<Resiliency>,
}

impl OperatorResource for Resiliency {
    const PLURAL: &'static str = "resiliency policies";

    fn list(requester: Requester) -> Listing {
        let Requester {
            mut client,
            namespace,
            ..
        } = requester;
        let request = wire::ListResiliencyRequest { namespace };
        Box::pin(async move {
            let listed = client.list_resiliency(request).await?;
            Ok(listed.map(|listed| listed.resiliencies))
        })
    }
}

impl Reloaded for Resiliency {
    type Reconciler = ResiliencyReconciler;

    fn start<'a>(_: &'a Running, _: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        // Whatever runs was made with them.
        Box::pin(ready(Ok(())))
    }

    fn reconciler(running: &Running, loaded: &[Self]) -> ResiliencyReconciler {
        ResiliencyReconciler {
            resilience: Arc::clone(&running.resilience),
            app_id: running.app_id.clone(),
            applied: loaded.to_vec(),
            refused: Vec::new(),
        }
    }
}

impl ResiliencyReconciler {
    fn apply(&mut self, desired: &[Resiliency]) {
        let mut usable = Vec::with_capacity(desired.len());
        let mut refused = Vec::new();
        for wanted in desired {
            let is_known = holds(&self.applied, wanted);
            if is_known || (!holds(&self.refused, wanted) && self.is_usable(wanted)) {
                usable.push(wanted.clone());
                continue;
            }
            refused.push(wanted.clone());
            let before = self.applied.iter().find(|known| known.name == wanted.name);
            usable.extend(before.cloned());
        }
        self.refused = refused;
        let is_same = usable.len() == self.applied.len()
            && usable
                .iter()
                .zip(&self.applied)
                .all(|(new, old)| new.same_as(old));
        if is_same {
            return;
        }
        // What is odd about one document was said when it came.
        let (policies, _) = self.resilience.policies.load().rebuild(&usable, &self.app_id);
        self.resilience.policies.replace(policies);
        for problem in undefined(&usable, &self.app_id) {
            tracing::warn!(target: LOG, "{problem}");
        }
        let new = usable.iter().filter(|new| !holds(&self.applied, new));
        let new: Vec<_> = new
            .map(|new| (new.name.as_str(), new.namespace.as_str()))
            .collect();
        self.resilience.metrics.policies_replaced(new);
        tracing::info!(target: LOG, "Resiliency policies were replaced: {}", names(&usable));
        self.applied = usable;
    }

    /// Whether every policy of a document can be used; what is wrong is logged with its place.
    fn is_usable(&self, document: &Resiliency) -> bool {
        let (_, problems) = Policies::build([document], &self.app_id);
        for problem in &problems {
            if problem.error {
                tracing::error!(target: LOG, "{problem}; the version in use stays");
            } else {
                tracing::warn!(target: LOG, "{problem}");
            }
        }
        !problems.iter().any(|problem| problem.error)
    }
}

fn holds(documents: &[Resiliency], document: &Resiliency) -> bool {
    documents.iter().any(|known| known.same_as(document))
}

fn names(documents: &[Resiliency]) -> String {
    if documents.is_empty() {
        return "there are none".to_owned();
    }
    let names: Vec<_> = documents.iter().map(|document| document.name.as_str()).collect();
    names.join(", ")
}

impl Reconcile for ResiliencyReconciler {
    type Desired = [Resiliency];

    fn reconcile<'a>(&'a mut self, desired: &'a [Resiliency]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            self.apply(desired);
            Ok(())
        })
    }
}
