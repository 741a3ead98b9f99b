//! Reconciles resiliency policies with their resources.

use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_policy::resiliency::{Problem, Resiliency as Policies, undefined};
use outrigger_resources::{Kind, Resiliency};
use outrigger_runtime::resilience::Resilience;
use outrigger_wire::operator::v1 as wire;

use super::{LOG, Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, opening};
use crate::sidecar::SidecarError;
use crate::status::findings::{Finding, Findings};

/// The effect of an error in a changed document.
const VERSION_STAYS: &str = "the version in use stays";

/// Rebuilds the policies when a document changes. An unusable version is reported, and its predecessor stays.
pub(crate) struct ResiliencyReconciler {
    resilience: Arc<Resilience>,
    app_id: String,
    /// The documents of the current policies.
    applied: Vec<Resiliency>,
    /// Unusable documents that were reported.
    refused: Vec<Resiliency>,
    findings: Arc<Findings>,
}

impl OperatorResource for Resiliency {
    const PLURAL: &'static str = "resiliency policies";

    fn watch(mut requester: Requester) -> Opening {
        let request = wire::ResiliencyUpdateRequest {
            namespace: requester.namespace,
        };
        let call = async move { requester.client.resiliency_update(request).await };
        opening(call, |event| Change {
            event: event.r#type(),
            json: event.resiliency,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let request = wire::ListResiliencyRequest {
            namespace: requester.namespace,
        };
        Box::pin(async move {
            let listed = requester.client.list_resiliency(request).await?;
            Ok(listed.map(|listed| listed.resiliencies))
        })
    }
}

impl Reloaded for Resiliency {
    type Reconciler = ResiliencyReconciler;

    fn start<'a>(_: &'a Running, _: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        // The running parts were created with them.
        Box::pin(ready(Ok(())))
    }

    fn reconciler(running: &Running, loaded: &[Self]) -> ResiliencyReconciler {
        ResiliencyReconciler {
            resilience: Arc::clone(&running.resilience),
            app_id: running.app_id.clone(),
            applied: loaded.to_vec(),
            refused: Vec::new(),
            findings: Arc::clone(&running.findings),
        }
    }
}

impl ResiliencyReconciler {
    fn apply(&mut self, desired: &[Resiliency]) {
        let mut usable = Vec::with_capacity(desired.len());
        let mut refused = Vec::new();
        for wanted in desired {
            let before = self.applied.iter().find(|known| known.name == wanted.name);
            // The valid parts of a new document apply, as at start. A changed document applies as a whole or
            // not at all.
            match before {
                Some(before) if !holds(&self.applied, wanted) && !self.is_usable(wanted) => {
                    usable.push(before.clone());
                    refused.push(wanted.clone());
                }
                _ => usable.push(wanted.clone()),
            }
        }
        let (is_same, is_refused_same) = (same(&usable, &self.applied), same(&refused, &self.refused));
        self.refused = refused;
        if !is_same {
            self.replace(usable);
        }
        if !is_same || !is_refused_same {
            self.report();
        }
    }

    fn replace(&mut self, usable: Vec<Resiliency>) {
        let (policies, problems) = self.resilience.policies.load().rebuild(&usable, &self.app_id);
        self.resilience.policies.replace(policies);
        let new: Vec<_> = usable.iter().filter(|new| !holds(&self.applied, new)).collect();
        // Problems of other documents were reported when those changed.
        let is_new = |problem: &&Problem| new.iter().any(|new| new.source.file == problem.place.file);
        crate::log_problems!(LOG, problems.iter().filter(is_new));
        crate::log_problems!(LOG, &undefined(&usable, &self.app_id));
        let new: Vec<_> = new
            .iter()
            .map(|new| (new.name.as_str(), new.namespace.as_str()))
            .collect();
        self.resilience.metrics.policies_replaced(new);
        tracing::info!(target: LOG, "Resiliency policies were replaced: {}", names(&usable));
        self.applied = usable;
    }

    /// Whether every policy of a changed document is valid; problems are logged once, with their place.
    fn is_usable(&self, document: &Resiliency) -> bool {
        if holds(&self.refused, document) {
            return false;
        }
        let (_, problems) = Policies::build([document], &self.app_id);
        for problem in problems.iter().filter(|problem| problem.error) {
            tracing::error!(target: LOG, "{}; {VERSION_STAYS}", problem.reason());
        }
        !problems.iter().any(|problem| problem.error)
    }

    /// Shows the current problems on the status page.
    fn report(&self) {
        let (_, mut problems) = Policies::build(&self.applied, &self.app_id);
        problems.extend(undefined(&self.applied, &self.app_id));
        for document in &self.refused {
            let (_, refused) = Policies::build([document], &self.app_id);
            let effect = VERSION_STAYS.to_owned();
            problems.extend(refused.into_iter().map(|problem| Problem {
                effect: effect.clone(),
                ..problem
            }));
        }
        let part = Kind::Resiliency.name();
        self.findings.set(part, "", problems.iter().map(Finding::from));
    }
}

fn same(new: &[Resiliency], old: &[Resiliency]) -> bool {
    new.len() == old.len() && new.iter().zip(old).all(|(new, old)| new.same_as(old))
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
