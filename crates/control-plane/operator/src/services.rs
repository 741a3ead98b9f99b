//! The services of apps, whose DNS names sidecars use to find each other.

mod desired;
mod existing;
mod owners;
mod queue;
mod workload;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_backoff::Backoff;
use outrigger_kube::{
    ApiError, Change, Changes, Client, Kind, Meta, Progress, Reflector, Scope, Store, Watched,
};
use serde_json::Value;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Metrics, ServiceChange};
use desired::{differs, reasons, service};
use existing::{Controller, ExistingService};
use owners::Workloads;
use queue::Queue;
use workload::{Deployment, Owner, Rollout, StatefulSet, Workload};

const LOG: &str = "dapr.operator.handlers";
/// Maximum number of services reconciled concurrently.
const MAX_CONCURRENT: usize = 100;
/// First pause after a failure; it doubles up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const FULL_PAUSE: Duration = Duration::from_secs(30);
/// How often a service is recreated at once if another writer changes it too, each within a minute of the
/// last; then a pause applies.
const MAX_IMMEDIATE_RECREATIONS: u32 = 4;
/// Number of consecutive failures after which they are logged as an error.
const LOGGED_AFTER: u32 = 8;

/// A workload whose service is to be reconciled, with its number of consecutive failures.
struct Job<K> {
    workload: Arc<Workload<K>>,
    failures: u32,
    /// Whether to take over the service of another workload with the same app id, because this one was
    /// deployed later.
    takes: bool,
}

impl<K> Job<K> {
    /// For a workload that has changed or has the service already.
    fn new(workload: Arc<Workload<K>>) -> Self {
        Self {
            workload,
            failures: 0,
            takes: true,
        }
    }

    /// For a workload that exists, of unknown age.
    fn found(workload: Arc<Workload<K>>) -> Self {
        Self {
            takes: false,
            ..Self::new(workload)
        }
    }
}

/// Jobs for all workloads in a store.
fn jobs<K: Owner>(store: &Store<Workload<K>>) -> HashMap<Meta, Job<K>> {
    let all = store.all().into_iter();
    all.map(|(meta, workload)| (meta, Job::found(workload))).collect()
}

/// The job for a service that was deleted or changed. Of several workloads with one app id, the service's
/// owner recreates it, so that they do not wait for each other. When the owner and its service are deleted,
/// another workload creates the service.
fn job_for_service<K: Owner>(
    change: &Change<ExistingService>,
    store: &Store<Workload<K>>,
    workloads: &Workloads,
) -> Option<(Meta, Job<K>)> {
    let known = change.new.as_ref().or(change.old.as_ref())?;
    if workloads.want(&known.controller, &change.meta) {
        let meta = known.owner::<K>(&change.meta.namespace)?;
        let workload = store.get(&meta.namespace, &meta.name)?;
        let right = |made: &Arc<ExistingService>| !differs(&made.fields(), &service(&meta, &workload));
        let service_changed = !change.new.as_ref().is_some_and(right);
        return service_changed.then(|| (meta, Job::new(workload)));
    }
    if change.new.is_some() {
        return None;
    }
    let heir = store.find(|meta, workload| {
        meta.namespace == change.meta.namespace && workload.service == change.meta.name
    });
    heir.map(|(meta, workload)| (meta, Job::found(workload)))
}

/// Whether the service belongs to another existing workload that wants it too.
async fn is_another_s<K: Owner>(
    found: &Value,
    meta: &Meta,
    workload: &Workload<K>,
    workloads: &Workloads,
) -> bool {
    let Some(owner) =
        Controller::of(found).filter(|owner| owner.meta::<K>(&meta.namespace).as_ref() != Some(meta))
    else {
        return false;
    };
    workloads.answered().await;
    let service = Meta {
        namespace: meta.namespace.clone(),
        name: workload.service.clone(),
    };
    workloads.want(&owner, &service)
}

/// Services with other writers, and how often they were recreated.
#[derive(Default)]
struct Conflicts(HashMap<Meta, (Instant, u32)>);

