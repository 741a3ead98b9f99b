//! Jobs: calls of the app at a time or on a schedule. The scheduler stores them and triggers them when due.

mod deliver;

use std::sync::Arc;

use outrigger_offload::offload;
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::scheduler::{Scheduler, SchedulerError};
use outrigger_telemetry::trace::Tracer;
use outrigger_wire::runtime::v1::Job;
use outrigger_wire::scheduler::v1 as scheduled;
use prost_types::Any;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::deliver::Deliveries;

const LOG: &str = "dapr.runtime.jobs";

/// Why a call of the jobs API failed.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A mandatory field is missing: `Job`, `Name` or `Schedule`.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// The name is in both path and body.
    #[error("Set the job name in the url only")]
    NameTwice,
    /// The data can never be delivered: the job and the reason.
    #[error(
        "failed to schedule job due to: the data of job '{0}' cannot be delivered as a google.protobuf.Value: {1}. \
         Send less, or another type, which is delivered as bytes"
    )]
    Data(String, String),
    /// The job was not scheduled.
    #[error("failed to schedule job due to: {0}")]
    Schedule(SchedulerError),
    /// The job could not be read.
    #[error("failed to get job due to: {0}")]
    Get(SchedulerError),
    /// The jobs could not be listed.
    #[error("failed to list jobs due to: {0}")]
    List(SchedulerError),
    /// The job could not be deleted.
    #[error("failed to delete job due to: {0}")]
    Delete(SchedulerError),
}

/// A [`Cause`] with the app it concerns.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct JobsError {
    /// The error of the scheduler.
    pub cause: Cause,
    /// The owner of the jobs.
    pub app_id: String,
    /// Namespace of that app.
    pub namespace: String,
}

/// The app's jobs.
pub struct Jobs {
    scheduler: Arc<Scheduler>,
    deliveries: Arc<Deliveries>,
    /// The delivery tasks.
    tasks: TaskTracker,
    ending: CancellationToken,
}

impl Jobs {
    /// The jobs of `app`, stored in `scheduler`; they are triggered between [`Jobs::follow`] and
    /// [`Jobs::end`].
    pub fn new(
        scheduler: Arc<Scheduler>,
        app: Option<Arc<AppChannel>>,
        tracer: Tracer,
        metrics: Arc<SidecarMetrics>,
    ) -> Self {
        let deliveries = Arc::new(Deliveries::new(app, tracer, metrics));
        scheduler.deliver_jobs_to(Arc::clone(&deliveries) as _);
        Self {
            scheduler,
            deliveries,
            tasks: TaskTracker::new(),
            ending: CancellationToken::new(),
        }
    }

