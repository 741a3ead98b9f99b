//! The workloads of all kinds, to decide which of them owns a service.

use std::sync::Arc;

use outrigger_kube::{Meta, Progress, Reflector, Store};
use tokio::sync::watch;

use super::existing::Controller;
use super::workload::{Deployment, Owner, Rollout, StatefulSet, Workload};

/// The watched workloads.
pub(super) struct Workloads {
    deployments: Followed<Deployment>,
    sets: Followed<StatefulSet>,
    rollouts: Option<Followed<Rollout>>,
}

/// The workloads of a kind, and the progress of their list.
struct Followed<K> {
    store: Arc<Store<Workload<K>>>,
    progress: watch::Receiver<Progress>,
}

impl<K: Owner> Followed<K> {
    fn of(reflector: &Reflector<Workload<K>>) -> Self {
        Self {
            store: reflector.store(),
            progress: reflector.progress(),
        }
    }

    async fn answered(&self) {
        let mut progress = self.progress.clone();
        // The sender lives in the reflector, or the reflector has ended.
        let _ = progress.wait_for(|progress| *progress != Progress::Pending).await;
    }

    fn want(&self, controller: &Controller, service: &Meta) -> bool {
        let Some(meta) = controller.meta::<K>(&service.namespace) else {
            return false;
        };
        let workload = self.store.get(&meta.namespace, &meta.name);
        *self.progress.borrow() != Progress::Complete
            || workload.is_some_and(|workload| workload.service == service.name)
    }
}

impl Workloads {
    /// The workloads of these reflectors; rollouts are optional.
    pub(super) fn of(
        deployments: &Reflector<Workload<Deployment>>,
        sets: &Reflector<Workload<StatefulSet>>,
        rollouts: Option<&Reflector<Workload<Rollout>>>,
    ) -> Self {
        Self {
            deployments: Followed::of(deployments),
            sets: Followed::of(sets),
            rollouts: rollouts.map(Followed::of),
        }
    }

    /// Waits until each kind is listed, or its list is refused.
    pub(super) async fn answered(&self) {
        self.deployments.answered().await;
        self.sets.answered().await;
        if let Some(rollouts) = &self.rollouts {
            rollouts.answered().await;
        }
    }

    /// Whether the owner of a service exists and wants it. Also true if that is unknown, because its kind is
    /// not listed yet.
    pub(super) fn want(&self, controller: &Controller, service: &Meta) -> bool {
        self.deployments.want(controller, service)
            || self.sets.want(controller, service)
            || self
                .rollouts
                .as_ref()
                .is_some_and(|rollouts| rollouts.want(controller, service))
    }
}
