//! The parts that depend on the control plane: jobs (scheduler), actors (placement), and workflows, which are
//! actors.

use std::sync::Arc;

use outrigger_blocks::jobs::Jobs;
use outrigger_blocks_actors::actors::{Actors, Placement};
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_runtime::life::{Condition, Lifecycle, Stage, Tasks};
use outrigger_runtime::scheduler::Scheduler;

use super::LOG;

pub(super) struct Cluster {
    pub(super) scheduler: Arc<Scheduler>,
    /// Set once the schedulers are known, or if there are none. Taken when the list is followed.
    pub(super) schedulers_known: Option<Condition>,
    pub(super) actors: Arc<Actors>,
    pub(super) workflows: Arc<Workflows>,
    /// Taken when placement is followed.
    pub(super) placement: Option<Placement>,
}

impl Cluster {
    /// Follows the list of schedulers and receives triggers.
    pub(super) fn start_scheduler(&mut self, jobs: &Arc<Jobs>, lifecycle: &mut Lifecycle) {
        if let Some(known) = self.schedulers_known.take() {
            let Tasks { tasks, stop } = lifecycle.tasks(Stage::Components, "the list of schedulers");
            tasks.spawn(Arc::clone(&self.scheduler).follow_hosts(known, stop));
        }
        self.scheduler.begin_triggers();
        let (ending, scheduler) = (Arc::clone(jobs), Arc::clone(&self.scheduler));
        let stop = move || {
            ending.end();
            scheduler.end_triggers();
        };
        lifecycle.add(Stage::Reading, "triggers of jobs", stop, async {});
        let (jobs, scheduler) = (Arc::clone(jobs), Arc::clone(&self.scheduler));
        let drained = async move {
            jobs.drained().await;
            scheduler.triggers_ended().await;
        };
        lifecycle.add(Stage::Events, "jobs that the app handles", || {}, drained);
    }

    /// Registers the end of the workflow workers.
    pub(super) fn end_workers_with(&self, lifecycle: &mut Lifecycle) {
        let (ending, ended) = (Arc::clone(&self.workflows), Arc::clone(&self.workflows));
        let ended = async move { ended.has_ended().await };
        lifecycle.add(Stage::Events, "workers of workflows", move || ending.end(), ended);
    }

    /// Actors end while the app can still use the APIs.
    pub(super) fn follow_placement(&mut self, lifecycle: &mut Lifecycle) {
        let Some(placement) = self.placement.take() else {
            tracing::info!(target: LOG, "Actor runtime disabled: no --placement-host-address is given");
            return;
        };
        self.actors.take_reminders();
        let Tasks { tasks, stop } = lifecycle.tasks(Stage::Events, "actors");
        tasks.spawn(Arc::clone(&self.actors).run(placement, stop));
    }
}
