//! The queue of workloads of a kind whose services are to be reconciled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_kube::{Change, Meta, Store};
use tokio::time::Instant;

use super::existing::ExistingService;
use super::owners::Workloads;
use super::workload::{Owner, Workload};
use super::{Conflicts, Job, job_for_service, jobs};

/// Workloads of a kind whose services are to be reconciled.
pub(super) struct Queue<K> {
    store: Arc<Store<Workload<K>>>,
    /// Ready to be tried.
    waiting: HashMap<Meta, Job<K>>,
    /// To be tried after a pause.
    paused: HashMap<Meta, Job<K>>,
    /// In progress; at most one attempt per workload.
    busy: HashSet<Meta>,
    conflicts: Conflicts,
}

impl<K: Owner> Queue<K> {
    /// All workloads in the store.
    pub(super) fn of(store: Arc<Store<Workload<K>>>) -> Self {
        Self {
            waiting: jobs(&store),
            paused: HashMap::new(),
            busy: HashSet::new(),
            conflicts: Conflicts::default(),
            store,
        }
    }

    /// Queues all workloads again, because changes were lost.
    pub(super) fn start_over(&mut self) {
        self.paused.clear();
        self.waiting = jobs(&self.store);
    }

    /// The next workload to try; in progress until [`Self::ended`].
    pub(super) fn take(&mut self) -> Option<(Meta, Job<K>)> {
        let free = self.waiting.keys().find(|meta| !self.busy.contains(*meta));
        let meta = free?.clone();
        let job = self.waiting.remove(&meta)?;
        self.busy.insert(meta.clone());
        Some((meta, job))
    }

    /// Handles a changed workload. Services of deleted ones are garbage collected by the cluster.
    pub(super) fn changed(&mut self, change: &Change<Workload<K>>) {
        self.paused.remove(&change.meta);
        match &change.new {
            Some(workload) => {
                let job = Job::new(Arc::clone(workload));
                self.waiting.insert(change.meta.clone(), job);
            }
            None => {
                self.waiting.remove(&change.meta);
            }
        }
    }

    /// Handles a changed service. Returns a workload and its pause if the service is not to be recreated at
    /// once.
    pub(super) fn service_changed(
        &mut self,
        change: &Change<ExistingService>,
        workloads: &Workloads,
    ) -> Option<(Meta, Duration)> {
        let (meta, job) = job_for_service(change, &self.store, workloads)?;
        let Some(pause) = self.conflicts.pause(&meta, Instant::now()) else {
            self.paused.remove(&meta);
            self.waiting.insert(meta, job);
            return None;
        };
        self.paused.insert(meta.clone(), job);
        Some((meta, pause))
    }

    /// Handles the end of an attempt, which failed if there is a job. Returns a workload and its pause.
    pub(super) fn ended(
        &mut self,
        meta: Meta,
        failed: Option<(Job<K>, Duration)>,
    ) -> Option<(Meta, Duration)> {
        self.busy.remove(&meta);
        let (job, pause) = failed?;
        // A changed workload is queued already; a deleted one needs nothing.
        let now = self.store.get(&meta.namespace, &meta.name)?;
        if !Arc::ptr_eq(&now, &job.workload) || self.waiting.contains_key(&meta) {
            return None;
        }
        self.paused.insert(meta.clone(), job);
        Some((meta, pause))
    }

    /// Handles the end of a pause.
    pub(super) fn pause_ended(&mut self, meta: Meta) {
        if let Some(job) = self.paused.remove(&meta) {
            self.waiting.insert(meta, job);
        }
    }
}
