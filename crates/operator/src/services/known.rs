//! The workloads of all kinds: a service that belongs to one is not another's.

use std::sync::Arc;

use outrigger_kube::{Meta, Progress, Reflector, Store};
use tokio::sync::watch;

use super::made::Controller;
use super::workload::{Deployment, Owner, Rollout, StatefulSet, Workload};

/// The workloads that are followed.
pub(super) struct Workloads {
    deployments: Arc<Store<Workload<Deployment>>>,
    sets: Arc<Store<Workload<StatefulSet>>>,
    rollouts: Option<Arc<Store<Workload<Rollout>>>>,
    /// How far each kind was read.
    progress: Vec<watch::Receiver<Progress>>,
}

impl Workloads {
    /// Those that are kept by these; rollouts, where they are looked at.
    pub(super) fn of(
        deployments: &Reflector<Workload<Deployment>>,
        sets: &Reflector<Workload<StatefulSet>>,
        rollouts: Option<&Reflector<Workload<Rollout>>>,
    ) -> Self {
        let mut progress = vec![deployments.progress(), sets.progress()];
        progress.extend(rollouts.map(Reflector::progress));
        Self {
            deployments: deployments.store(),
            sets: sets.store(),
            rollouts: rollouts.map(Reflector::store),
            progress,
        }
    }

    /// Waits until each kind was listed, or its list refused.
    pub(super) async fn answered(&self) {
        for progress in &self.progress {
            // Who reads them tells it, or has ended.
            let _ = progress
                .clone()
                .wait_for(|progress| *progress != Progress::Pending)
                .await;
        }
    }

    /// Whether the workload that a service belongs to is there, and the service is what it wants.
    pub(super) fn want(&self, controller: &Controller, service: &Meta) -> bool {
        wants(&self.deployments, controller, service)
            || wants(&self.sets, controller, service)
            || self
                .rollouts
                .as_ref()
                .is_some_and(|rollouts| wants(rollouts, controller, service))
    }
}

fn wants<K: Owner>(store: &Store<Workload<K>>, controller: &Controller, service: &Meta) -> bool {
    let workload = controller
        .meta::<K>(&service.namespace)
        .and_then(|meta| store.get(&meta.namespace, &meta.name));
    workload.is_some_and(|workload| workload.service == service.name)
}
