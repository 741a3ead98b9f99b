//! Reminders of workflow actors.

use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use outrigger_backoff::Backoff;
use outrigger_runtime::scheduler::SchedulerError;
use outrigger_wire::common::v1::job_failure_policy::Policy;
use outrigger_wire::common::v1::{JobFailurePolicy, JobFailurePolicyConstant};
use outrigger_wire::scheduler::v1::Job;
use outrigger_workflow::names::{self, RUN_ACTIVITY};
use outrigger_workflow::{Instance, Origin};
use prost_types::{Any, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::engine::{Engine, MAX_CONCURRENT};
use super::error::retry_later;
use super::protocol::{any_for, now, random};

/// How long to retry an unavailable scheduler.
const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Time limit for postponing a reminder; after it the reminder is redelivered in a second instead.
pub(crate) const POSTPONE_TIMEOUT: Duration = Duration::from_secs(2);

impl Engine {
    /// Runs a postponed instance now: it is leaving, or a worker has connected.
    pub(crate) async fn run_now(&self, id: &str) {
        let name = names::start_reminder(random());
        let set = self.remind(&self.types.workflow, id, &name, None, None);
        // On failure the postponed reminder runs it later.
        let _set = timeout(POSTPONE_TIMEOUT, set).await;
    }

    /// Sets the reminder that starts an execution. If it is due `later`, it names the execution, so that
    /// reminders of earlier executions of the instance do not start it early.
    pub(crate) async fn remind_start(
        &self,
        id: &str,
        instance: &Instance,
        due: Option<Timestamp>,
        later: bool,
    ) -> Result<(), Status> {
        let name = names::start_reminder(random());
        let origin = || Origin::of(instance.execution());
        let data = later.then(|| any_for("google.protobuf.Empty", &(), &origin()));
        let kind = &self.types.workflow;
        self.remind_limited(kind, id, &name, due, data, workflow_key(instance))
            .await
    }

    /// Sets a reminder, replacing one of the same name. Failed deliveries are retried every second without
    /// limit.
    pub(crate) async fn remind(
        &self,
        kind: &str,
        id: &str,
        name: &str,
        due: Option<Timestamp>,
        data: Option<Any>,
    ) -> Result<(), Status> {
        self.remind_limited(kind, id, name, due, data, None).await
    }

    /// As [`Engine::remind`]. Limits of the scheduler count it by `key`, the name of the workflow or activity.
    pub(crate) async fn remind_limited(
        &self,
        kind: &str,
        id: &str,
        name: &str,
        due: Option<Timestamp>,
        data: Option<Any>,
        key: Option<String>,
    ) -> Result<(), Status> {
        let end = Instant::now() + SCHEDULER_TIMEOUT;
        let passes = |error: &SchedulerError| {
            let passes = matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded);
            passes && Instant::now() < end
        };
        self.remind_while(passes, (kind, id, name), due, data, key).await
    }

    /// As [`Engine::remind_limited`], for an instance with stored events: retried until the caller gives up,
    /// unless that cannot help.
    pub(crate) async fn remind_until_stored(
        &self,
        id: &str,
        name: &str,
        due: Option<Timestamp>,
        key: Option<String>,
    ) -> Result<(), Status> {
        let kind = &self.types.workflow;
        self.remind_while(may_pass, (kind, id, name), due, None, key)
            .await
    }

    async fn remind_while(
        &self,
        passes: impl Fn(&SchedulerError) -> bool,
        (kind, id, name): (&str, &str, &str),
        due: Option<Timestamp>,
        data: Option<Any>,
        key: Option<String>,
    ) -> Result<(), Status> {
        let job = Job {
            due_time: Some(format_due(due)),
            data,
            failure_policy: Some(JobFailurePolicy {
                policy: Some(Policy::Constant(JobFailurePolicyConstant {
                    interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
                    max_retries: None,
                })),
            }),
            ..Job::default()
        };
        let actors = self.actors().map_err(retry_later)?;
        let mut pauses = BACKOFF;
        loop {
            let Err(error) = actors
                .set_reminder(kind, id, name, job.clone(), key.clone())
                .await
            else {
                return Ok(());
            };
            if !passes(&error) {
                let text = format!("reminder {name} of actor {kind}||{id} was not stored: {error}");
                return Err(retry_later(text));
            }
            sleep(pauses.pause()).await;
        }
    }

    /// Deletes a reminder; succeeds if there is none.
    pub(crate) async fn forget(&self, kind: &str, id: &str, name: &str) -> Result<(), Status> {
        let deleted = self
            .actors()
            .map_err(retry_later)?
            .delete_reminder(kind, id, name)
            .await;
        deleted.map_err(|error| {
            retry_later(format!(
                "reminder {name} of actor {kind}||{id} was not deleted: {error}"
            ))
        })
    }

    /// Deletes the reminders of activities.
    pub(crate) async fn forget_activities(&self, activities: Vec<String>) -> Result<(), Status> {
        let kind = &self.types.activity;
        let forgotten = activities
            .into_iter()
            .map(|id| async move { self.forget(kind, &id, RUN_ACTIVITY).await });
        let forgotten: Vec<_> = forgotten.collect();
        let forgotten = stream::iter(forgotten).buffer_unordered(MAX_CONCURRENT);
        forgotten.try_collect().await
    }

    /// Deletes the reminders of an instance and its activities; `with_retention`: also of its purge. Not by
    /// prefix, because another instance's id may have the same one.
    pub(crate) async fn forget_instance(
        &self,
        id: &str,
        activities: Vec<String>,
        with_retention: bool,
    ) -> Result<(), Status> {
        let types = &self.types;
        tokio::try_join!(
            self.forget_all(&types.workflow, id),
            self.forget_activities(activities),
            async {
                match with_retention {
                    true => self.forget_all(&types.retentioner, id).await,
                    false => Ok(()),
                }
            }
        )?;
        Ok(())
    }

    /// Deletes all reminders of an actor.
    pub(crate) async fn forget_all(&self, kind: &str, id: &str) -> Result<(), Status> {
        let deleted = self
            .actors()
            .map_err(retry_later)?
            .delete_reminders(kind, id, false)
            .await;
        deleted.map_err(|error| {
            retry_later(format!(
                "reminders of actor {kind}||{id} were not deleted: {error}"
            ))
        })
    }
}

