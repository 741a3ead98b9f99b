//! Components that follow their resources.

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_resources::load::Kind;
use outrigger_resources::{Component, Loaded};
use outrigger_runtime::components::Components;

use super::desired::Desired;
use super::{Reconcile, ReloadError};

/// Starts, replaces and ends components.
pub struct ComponentReconciler {
    components: Arc<Components>,
    desired: Desired<Component>,
}

impl ComponentReconciler {
    /// For components that were started from `desired`.
    pub fn new(components: Arc<Components>, desired: Vec<Component>) -> Self {
        Self {
            components,
            desired: Desired::new(desired),
        }
    }

    async fn reconcile(&self) -> Result<(), ReloadError> {
        Ok(self.components.reconcile(self.desired.all()).await?)
    }
}

#[async_trait]
impl Reconcile for ComponentReconciler {
    fn kind(&self) -> Kind {
        Kind::Component
    }

    fn condition(&self) -> Option<&'static str> {
        Some("component-reconciler")
    }

    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError> {
        self.desired.list(listed.components.clone(), &listed.broken);
        self.reconcile().await
    }

    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError> {
        for component in &changed.components {
            self.desired.put(component.clone());
        }
        self.reconcile().await
    }

    async fn ended(&mut self, name: &str) -> Result<(), ReloadError> {
        self.desired.remove(name);
        self.reconcile().await
    }
}
