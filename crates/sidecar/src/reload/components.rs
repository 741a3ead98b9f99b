//! Components that follow their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_resources::Component;
use outrigger_runtime::components::Components;

use super::{Reconcile, ReloadError};

/// Starts, replaces and ends components.
pub struct ComponentReconciler(pub Arc<Components>);

impl Reconcile for ComponentReconciler {
    type Desired = [Component];

    const CONDITION: Option<&'static str> = Some("component-reconciler");

    fn reconcile<'a>(&'a mut self, desired: &'a [Component]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move { Ok(self.0.reconcile(desired).await?) })
    }
}
