//! Sends the effects of a step: activities, messages to other instances, timers.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use outrigger_wire::durabletask::backend::v1::{
    ActivityInvocation, CreateWorkflowInstanceRequest, DurableTimer,
};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ChildWorkflowInstanceFailedEvent, HistoryEvent, TaskFailedEvent, TaskFailureDetails,
};
use outrigger_workflow::event::{NO_ID, event, nanos, other_app};
use outrigger_workflow::{Message, Origin, Outcome, Propagation, Timer, create, names, scope};
use prost::Message as _;
use prost_types::Timestamp;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::actors::ActorError;
use crate::workflow::engine::{Engine, MAX_CONCURRENT};
use crate::workflow::error::{is_stalled, is_unknown, retry_later};
use crate::workflow::own::is_own;
use crate::workflow::protocol::{DUE_TIME, LOG, any, any_for, metadata, methods, now, random};

/// Time limit for sending an event to another instance.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for terminating a child in another app.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for creating a child. Two instances may create each other at the same time and would deadlock;
/// a retry for the same task finds the child existing.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Effects that could not be sent.
#[derive(Debug, Default)]
pub(crate) struct SendFailures {
    /// Their event ids.
    pub(crate) causes: Vec<i32>,
    /// All of them were for other apps.
    pub(crate) only_remote: bool,
    /// The first error; `None` if all were sent.
    pub(crate) why: Option<String>,
}

impl SendFailures {
    fn of(failed: Vec<(Option<i32>, bool, String)>) -> Self {
        Self {
            only_remote: failed
                .iter()
                .all(|(cause, is_remote, _)| *is_remote && cause.is_some()),
            causes: failed.iter().filter_map(|(cause, ..)| *cause).collect(),
            why: failed.into_iter().next().map(|(.., why)| why),
        }
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.causes.extend(other.causes);
        self.only_remote &= other.only_remote;
        self.why = self.why.or(other.why);
        self
    }
}

impl Engine {
    /// Starts activities of an execution of `workflow`. `due` is in the past.
    pub(crate) async fn start(
        &self,
        (instance, workflow): (&str, &str),
        (generation, execution): (u64, &str),
        due: Option<Timestamp>,
        tasks: &[HistoryEvent],
        propagation: &Propagation<'_>,
    ) -> SendFailures {
        let due = nanos(Some(&due.unwrap_or_else(now))) / 1_000_000;
        let (due, origin) = (due.to_string(), Origin::of(execution));
        // Built before they are awaited: the futures of a borrowing closure would not be `Send`.
        let started = tasks.iter().map(|task| {
            let (due, origin) = (due.as_str(), &origin);
            async move {
                if let Some(refused) = reserved(workflow, task) {
                    let failed = task_failed(task, refused);
                    let set = self.fail_later(instance, called_with(task), failed, origin).await;
                    return set
                        .err()
                        .map(|error| (Some(task.event_id), false, error.to_string()));
                }
                let app = other_app(task.router.as_ref(), &self.app_id);
                let kind = self.types_of(app).activity;
                let id = names::activity_id(instance, task.event_id, generation);
                let to = || format!("activity '{}::{}'", name(task), task.event_id);
                let passed = self.passed_on(instance, propagation, (task.event_id, scope(task)), to);
                let passed = match passed {
                    Ok(passed) => passed,
                    Err(error) => return Some((Some(task.event_id), false, error.message().to_owned())),
                };
                let mut body = match passed {
                    // A bare event, which sidecars of v1.17 read.
                    None => task.encode_to_vec(),
                    Some(passed) => ActivityInvocation {
                        history_event: Some(task.clone()),
                        propagated_history: Some(passed),
                    }
                    .encode_to_vec(),
                };
                origin.append_to(&mut body);
                let called = self.call(&kind, &id, methods::EXECUTE, metadata(DUE_TIME, due), body.into());
                let error = called.await.err()?;
                let error = match refusal(&error).filter(|(kind, _)| *kind == DENIED) {
                    None => error,
                    Some(refused) => {
                        let failed = task_failed(task, refused);
                        self.fail_later(instance, called_with(task), failed, origin)
                            .await
                            .err()?
                    }
                };
                let why = format!(
                    "failed to invoke activity actor '{id}' to execute '{}'",
                    name(task)
                );
                Some((
                    Some(task.event_id),
                    app.is_some(),
                    failure_text(&why, app, &error),
                ))
            }
        });
        all(started.collect()).await
    }

