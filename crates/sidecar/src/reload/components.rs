//! Components that follow their resources.

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_resources::Component;
use outrigger_runtime::components::Components;

use super::{Reconcile, ReloadError};

/// Starts, replaces and ends components.
pub struct ComponentReconciler(pub Arc<Components>);

#[async_trait]
impl Reconcile for ComponentReconciler {
    type Desired = [Component];

    const CONDITION: Option<&'static str> = Some("component-reconciler");

    async fn reconcile(&mut self, desired: &[Component]) -> Result<(), ReloadError> {
        Ok(self.0.reconcile(desired).await?)
    }
}