/// Whether a retry may help.
fn may_pass(error: &SchedulerError) -> bool {
    match error {
        SchedulerError::Disabled => false,
        SchedulerError::Status(status) => !matches!(
            status.code(),
            Code::InvalidArgument
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::FailedPrecondition
                | Code::Unimplemented
                | Code::NotFound
        ),
    }
}

/// The key of the reminders that run an instance.
pub(crate) fn workflow_key(instance: &Instance) -> Option<String> {
    Some(instance.start_event()?.name.clone())
}

/// Formats RFC 3339 with fractions of a second, so that a timer is not early.
fn format_due(due: Option<Timestamp>) -> String {
    let due = due.unwrap_or_else(now);
    let known = jiff::Timestamp::new(due.seconds, due.nanos.clamp(0, 999_999_999));
    let furthest = match due.seconds < 0 {
        true => jiff::Timestamp::UNIX_EPOCH,
        false => jiff::Timestamp::MAX,
    };
    known.unwrap_or(furthest).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_due_times_as_rfc_3339() {
        let at = |seconds, nanos| format_due(Some(Timestamp { seconds, nanos }));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_700_000_000, 250_000_000), "2023-11-14T22:13:20.25Z");
        assert_eq!(at(i64::MAX, 0), "9999-12-30T22:00:00.999999999Z");
        assert_eq!(
            at(i64::MIN, i32::MIN),
            "1970-01-01T00:00:00Z",
            "long over, not far away"
        );
    }
}