impl Conflicts {
    /// How long to wait before recreating a workload's service.
    fn pause(&mut self, workload: &Meta, now: Instant) -> Option<Duration> {
        self.0
            .retain(|_, (last, _)| now.duration_since(*last) <= 2 * FULL_PAUSE);
        let (last, times) = self.0.entry(workload.clone()).or_insert((now, 0));
        (*last, *times) = (now, times.saturating_add(1));
        times
            .checked_sub(MAX_IMMEDIATE_RECREATIONS)
            .filter(|beyond| *beyond > 0)
            .map(pause)
    }
}

/// Pause before the next attempt.
fn pause(failures: u32) -> Duration {
    Backoff::new(FIRST_PAUSE, FULL_PAUSE).after(failures.saturating_sub(1))
}

/// Returns the workload after the pause.
async fn after_pause(meta: Meta, pause: Duration) -> Meta {
    tokio::time::sleep(pause).await;
    meta
}

/// Creates and updates the services.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    pub(crate) client: Client,
    pub(crate) metrics: Arc<Metrics>,
    /// The only namespace; `None` means all.
    pub(crate) namespace: Option<String>,
    pub(crate) rollouts: bool,
}

impl Services {
    /// Reconciles the services of all workloads until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let made = Reflector::<ExistingService>::new(self.client.clone(), self.scope(existing::SELECTOR));
        self.metrics.watches(&made.state());
        let there = (made.store(), made.progress());
        let (deployments, sets) = (self.reflector::<Deployment>(), self.reflector::<StatefulSet>());
        let rollouts = self.rollouts.then(|| self.reflector::<Rollout>());
        let workloads = Workloads::of(&deployments, &sets, rollouts.as_ref());
        let rollouts = async {
            match rollouts {
                Some(rollouts) => self.follow(rollouts, &workloads, &there, stop.clone()).await,
                None => stop.cancelled().await,
            }
        };
        let deployments = self.follow(deployments, &workloads, &there, stop.clone());
        let sets = self.follow(sets, &workloads, &there, stop.clone());
        tokio::join!(rollouts, deployments, sets, made.run(stop.clone()));
    }

    fn scope(&self, query: &str) -> Scope {
        Scope {
            namespace: self.namespace.clone(),
            query: query.to_owned(),
        }
    }

    fn reflector<K: Owner>(&self) -> Reflector<Workload<K>> {
        let reflector = Reflector::new(self.client.clone(), self.scope(""));
        self.metrics.watches(&reflector.state());
        reflector
    }

    /// Reconciles the services of a kind of workloads. `made` has the existing services and the progress of
    /// their list.
    async fn follow<K: Owner>(
        &self,
        reflector: Reflector<Workload<K>>,
        workloads: &Workloads,
        made: &(Arc<Store<ExistingService>>, watch::Receiver<Progress>),
        stop: CancellationToken,
    ) {
        let (store, mut progress) = (reflector.store(), reflector.progress());
        let (services, mut listed) = (made.0.follow(), made.1.clone());
        let reconciling = async {
            // Existing workloads leave services to each other; one deployed later takes over.
            let complete = progress.wait_for(|progress| *progress == Progress::Complete);
            if complete.await.is_err() {
                return;
            }
            self.reconcile(store, services, workloads).await;
        };
        // Services first, so that no deletion is missed.
        let keeping = async {
            // The sender lives in the reflector, or the reflector has ended.
            let _ = listed.wait_for(|progress| *progress != Progress::Pending).await;
            reflector.run(stop).await;
        };
        tokio::select! {
            () = keeping => {}
            () = reconciling => {}
        }
    }

    /// Reconciles the services of all workloads in `store`, and again after changes.
    async fn reconcile<K: Owner>(
        &self,
        store: Arc<Store<Workload<K>>>,
        mut services: Receiver<Changes<ExistingService>>,
        workloads: &Workloads,
    ) {
        let mut changes = store.follow();
        let mut queue = Queue::of(store);
        let (mut running, mut pauses) = (FuturesUnordered::new(), FuturesUnordered::new());
        loop {
            while running.len() < MAX_CONCURRENT
                && let Some((meta, job)) = queue.take()
            {
                running.push(self.attempt(meta, job, workloads));
            }
            tokio::select! {
                changes = changes.recv() => match changes {
                    Ok(changes) => changes.iter().for_each(|change| queue.changed(change)),
                    Err(RecvError::Lagged(_)) => queue.start_over(),
                    Err(RecvError::Closed) => return,
                },
                changes = services.recv() => match changes {
                    Ok(changes) => for change in changes.iter() {
                        self.count_deleted::<K>(change);
                        if let Some((meta, pause)) = queue.service_changed(change, workloads) {
                            pauses.push(after_pause(meta, pause));
                        }
                    },
                    Err(RecvError::Lagged(_)) => queue.start_over(),
                    Err(RecvError::Closed) => return,
                },
                Some((meta, failed)) = running.next() => {
                    if let Some((meta, pause)) = queue.ended(meta, failed) {
                        pauses.push(after_pause(meta, pause));
                    }
                }
                Some(meta) = pauses.next() => queue.pause_ended(meta),
            }
        }
    }

    fn count_deleted<K: Owner>(&self, change: &Change<ExistingService>) {
        if change.new.is_none()
            && let Some(gone) = change.old.as_ref().filter(|made| made.is_of::<K>())
        {
            self.metrics.service(&gone.app_id, ServiceChange::Deleted);
        }
    }

    /// Makes one attempt. A failure is retried after a pause, except for permanent ones, which wait for a
    /// change of the workload or of the service.
    async fn attempt<K: Owner>(
        &self,
        meta: Meta,
        mut job: Job<K>,
        workloads: &Workloads,
    ) -> (Meta, Option<(Job<K>, Duration)>) {
        let workload = &job.workload;
        let error = match self.ensure(&meta, &job, workloads).await {
            Ok(done) => {
                if let Some(done) = done {
                    self.metrics.service(&workload.app_id, done);
                }
                return (meta, None);
            }
            Err(error) => error,
        };
        if error.is_invalid() {
            tracing::error!(
                target: LOG,
                "cannot create the service {} of {} {}/{}: {error}; {}; retrying when the workload changes",
                workload.service, Workload::<K>::KIND.plural, meta.namespace, meta.name, reasons(workload)
            );
            return (meta, None);
        }
        job.failures = job.failures.saturating_add(1);
        let pause = pause(job.failures);
        if job.failures == LOGGED_AFTER || (job.failures == 1 && error.is_forbidden()) {
            tracing::error!(
                target: LOG,
                "cannot create the service {} of {} {}/{}: {error}; retrying at least every {} s",
                workload.service, Workload::<K>::KIND.plural, meta.namespace, meta.name, FULL_PAUSE.as_secs()
            );
        } else {
            tracing::debug!(target: LOG, "service {}/{}: {error}", meta.namespace, workload.service);
        }
        (meta, Some((job, pause)))
    }

    /// Reconciles the service and returns the change that was needed.
    async fn ensure<K: Owner>(
        &self,
        meta: &Meta,
        job: &Job<K>,
        workloads: &Workloads,
    ) -> Result<Option<ServiceChange>, ApiError> {
        let (namespace, workload) = (Some(meta.namespace.as_str()), &*job.workload);
        let wanted = service(meta, workload);
        let found = self
            .client
            .get::<Value>(Kind::SERVICES, namespace, &workload.service)
            .await;
        match found {
            Err(ApiError::NotFound { .. }) => {
                self.client
                    .create::<Value>(Kind::SERVICES, namespace, &wanted)
                    .await?;
                Ok(Some(ServiceChange::Created))
            }
            Err(error) => Err(error),
            Ok(found) if !differs(&found, &wanted) => Ok(None),
            Ok(found) => {
                if !job.takes && is_another_s(&found, meta, workload, workloads).await {
                    return Ok(None);
                }
                let next = desired::onto(found, wanted);
                self.client
                    .replace::<Value>(Kind::SERVICES, namespace, &workload.service, &next)
                    .await?;
                Ok(Some(ServiceChange::Updated))
            }
        }
    }
}

#[cfg(test)]
mod tests;