    /// Delivers due jobs while the app is healthy.
    pub fn follow(&self, health: Health) {
        if !self.scheduler.is_configured() {
            return;
        }
        let (scheduler, deliveries) = (Arc::clone(&self.scheduler), Arc::clone(&self.deliveries));
        let ending = self.ending.clone();
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = ending.cancelled() => return,
                    () = health.until_healthy() => {}
                }
                let resting = CancellationToken::new();
                let well = async {
                    scheduler.take_jobs(true);
                    tokio::select! {
                        () = ending.cancelled() => {}
                        () = health.until_unhealthy() => {}
                    }
                    scheduler.take_jobs(false);
                    resting.cancel();
                };
                tokio::join!(deliveries.run(&resting), well);
            }
        });
    }

    /// Stops starting jobs permanently.
    pub fn end(&self) {
        self.ending.cancel();
        self.tasks.close();
    }

    /// Waits until the app has handled all delivered jobs, after [`Jobs::end`].
    pub async fn drained(&self) {
        self.tasks.wait().await;
    }

    /// Schedules a job; `overwrite` replaces one with the same name.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn schedule(&self, job: Option<Job>, overwrite: bool) -> Result<(), JobsError> {
        let job = job.ok_or_else(|| self.failed(Cause::Empty("Job")))?;
        self.named(&job.name)?;
        if job.schedule.is_none() && job.due_time.is_none() {
            return Err(self.failed(Cause::Empty("Schedule")));
        }
        let Job {
            name,
            schedule,
            repeats,
            due_time,
            ttl,
            data,
            failure_policy,
        } = job;
        let (data, checked) = match data {
            None => (None, Ok(())),
            Some(data) => {
                let (data, checked) = checked(data).await;
                (Some(data), checked)
            }
        };
        if let Err(cause) = checked {
            return Err(self.failed(Cause::Data(name, cause)));
        }
        let job = scheduled::Job {
            schedule,
            repeats,
            due_time,
            ttl,
            data,
            failure_policy,
        };
        let metadata = self.scheduler.of_app();
        let scheduling = self.scheduler.schedule(&name, metadata, job, overwrite);
        scheduling.await.map_err(|error| {
            tracing::error!(target: LOG, "Error scheduling job {name} due to: {error}");
            self.failed(Cause::Schedule(error))
        })
    }

    /// Reads a job.
    ///
    /// # Errors
    /// [`JobsError`], also if the job does not exist.
    pub async fn get(&self, name: String) -> Result<Job, JobsError> {
        self.named(&name)?;
        match self.scheduler.get(&name, self.scheduler.of_app()).await {
            Ok(job) => Ok(with_name(name, job)),
            Err(error) => {
                tracing::error!(target: LOG, "Error getting job {name} due to: {error}");
                Err(self.failed(Cause::Get(error)))
            }
        }
    }

    /// Deletes a job; succeeds if there is none.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn delete(&self, name: &str) -> Result<(), JobsError> {
        self.named(name)?;
        let deleting = self.scheduler.delete(name, self.scheduler.of_app());
        deleting.await.map_err(|error| {
            tracing::error!(target: LOG, "Error deleting job {name} due to: {error}");
            self.failed(Cause::Delete(error))
        })
    }

    /// Deletes all jobs whose names start with `prefix`.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn delete_prefix(&self, prefix: &str) -> Result<(), JobsError> {
        let deleting = self.scheduler.delete_prefix(prefix, self.scheduler.of_app());
        deleting.await.map_err(|error| {
            tracing::error!(target: LOG, "Error deleting jobs {prefix}* due to: {error}");
            self.failed(Cause::Delete(error))
        })
    }

    /// Lists all jobs of the app.
    ///
    /// # Errors
    /// [`JobsError`].
    pub async fn list(&self) -> Result<Vec<Job>, JobsError> {
        let listed = self.scheduler.list(self.scheduler.of_app()).await;
        let listed = listed.map_err(|error| {
            tracing::error!(target: LOG, "Error listing jobs due to: {error}");
            self.failed(Cause::List(error))
        })?;
        let jobs = listed
            .into_iter()
            .map(|named| with_name(named.name, named.job.unwrap_or_default()));
        Ok(jobs.collect())
    }

    /// The error for a request that names its job twice.
    pub fn named_twice(&self) -> JobsError {
        self.failed(Cause::NameTwice)
    }

    fn named(&self, name: &str) -> Result<(), JobsError> {
        if name.is_empty() {
            return Err(self.failed(Cause::Empty("Name")));
        }
        Ok(())
    }

    fn failed(&self, cause: Cause) -> JobsError {
        JobsError {
            cause,
            app_id: self.scheduler.app_id().to_owned(),
            namespace: self.scheduler.namespace().to_owned(),
        }
    }
}

fn with_name(name: String, job: scheduled::Job) -> Job {
    let scheduled::Job {
        schedule,
        repeats,
        due_time,
        ttl,
        data,
        failure_policy,
    } = job;
    Job {
        name,
        schedule,
        repeats,
        due_time,
        ttl,
        data,
        failure_policy,
    }
}

/// Checks whether data can be delivered; large data is checked off the serving thread.
async fn checked(data: Any) -> (Any, Result<(), String>) {
    let size = data.value.len();
    let check = move || {
        let checked = deliver::check(&data);
        (data, checked)
    };
    offload(size, check).await
}

#[cfg(test)]
mod tests {
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    #[tokio::test]
    async fn checks_large_data_off_thread() {
        for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let data = Any {
                type_url: String::new(),
                value: vec![0; length],
            };
            let (was_at_once, (data, result)) = done_at_once(checked(data)).await;
            assert_eq!((was_at_once, result), (at_once, Ok(())), "{length}");
            assert_eq!(data.value.len(), length);
        }
    }
}
