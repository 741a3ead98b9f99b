//! Reconciles components with their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_resources::Component;
use outrigger_runtime::components::Components;
use outrigger_wire::operator::v1 as wire;

use super::{Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, decode_all, opening};
use crate::sidecar::SidecarError;

/// Starts, replaces and closes components.
pub(crate) struct ComponentReconciler(Arc<Components>);

impl OperatorResource for Component {
    const PLURAL: &'static str = "components";

    fn watch(mut requester: Requester) -> Opening {
        let request = wire::ComponentUpdateRequest {
            namespace: requester.namespace,
        };
        let call = async move { requester.client.component_update(request).await };
        opening(call, |event| Change {
            event: event.r#type(),
            json: event.component,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let request = wire::ListComponentsRequest {
            namespace: requester.namespace,
        };
        Box::pin(async move {
            let listed = requester.client.list_components(request).await?;
            Ok(listed.map(|listed| listed.components))
        })
    }

    fn decode_secrets(&mut self) {
        decode_all(&mut self.secret_store, &mut self.metadata, &self.name);
    }
}

impl Reloaded for Component {
    type Reconciler = ComponentReconciler;

    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        Box::pin(async {
            let started = running.components.start(loaded).await;
            started.map_err(|error| SidecarError::Component(error.summary()))
        })
    }

    fn reconciler(running: &Running, _: &[Self]) -> ComponentReconciler {
        ComponentReconciler(Arc::clone(&running.components))
    }
}

impl Reconcile for ComponentReconciler {
    type Desired = [Component];

    const CONDITION: Option<&'static str> = Some("component-reconciler");

    fn reconcile<'a>(&'a mut self, desired: &'a [Component]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move { Ok(self.0.reconcile(desired).await?) })
    }
}
