//! Reminders of the sidecar's own actors, with uninterpreted data, also for types of other apps.

use outrigger_runtime::scheduler::SchedulerError;
use outrigger_wire::scheduler::v1::{Job, JobMetadata};

use super::Actors;

impl Actors {
    /// Sets a reminder, replacing one of the same name. Limits of the scheduler count its triggers by `key`.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn set_reminder(
        &self,
        kind: &str,
        id: &str,
        name: &str,
        job: Job,
        key: Option<String>,
    ) -> Result<(), SchedulerError> {
        let scheduler = &self.with.scheduler;
        let metadata = JobMetadata {
            concurrency_key: key,
            ..scheduler.of_actor(kind, id)
        };
        scheduler.schedule(name, metadata, job, true).await
    }

    /// Deletes a reminder; succeeds if there is none.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn delete_reminder(&self, kind: &str, id: &str, name: &str) -> Result<(), SchedulerError> {
        let scheduler = &self.with.scheduler;
        scheduler.delete(name, scheduler.of_actor(kind, id)).await
    }

    /// Deletes all reminders of an actor; `prefix`: of all actors whose ids have the prefix `id`.
    ///
    /// # Errors
    /// [`SchedulerError`].
    pub async fn delete_reminders(&self, kind: &str, id: &str, prefix: bool) -> Result<(), SchedulerError> {
        let scheduler = &self.with.scheduler;
        scheduler.delete_all(scheduler.of_actor(kind, id), prefix).await
    }
}
