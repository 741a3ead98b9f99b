//! Subscriptions that follow their resources.

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_blocks::subscriptions::Subscriptions;
use outrigger_resources::load::Kind;
use outrigger_resources::{Loaded, Subscription};

use super::desired::Desired;
use super::{LOG, Reconcile, ReloadError};

/// Declares what is wanted. A subscription that cannot be served is reported, and its predecessor stays.
pub struct SubscriptionReconciler {
    subscriptions: Arc<Subscriptions>,
    desired: Desired<Subscription>,
}

impl SubscriptionReconciler {
    /// For subscriptions that were declared from `desired`.
    pub fn new(subscriptions: Arc<Subscriptions>, desired: Vec<Subscription>) -> Self {
        Self {
            subscriptions,
            desired: Desired::new(desired),
        }
    }

    fn reconcile(&self) {
        if let Err(problems) = self.subscriptions.declare(self.desired.all()) {
            for problem in problems {
                tracing::error!(target: LOG, "{problem}; the subscription stays as it was");
            }
        }
    }
}

#[async_trait]
impl Reconcile for SubscriptionReconciler {
    fn kind(&self) -> Kind {
        Kind::Subscription
    }

    fn condition(&self) -> Option<&'static str> {
        Some("subscription-reconciler")
    }

    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError> {
        self.desired.list(listed.subscriptions.clone(), &listed.broken);
        self.reconcile();
        Ok(())
    }

    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError> {
        for subscription in &changed.subscriptions {
            self.desired.put(subscription.clone());
        }
        self.reconcile();
        Ok(())
    }

    async fn ended(&mut self, name: &str) -> Result<(), ReloadError> {
        self.desired.remove(name);
        self.reconcile();
        Ok(())
    }
}
