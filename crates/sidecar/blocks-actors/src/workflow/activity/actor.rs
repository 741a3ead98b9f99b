//! The actors that run activities. A reminder runs an activity until its result is delivered; a repeated
//! reminder joins the running execution.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_workflow::names;
use prost_types::{Any, Timestamp};
use tonic::Status;

use super::executions::Executions;
use super::failures::{self, ActivityFailures};
use super::invocation;
use super::work::Work;
use crate::actors::{ActorCall, Caller, InternalActors};
use crate::workflow::engine::Engine;
use crate::workflow::error::retry_later;
use crate::workflow::own::is_own;
use crate::workflow::protocol::{DUE_TIME, LOG};
use crate::workflow::worker::workers::Workers;

/// Idle time after which an activity without a reminder is dropped.
const ORPHANED_AFTER: Duration = Duration::from_secs(60 * 60);
pub(crate) struct Activities {
    engine: Arc<Engine>,
    workers: Arc<Workers>,
    failures: Arc<ActivityFailures>,
    executions: Arc<Executions>,
}

impl Activities {
    pub(crate) fn new(engine: Arc<Engine>, workers: Arc<Workers>, failures: Arc<ActivityFailures>) -> Self {
        Self {
            executions: Arc::new(Executions::new(engine.tasks.clone())),
            engine,
            workers,
            failures,
        }
    }

    async fn execute(&self, call: &ActorCall) -> Result<(), Status> {
        // Only the reminder needs the event: here a call that it could not decode is refused.
        let read = invocation::admit(&self.engine, &call.body)?;
        if let Some(name) = invocation::name(&read).filter(|name| bypasses_hooks(&call.caller, name)) {
            return Err(Status::permission_denied(format!(
                "activity '{name}' is reserved: call the workflow of the sidecar that runs it"
            )));
        }
        // A caller cannot set the loss count.
        if failures::saved_count(&call.body) > 0 {
            return Err(Status::invalid_argument(
                "the call of the activity has a loss count",
            ));
        }
        let due = call.metadata.get(DUE_TIME).map(due).transpose()?;
        let (kind, data) = (
            &self.engine.types.activity,
            invocation::reminder_data(call.body.to_vec()),
        );
        let key = invocation::name(&read).map(str::to_owned);
        self.engine
            .remind_limited(kind, &call.id, names::RUN_ACTIVITY, due, Some(data), key)
            .await
    }
}

/// Whether an activity of the sidecar is called by another app. Only the workflow around it runs its hooks.
fn bypasses_hooks(caller: &Caller, name: &str) -> bool {
    matches!(caller, Caller::App(_)) && is_own(name)
}

fn due(value: &http::HeaderValue) -> Result<Timestamp, Status> {
    let text = value.to_str().unwrap_or_default();
    let millis: i64 = text.parse().map_err(|_| {
        Status::invalid_argument(format!("dueTime {text:?} is not a whole number of milliseconds"))
    })?;
    Ok(Timestamp {
        seconds: millis.div_euclid(1000),
        nanos: i32::try_from(millis.rem_euclid(1000)).unwrap_or_default() * 1_000_000,
    })
}

impl InternalActors for Activities {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move {
            if let Some(guarded) = self.engine.access.guard(call) {
                guarded.activity(invocation::read(&call.body).ok())?;
            }
            self.execute(call).await.map(|()| Bytes::new())
        })
    }

    fn remind<'a>(
        &'a self,
        id: &'a str,
        _name: &'a str,
        data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let data = data.map_or(&[][..], |data| &data.value);
            let work = Work::read(&self.engine, &self.workers, &self.failures, id, data)?;
            let key = work.key.clone();
            self.failures.restore(&key, failures::saved_count(data));
            let mut waiting = ReminderWait { id, is_over: false };
            let unhealthy = self.engine.unhealthy();
            let joined = tokio::select! {
                biased;
                joined = self.executions.join(key, work) => joined,
                () = unhealthy.cancelled() => return Err(retry_later("the app is unhealthy")),
            };
            waiting.is_over = true;
            joined
        })
    }

    fn halt<'a>(&'a self, _id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    /// Active until its reminder has delivered the result.
    fn is_kept(&self, _id: &str) -> bool {
        true
    }

    fn reminders_take_turns(&self) -> bool {
        false
    }

    fn idle_after(&self) -> Duration {
        ORPHANED_AFTER
    }
}

/// A reminder that waits for its activity. A cancelled one logs that; the activity continues.
struct ReminderWait<'a> {
    id: &'a str,
    is_over: bool,
}

impl Drop for ReminderWait<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            tracing::warn!(
                target: LOG,
                "{}: received cancellation signal while waiting for activity execution '{}'",
                self.id,
                names::RUN_ACTIVITY
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_apps_call_no_own_activity() {
        let other = Caller::App("desk".to_owned());
        let call = "dapr.internal.mcp.s.call-tool";
        assert!(bypasses_hooks(&other, call) && !bypasses_hooks(&other, "pay"));
        assert!(!bypasses_hooks(&Caller::Own, call));
    }

    #[test]
    fn parses_due_time_milliseconds() {
        let due = |text: &str| super::due(&http::HeaderValue::from_str(text).unwrap()).ok();
        assert_eq!(
            due("1500").map(|due| (due.seconds, due.nanos)),
            Some((1, 500_000_000))
        );
        assert_eq!(
            due("-1").map(|due| (due.seconds, due.nanos)),
            Some((-1, 999_000_000))
        );
        assert!(due("soon").is_none());
    }
}
