//! Reminders of the actors of workflows.

use std::time::{Duration, SystemTime};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use outrigger_backoff::Backoff;
use outrigger_wire::common::v1::job_failure_policy::Policy;
use outrigger_wire::common::v1::{JobFailurePolicy, JobFailurePolicyConstant};
use outrigger_wire::scheduler::v1::Job;
use outrigger_workflow::Origin;
use outrigger_workflow::names::{self, Purpose, RUN_ACTIVITY};
use prost_types::{Any, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::LOG;
use super::engine::{Engine, any_for, now, retry_later};
use super::instance::actor::random;
use super::instance::dispatch::AT_ONCE;

/// How long a scheduler that does not answer is asked again.
const SCHEDULER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long it may take to put a reminder off, before it comes again in a second instead.
const POSTPONE_TIMEOUT: Duration = Duration::from_secs(2);

/// When a stalled instance comes again. It waits for a worker with other code: where that comes with another sidecar, because this
/// one was killed, nothing else has it run.
const STALLED_PAUSE: Duration = Duration::from_secs(5);
/// When a reminder comes again that this sidecar cannot read, or does not know: it waits for a sidecar of another version.
const UNREAD_PAUSE: Duration = Duration::from_secs(60);

impl Engine {
    /// A reminder of an instance came in vain. Where the instance cannot go on soon, another takes its place that comes later:
    /// one of each kind that carries something, and one for all those that only have it run.
    ///
    /// # Errors
    /// Why it came in vain, where it is to come again in a second.
    pub(crate) async fn postpone(
        &self,
        id: &str,
        name: &str,
        data: Option<&Any>,
        why: Status,
    ) -> Result<(), Status> {
        let Some(pause) = pause(why.code()).or_else(|| self.instance_failures.pause(id)) else {
            return Err(why);
        };
        let purpose = names::purpose(name);
        if purpose == Some(Purpose::Run) && self.instance_failures.comes_later(id, name, pause) {
            return Ok(());
        }
        if why.code() == Code::InvalidArgument {
            tracing::warn!(
                target: LOG,
                "workflow '{id}': reminder '{name}' is postponed by {} s: {}",
                pause.as_secs(),
                why.message()
            );
        }
        let later = match purpose {
            Some(purpose) => names::later_reminder(purpose, random()),
            None => names::later_unknown(name, random()),
        };
        let due = (SystemTime::now() + pause).into();
        let set = self.remind(&self.types.workflow, id, &later, Some(due), data.cloned());
        match timeout(POSTPONE_TIMEOUT, set).await {
            Ok(Ok(())) => {
                if purpose == Some(Purpose::Run) {
                    self.instance_failures.postpone(id, later, pause);
                }
                Ok(())
            }
            _ => Err(why),
        }
    }

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

/// How long what came in vain is put off, whatever is known of the instance; `None` where that decides.
fn pause(why: Code) -> Option<Duration> {
    match why {
        Code::FailedPrecondition => Some(STALLED_PAUSE),
        Code::InvalidArgument => Some(UNREAD_PAUSE),
        _ => None,
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
    use outrigger_wire::durabletask::backend::v1::DurableTimer;

    use super::*;
    use crate::workflow::engine::decode;

    #[test]
    fn what_no_repetition_mends_is_put_off() {
        let stalled = crate::workflow::instance::actor::stalled_status();
        assert_eq!(pause(stalled.code()), Some(STALLED_PAUSE));
        let unread = decode::<DurableTimer>("the data of the timer", &b"\xff"[..]).unwrap_err();
        assert_eq!(pause(unread.code()), Some(UNREAD_PAUSE));
        // The store, the scheduler or a worker may be there again.
        assert_eq!(pause(retry_later("the store is away").code()), None);
    }

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