    /// Sends messages to other instances.
    pub(crate) async fn send(
        &self,
        from: &str,
        messages: &[Message],
        propagation: &Propagation<'_>,
    ) -> SendFailures {
        let sent = messages.iter().map(|message| async move {
            let error = self.send_one(from, message, propagation).await.err()?;
            let app = message.app.as_deref();
            let what = if message.creates() {
                format!(
                    "workflow '{from}': failed to create child workflow '{}'",
                    message.target
                )
            } else {
                format!(
                    "workflow '{from}': failed to send an event to workflow '{}'",
                    message.target
                )
            };
            Some((message.cause, app.is_some(), failure_text(&what, app, &error)))
        });
        all(sent.collect()).await
    }

    async fn send_one(
        &self,
        from: &str,
        message: &Message,
        propagation: &Propagation<'_>,
    ) -> Result<(), ActorError> {
        let app = message.app.as_deref();
        if !message.creates() {
            // With a timeout: the other instance may be waiting for this one, as a parent that creates its
            // child again.
            let sent = timeout(
                EVENT_TIMEOUT,
                self.add_event(app, &message.target, &message.event, &message.origin),
            )
            .await;
            return match sent.unwrap_or(Err(ActorError::Timeout)) {
                // A purged parent awaits nothing.
                Err(error) if is_unknown(&error) => Ok(()),
                sent => sent,
            };
        }
        let kind = self.types_of(app).workflow;
        let task = (message.cause.unwrap_or(NO_ID), message.propagates);
        let to = || format!("child workflow '{}'", message.target);
        let propagated_history = self
            .passed_on(from, propagation, task, to)
            .map_err(ActorError::Internal)?;
        let request = CreateWorkflowInstanceRequest {
            start_event: Some(message.event.clone()),
            propagated_history,
        };
        let body = request.encode_to_vec().into();
        let created = self.call(
            &kind,
            &message.target,
            methods::CREATE,
            http::HeaderMap::new(),
            body,
        );
        let created = timeout(CREATE_TIMEOUT, created).await;
        let error = match created.unwrap_or(Err(ActorError::Timeout)) {
            Err(error) => error,
            Ok(()) => return Ok(()),
        };
        match refusal(&error) {
            Some(refused) => {
                let (failed, origin) = child_failed(message, refused);
                self.fail_later(from, called_with(&message.event), failed, &origin)
                    .await
            }
            None => Err(error),
        }
    }

    /// Lets a task of an instance fail in a later step: the step that started it is stored first.
    async fn fail_later(
        &self,
        instance: &str,
        (name, input): (&str, Option<&str>),
        failed: EventType,
        origin: &Origin,
    ) -> Result<(), ActorError> {
        let mut event = event(NO_ID, now(), failed);
        self.attest(instance, name, input, &mut event)
            .map_err(ActorError::Internal)?;
        let name = names::result_reminder(random());
        let data = any_for("HistoryEvent", &event, origin);
        let kind = &self.types.workflow;
        let set = self.remind(kind, instance, &name, None, Some(data)).await;
        set.map_err(ActorError::Internal)
    }

    /// Terminates the children of an ended instance: those of this app by reminders, which outlast this
    /// sidecar.
    pub(crate) async fn terminate(&self, from: &str, terminations: &[Message]) -> Result<(), Status> {
        let sent = terminations.iter().map(|message| async move {
            let Some(app) = message.app.as_deref() else {
                let data = any("HistoryEvent", &message.event);
                let (kind, target) = (&self.types.workflow, &message.target);
                return self
                    .remind(kind, target, names::CASCADE_TERMINATE, None, Some(data))
                    .await;
            };
            let added = self.add_event(Some(app), &message.target, &message.event, &message.origin);
            match timeout(TERMINATE_TIMEOUT, added).await.unwrap_or(Err(ActorError::Timeout)) {
                // A child that does not exist has ended.
                Err(error) if is_unknown(&error) => Ok(()),
                Err(error) => match survives(&error) {
                    Some(why) => {
                        tracing::warn!(
                            target: LOG,
                            "workflow '{from}' ends without its child '{}' of app '{app}': {why}",
                            message.target
                        );
                        Ok(())
                    }
                    None => Err(retry_later(format!(
                        "workflow '{from}' has ended, but its child '{}' of app '{app}' is not terminated: {error}",
                        message.target
                    ))),
                },
                Ok(()) => Ok(()),
            }
        });
        let sent: Vec<_> = sent.collect();
        let results: Vec<_> = stream::iter(sent)
            .buffer_unordered(MAX_CONCURRENT)
            .collect()
            .await;
        results.into_iter().collect()
    }

