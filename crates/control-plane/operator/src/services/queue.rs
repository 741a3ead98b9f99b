//! What is to be done for the services of a kind of workloads, and when.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_kube::{Change, Meta, Store};
use tokio::time::Instant;

use super::known::Workloads;
use super::made::Made;
use super::workload::{Owner, Workload};
use super::{Conflicts, Job, jobs, to_mend};

/// Workloads of a kind whose services are to be made.
pub(super) struct Queue<K> {
    store: Arc<Store<Workload<K>>>,
    /// To be tried now.
    waiting: HashMap<Meta, Job<K>>,
    /// To be tried once their pause is over.
    resting: HashMap<Meta, Job<K>>,
    /// Under way: one of them at a time.
    busy: HashSet<Meta>,
    conflicts: Conflicts,
}

impl<K: Owner> Queue<K> {
    /// All that the store has.
    pub(super) fn of(store: Arc<Store<Workload<K>>>) -> Self {
        Self {
            waiting: jobs(&store),
            resting: HashMap::new(),
            busy: HashSet::new(),
            conflicts: Conflicts::default(),
            store,
        }
    }

    /// All that the store has once more: changes were lost.
    pub(super) fn start_over(&mut self) {
        self.resting.clear();
        self.waiting = jobs(&self.store);
    }

    /// What is to be tried now; it is under way until it [has ended](Self::ended).
    pub(super) fn take(&mut self) -> Option<(Meta, Job<K>)> {
        let free = self.waiting.keys().find(|meta| !self.busy.contains(*meta));
        let meta = free?.clone();
        let job = self.waiting.remove(&meta)?;
        self.busy.insert(meta.clone());
        Some((meta, job))
    }

    /// A workload changed. What is gone takes its service along: the cluster collects what it owned.
    pub(super) fn changed(&mut self, change: &Change<Workload<K>>) {
        self.resting.remove(&change.meta);
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

    /// A service changed. What rests for it, and for how long, where it is not to be made again at once.
    pub(super) fn mend(&mut self, change: &Change<Made>, workloads: &Workloads) -> Option<(Meta, Duration)> {
        let (meta, job) = to_mend(change, &self.store, workloads)?;
        let Some(pause) = self.conflicts.pause(&meta, Instant::now()) else {
            self.resting.remove(&meta);
            self.waiting.insert(meta, job);
            return None;
        };
        self.resting.insert(meta.clone(), job);
        Some((meta, pause))
    }

    /// An attempt ended, and failed where there is a job. What rests, and for how long.
    pub(super) fn ended(
        &mut self,
        meta: Meta,
        failed: Option<(Job<K>, Duration)>,
    ) -> Option<(Meta, Duration)> {
        self.busy.remove(&meta);
        let (job, pause) = failed?;
        // What has changed meanwhile waits already; what is gone needs nothing.
        let now = self.store.get(&meta.namespace, &meta.name)?;
        if !Arc::ptr_eq(&now, &job.workload) || self.waiting.contains_key(&meta) {
            return None;
        }
        self.resting.insert(meta.clone(), job);
        Some((meta, pause))
    }

    /// A pause is over.
    pub(super) fn rested(&mut self, meta: Meta) {
        if let Some(job) = self.resting.remove(&meta) {
            self.waiting.insert(meta, job);
        }
    }
}
