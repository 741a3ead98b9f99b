//! Reconciles subscriptions with their resources.

use std::future::ready;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_blocks::subscriptions::Subscriptions;
use outrigger_resources::{Kind, Subscription};
use outrigger_wire::operator::v1 as wire;

use super::{LOG, Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, opening};
use crate::sidecar::SidecarError;
use crate::status::findings::{Finding, Findings, Gravity};

/// Declares subscriptions. If one cannot be served, the problem is reported and its predecessor stays.
pub(crate) struct SubscriptionReconciler {
    subscriptions: Arc<Subscriptions>,
    /// The subscriptions declared last, whose brokers are known.
    declared: Vec<Subscription>,
    findings: Arc<Findings>,
}

impl OperatorResource for Subscription {
    const PLURAL: &'static str = "subscriptions";

    fn watch(mut requester: Requester) -> Opening {
        let request = wire::SubscriptionUpdateRequest {
            namespace: requester.namespace,
        };
        let call = async move { requester.client.subscription_update(request).await };
        opening(call, |event| Change {
            event: event.r#type(),
            json: event.subscription,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let request = wire::ListSubscriptionsRequest {
            namespace: requester.namespace,
        };
        Box::pin(async move {
            let listed = requester.client.list_subscriptions_v2(request).await?;
            Ok(listed.map(|listed| listed.subscriptions))
        })
    }
}

impl Reloaded for Subscription {
    type Reconciler = SubscriptionReconciler;

    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        let declared = running.blocks.subscriptions.declare(loaded);
        let declared = declared.map_err(|problems| SidecarError::Resources(problems.join("; ")));
        Box::pin(ready(declared))
    }

    fn reconciler(running: &Running, loaded: &[Self]) -> SubscriptionReconciler {
        SubscriptionReconciler {
            subscriptions: Arc::clone(&running.blocks.subscriptions),
            declared: loaded.to_vec(),
            findings: Arc::clone(&running.findings),
        }
    }
}

impl Reconcile for SubscriptionReconciler {
    type Desired = [Subscription];

    const CONDITION: Option<&'static str> = Some("subscription-reconciler");

    fn reconcile<'a>(&'a mut self, desired: &'a [Subscription]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            let problems = self.subscriptions.declare(desired).err().unwrap_or_default();
            for problem in &problems {
                tracing::error!(target: LOG, "{problem}; the subscription stays as it was");
            }
            // The text contains the place.
            let found = problems.into_iter().map(|text| Finding {
                gravity: Gravity::Error,
                place: String::new(),
                text,
            });
            self.findings.set(Kind::Subscription.name(), "", found);
            let new = desired
                .iter()
                .filter(|subscription| !self.declared.contains(subscription));
            self.subscriptions.show_missing(new, true);
            self.declared = desired.to_vec();
            Ok(())
        })
    }
}