    /// Deletes the timers that a step made superfluous, and sets its new ones.
    pub(crate) async fn prepare_timers(&self, instance: &str, outcome: &Outcome) -> Result<(), Status> {
        for id in &outcome.superseded {
            let name = names::timer_reminder(*id);
            self.forget(&self.types.workflow, instance, &name).await?;
        }
        let execution = (outcome.generation, outcome.facts().execution());
        self.set_timers(instance, execution, &outcome.timers).await
    }

    /// Sets the timers of an execution.
    pub(crate) async fn set_timers(
        &self,
        instance: &str,
        (generation, execution): (u64, &str),
        timers: &[Timer],
    ) -> Result<(), Status> {
        let origin = &Origin::of(execution);
        let set = timers.iter().map(|timer| async move {
            let data = DurableTimer {
                timer_event: Some(timer.fired.clone()),
                generation,
            };
            let data = any_for("durabletask.protos.backend.v1.DurableTimer", &data, origin);
            let name = names::timer_reminder(timer.id);
            self.remind(&self.types.workflow, instance, &name, timer.fire_at, Some(data))
                .await
        });
        let set: Vec<_> = set.collect();
        let results: Vec<_> = stream::iter(set).buffer_unordered(MAX_CONCURRENT).collect().await;
        results.into_iter().collect()
    }
}

/// Why a child is not terminated with its parent, and the remedy; `None` if a retry may terminate it.
fn survives(error: &ActorError) -> Option<&'static str> {
    const REFUSED: &str =
        "an access policy of the app denies it; allow the operation terminate, or terminate the child there";
    const STALLED: &str = "it is stalled; purge it by force, or terminate it when its code fits";
    match error.status() {
        Some((Code::PermissionDenied, _)) => Some(REFUSED),
        _ => is_stalled(error).then_some(STALLED),
    }
}

/// The failures of concurrent calls.
async fn all(calls: Vec<impl Future<Output = Option<(Option<i32>, bool, String)>>>) -> SendFailures {
    let calls = stream::iter(calls).buffer_unordered(MAX_CONCURRENT);
    SendFailures::of(calls.filter_map(std::future::ready).collect().await)
}

/// Name and input of a task.
fn called_with(event: &HistoryEvent) -> (&str, Option<&str>) {
    match &event.event_type {
        Some(EventType::TaskScheduled(task)) => (&task.name, task.input.as_deref()),
        Some(EventType::ExecutionStarted(child)) => (&child.name, child.input.as_deref()),
        _ => ("", None),
    }
}

/// The error type of a task that an access policy denies.
const DENIED: &str = "WorkflowAccessPolicyDenied";
/// The error type of a child whose instance id is in use.
const IN_USE: &str = "WorkflowInstanceAlreadyExists";

/// The failure of an activity that only the sidecar's own workflows may schedule: other workflows would pass by
/// their hooks.
fn reserved(workflow: &str, task: &HistoryEvent) -> Option<(&'static str, String)> {
    let name = name(task);
    let is_misused = is_own(name) && !is_own(workflow);
    is_misused.then(|| {
        let text = format!("activity '{name}' is reserved: call the workflow of the sidecar that runs it");
        (DENIED, text)
    })
}

/// Type and text of a failure that ends a task. Any other error repeats the step.
fn refusal(error: &ActorError) -> Option<(&'static str, String)> {
    let (code, text) = error.status()?;
    // Sidecars before the contract's v1.18 give no code.
    let is_in_use = code == Code::AlreadyExists || text.contains("an active workflow with ID '");
    match code {
        Code::PermissionDenied => Some((DENIED, "access denied by workflow access policy".to_owned())),
        _ => is_in_use.then(|| (IN_USE, text.to_owned())),
    }
}

