//! Subscriptions that follow their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_blocks::subscriptions::Subscriptions;
use outrigger_resources::Subscription;

use super::{LOG, Reconcile, ReloadError};

/// Declares what is wanted. A subscription that cannot be served is reported, and its predecessor stays.
pub struct SubscriptionReconciler(pub Arc<Subscriptions>);

impl Reconcile for SubscriptionReconciler {
    type Desired = [Subscription];

    const CONDITION: Option<&'static str> = Some("subscription-reconciler");

    fn reconcile<'a>(&'a mut self, desired: &'a [Subscription]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            if let Err(problems) = self.0.declare(desired) {
                for problem in problems {
                    tracing::error!(target: LOG, "{problem}; the subscription stays as it was");
                }
            }
            Ok(())
        })
    }
}
