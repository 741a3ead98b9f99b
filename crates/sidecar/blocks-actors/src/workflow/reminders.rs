//! Reminders of the actors of workflows.

use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use outrigger_backoff::Backoff;
use outrigger_wire::common::v1::job_failure_policy::Policy;
use outrigger_wire::common::v1::{JobFailurePolicy, JobFailurePolicyConstant};
use outrigger_wire::scheduler::v1::Job;
use outrigger_workflow::Origin;
use outrigger_workflow::names::{self, RUN_ACTIVITY};
use prost_types::{Any, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::engine::{AT_ONCE, Engine};
use super::error::retry_later;
use super::protocol::{any_for, now, random};

/// How long a scheduler that does not answer is asked again.
const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long it may take to put a reminder off, before it comes again in a second instead.
pub(crate) const POSTPONE_TIMEOUT: Duration = Duration::from_secs(2);

impl Engine {
    /// Has an instance run that was to run later: it leaves, or workers have come.
    pub(crate) async fn run_now(&self, id: &str) {
        let name = names::start_reminder(random());
        let set = self.remind(&self.types.workflow, id, &name, None, None);
        // It comes later all the same.
        let _set = timeout(POSTPONE_TIMEOUT, set).await;
    }

    /// Sets the reminder that begins an execution. One that begins `later` says which: it is told from those that another
    /// execution of the instance has left, which begin nothing before its time.
    pub(crate) async fn remind_start(
        &self,
        id: &str,
        execution: &str,
        due: Option<Timestamp>,
        later: bool,
    ) -> Result<(), Status> {
        let name = names::start_reminder(random());
        let data = later.then(|| any_for("google.protobuf.Empty", &(), &Origin::of(execution)));
        self.remind(&self.types.workflow, id, &name, due, data).await
    }

    /// Sets a reminder, in place of one of its name. One that fails comes again every second, for good.
    pub(crate) async fn remind(
        &self,
        kind: &str,
        id: &str,
        name: &str,
        due: Option<Timestamp>,
        data: Option<Any>,
    ) -> Result<(), Status> {
        let job = Job {
            due_time: Some(spelled(due)),
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
        let mut pauses = PAUSES;
        let end = Instant::now() + SCHEDULER_TIMEOUT;
        loop {
            let Err(error) = actors.set_reminder(kind, id, name, job.clone()).await else {
                return Ok(());
            };
            let pause = pauses.pause();
            let passes = matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded);
            if !passes || Instant::now() + pause > end {
                let text = format!("reminder {name} of actor {kind}||{id} was not stored: {error}");
                return Err(retry_later(text));
            }
            sleep(pause).await;
        }
    }

    /// Removes a reminder; that there is none is fine.
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

    /// Removes the reminders of activities.
    pub(crate) async fn forget_activities(&self, activities: Vec<String>) -> Result<(), Status> {
        let kind = &self.types.activity;
        let forgotten = activities
            .into_iter()
            .map(|id| async move { self.forget(kind, &id, RUN_ACTIVITY).await });
        let forgotten: Vec<_> = forgotten.collect();
        let forgotten = stream::iter(forgotten).buffer_unordered(AT_ONCE);
        forgotten.try_collect().await
    }

    /// Removes the reminders of an instance and of these of its activities; `with_retention`: that of its purge too. No
    /// prefix of ids is removed: another instance's id may begin as this one's activities' do.
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

    /// Removes all reminders of an actor.
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

/// RFC 3339. Fractions of a second are kept: a timer is not early.
fn spelled(due: Option<Timestamp>) -> String {
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
    fn due_times_are_rfc_3339() {
        let at = |seconds, nanos| spelled(Some(Timestamp { seconds, nanos }));
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