fn details((error_type, error_message): (&str, String)) -> Option<TaskFailureDetails> {
    Some(TaskFailureDetails {
        error_type: error_type.to_owned(),
        error_message,
        ..TaskFailureDetails::default()
    })
}

fn task_failed(task: &HistoryEvent, refused: (&str, String)) -> EventType {
    let task_execution_id = match &task.event_type {
        Some(EventType::TaskScheduled(task)) => task.task_execution_id.clone(),
        _ => String::new(),
    };
    EventType::TaskFailed(TaskFailedEvent {
        task_scheduled_id: task.event_id,
        failure_details: details(refused),
        task_execution_id,
        ..TaskFailedEvent::default()
    })
}

/// The failure of a child that was not created, and the execution that awaits it.
fn child_failed(message: &Message, refused: (&str, String)) -> (EventType, Origin) {
    let parent = create::execution(&message.event).and_then(|start| start.parent_instance.as_ref());
    let execution = parent
        .and_then(|parent| parent.workflow_instance.as_ref()?.execution_id.clone())
        .unwrap_or_default();
    let failed = ChildWorkflowInstanceFailedEvent {
        task_scheduled_id: message.cause.unwrap_or(NO_ID),
        failure_details: details(refused),
        ..ChildWorkflowInstanceFailedEvent::default()
    };
    let instance = message.target.clone();
    (
        EventType::ChildWorkflowInstanceFailed(failed),
        Origin { execution, instance },
    )
}

fn name(task: &HistoryEvent) -> &str {
    match &task.event_type {
        Some(EventType::TaskScheduled(task)) => &task.name,
        _ => "",
    }
}

fn failure_text(what: &str, app: Option<&str>, error: &ActorError) -> String {
    match app {
        Some(app) => format!("{what} on remote app '{app}' (the app may not be available): {error}"),
        None => format!("{what}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::TaskScheduledEvent;

    use super::*;

    /// Regression: a termination that the child's app denies was repeated for ever.
    #[test]
    fn denied_termination_is_final() {
        let internal = |status: Status| survives(&ActorError::Internal(status));
        let denied = || Status::permission_denied("no");
        assert!(internal(denied()).unwrap().contains("policy"));
        assert!(survives(&ActorError::Peer(denied())).is_some());
        let stalled = internal(crate::workflow::error::stalled_status());
        assert!(stalled.unwrap().contains("stalled"));
        assert_eq!(internal(Status::unavailable("later")), None);
        assert_eq!(survives(&ActorError::Timeout), None);
    }

    #[test]
    fn only_own_workflows_schedule_own_activities() {
        let refused = |workflow: &str, name: &str| {
            let scheduled = TaskScheduledEvent {
                name: name.to_owned(),
                ..TaskScheduledEvent::default()
            };
            reserved(workflow, &event(0, now(), EventType::TaskScheduled(scheduled)))
        };
        let call = "dapr.internal.mcp.s.call-tool";
        let (kind, text) = refused("order", call).unwrap();
        assert!(kind == DENIED && text.contains(call));
        assert!(refused("dapr.internal.mcp.s.CallTool.t", call).is_none());
        assert!(refused("order", "pay").is_none());
    }

    #[test]
    fn refused_tasks_fail() {
        let internal = |status: Status| refusal(&ActorError::Internal(status)).map(|(kind, _)| kind);
        assert_eq!(internal(Status::permission_denied("no")), Some(DENIED));
        assert_eq!(internal(Status::already_exists("in use")), Some(IN_USE));
        let of_old = "error invoke actor method: an active workflow with ID 'a' already exists";
        let of_old = refusal(&ActorError::Peer(Status::internal(of_old)));
        let text = "an active workflow with ID 'a' already exists".to_owned();
        assert_eq!(of_old, Some((IN_USE, text)));
        assert_eq!(internal(Status::unavailable("later")), None);
        assert_eq!(refusal(&ActorError::Timeout), None);
    }
}
