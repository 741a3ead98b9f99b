//! The services of apps: by their DNS names sidecars find each other.

mod desired;
mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_kube::{ApiError, Client, Kind, Meta, Reflector, Scope, Watched};
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Done, Metrics};
use desired::{differs, service};
use workload::{Deployment, Owner, Rollout, StatefulSet, Workload};

const LOG: &str = "dapr.operator.handlers";
/// Services that are looked at at the same time.
const AT_ONCE: usize = 100;
/// Attempts for a service, until its workload changes again, and the pause before the second; it doubles.
const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// Makes the services.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    pub(crate) client: Client,
    pub(crate) metrics: Arc<Metrics>,
    /// The only namespace; all without.
    pub(crate) namespace: Option<String>,
    pub(crate) rollouts: bool,
}

impl Services {
    /// Makes services for all workloads until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let rollouts = async {
            match self.rollouts {
                true => self.follow::<Rollout>(stop.clone()).await,
                false => stop.cancelled().await,
            }
        };
        let deployments = self.follow::<Deployment>(stop.clone());
        let sets = self.follow::<StatefulSet>(stop.clone());
        tokio::join!(rollouts, deployments, sets);
    }

    async fn follow<K: Owner>(&self, stop: CancellationToken) {
        let scope = Scope {
            namespace: self.namespace.clone(),
            query: String::new(),
        };
        let reflector = Reflector::<Workload<K>>::new(self.client.clone(), scope);
        let store = reflector.store();
        let mut changes = store.follow();
        let reconciling = async {
            let mut waiting: HashMap<Meta, Arc<Workload<K>>> = HashMap::new();
            let mut running = FuturesUnordered::new();
            loop {
                while running.len() < AT_ONCE {
                    let Some(meta) = waiting.keys().next().cloned() else {
                        break;
                    };
                    if let Some(workload) = waiting.remove(&meta) {
                        running.push(self.reconcile(meta, workload));
                    }
                }
                tokio::select! {
                    change = changes.recv() => match change {
                        // What is gone takes its service along: the cluster collects what it owned.
                        Ok(change) => match change.new {
                            Some(workload) => drop(waiting.insert(change.meta, workload)),
                            None => drop(waiting.remove(&change.meta)),
                        },
                        Err(RecvError::Lagged(_)) => waiting.extend(store.all()),
                        Err(RecvError::Closed) => return,
                    },
                    Some(()) = running.next() => {}
                }
            }
        };
        tokio::select! {
            () = reflector.run(stop) => {}
            () = reconciling => {}
        }
    }

    async fn reconcile<K: Owner>(&self, meta: Meta, workload: Arc<Workload<K>>) {
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS {
            match self.ensure(&meta, &workload).await {
                Ok(Some(done)) => return self.metrics.service(&workload.app_id, done),
                Ok(None) => return,
                Err(error) if attempt == ATTEMPTS || error.is_forbidden() => {
                    tracing::error!(
                        target: LOG,
                        "cannot make the service {} of {} {}/{}: {error}; it is tried again when that changes",
                        workload.service, Workload::<K>::KIND.plural, meta.namespace, meta.name
                    );
                    return;
                }
                Err(error) => {
                    tracing::debug!(target: LOG, "service {}/{}: {error}", meta.namespace, workload.service);
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
            }
        }
    }

    /// Makes the service what it should be, and tells what that took.
    async fn ensure<K: Owner>(&self, meta: &Meta, workload: &Workload<K>) -> Result<Option<Done>, ApiError> {
        let namespace = Some(meta.namespace.as_str());
        let wanted = service(meta, workload);
        let found = self
            .client
            .get::<Value>(Kind::SERVICES, namespace, &workload.service)
            .await;
        match found {
            Err(ApiError::NotFound(_)) => {
                self.client
                    .create::<Value>(Kind::SERVICES, namespace, &wanted)
                    .await?;
                Ok(Some(Done::Created))
            }
            Err(error) => Err(error),
            Ok(found) if !differs(&found, &wanted) => Ok(None),
            Ok(found) => {
                let next = desired::onto(found, wanted);
                self.client
                    .replace::<Value>(Kind::SERVICES, namespace, &workload.service, &next)
                    .await?;
                Ok(Some(Done::Updated))
            }
        }
    }
}

#[cfg(test)]
mod tests;
