//! One execution of an activity: the request for the worker, and the result for the workflow.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ActivityRequest, ActivityResponse, HistoryEvent, OrchestrationInstance, TaskCompletedEvent,
    TaskFailedEvent, TaskFailureDetails, TaskRouter, TaskScheduledEvent, TraceContext,
};
use outrigger_workflow::event::{NO_ID, event, nanos};
use outrigger_workflow::{Origin, names};
use prost::Message as _;
use prost_types::Any;
use tokio::time::timeout;
use tonic::Status;

use super::executions::Executable;
use super::failures::{self, ActivityFailures};
use crate::actors::ActorError;
use crate::workflow::engine::Engine;
use crate::workflow::error::{is_unknown, retry_later};
use crate::workflow::metrics::Ended as Execution;
use crate::workflow::protocol::{LOG, any_encoded, any_for, decode, methods, now, random};
use crate::workflow::spans;
use crate::workflow::worker::error::Cancelled;
use crate::workflow::worker::workers::Workers;

/// When an activity comes again whose worker went away, as any that was not done.
const AFTER_LOSS: Duration = Duration::from_secs(1);
/// How long it may take to save how often that has happened.
const SAVE: Duration = Duration::from_secs(2);
/// The type of the failure of an activity that is not run again.
const QUARANTINED: &str = "ActivityParked";

/// One execution of an activity.
pub(super) struct Work {
    engine: Arc<Engine>,
    workers: Arc<Workers>,
    failures: Arc<ActivityFailures>,
    /// The actor that runs it.
    actor: String,
    /// Which execution it is.
    pub(super) key: String,
    instance: String,
    /// Without its trace context, which is that of the span of each run.
    request: ActivityRequest,
    parent: Option<TraceContext>,
    router: Option<TaskRouter>,
    /// The execution of the workflow that waits for it.
    origin: Origin,
    /// See [`scheduled`].
    scheduled: i128,
    /// The data of its reminder.
    data: Vec<u8>,
    /// How long the worker took.
    elapsed: OnceLock<Duration>,
}

impl Work {
    /// Reads the data of a reminder of the actor `id`.
    pub(super) fn read(
        engine: &Arc<Engine>,
        workers: &Arc<Workers>,
        failures: &Arc<ActivityFailures>,
        id: &str,
        data: &[u8],
    ) -> Result<Self, Status> {
        let event: HistoryEvent = decode("the data of the activity's reminder", data)?;
        let Some(EventType::TaskScheduled(mut task)) = event.event_type else {
            return Err(Status::invalid_argument(format!(
                "invalid activity task event of actor '{id}'"
            )));
        };
        let Some(instance) = names::instance_of(id) else {
            return Err(Status::invalid_argument(format!(
                "invalid activity actor ID: '{id}'"
            )));
        };
        let origin = Origin::read(data);
        let at = nanos(event.timestamp.as_ref());
        Ok(Self {
            engine: Arc::clone(engine),
            workers: Arc::clone(workers),
            failures: Arc::clone(failures),
            actor: id.to_owned(),
            instance: instance.to_owned(),
            key: key(id, at, &task.task_execution_id, &origin),
            parent: task.parent_trace_context.take(),
            request: request(instance, event.event_id, task),
            scheduled: scheduled(at, &origin),
            origin,
            router: event.router,
            data: data.to_vec(),
            elapsed: OnceLock::new(),
        })
    }

    /// The result of an activity that is not run again, because its workers disconnected `count` times.
    fn quarantined(&self, count: u32) -> ActivityResponse {
        let (name, instance_id) = (&self.request.name, self.instance.clone());
        let error_message = format!(
            "activity '{name}' was given to a worker {count} times, and each time the worker's stream ended before it \
             answered: it may be what ends the app. It is parked, and not run again; see the app's log. \
             spec.workflow.maxActivityLosses of the Configuration sets how often it is tried."
        );
        tracing::error!(target: LOG, "workflow '{instance_id}': {error_message}");
        ActivityResponse {
            instance_id,
            task_id: self.request.task_id,
            failure_details: Some(TaskFailureDetails {
                error_type: QUARANTINED.to_owned(),
                error_message,
                is_non_retriable: true,
                ..TaskFailureDetails::default()
            }),
            ..ActivityResponse::default()
        }
    }

    /// Saves in the reminder how often the worker disconnected: a sidecar that starts later continues the count. Where that fails
    /// now, the reminder comes again as it is.
    async fn save_losses(&self) {
        let engine = &self.engine;
        let data = reminder_data(self.data.clone());
        let Some(data) = failures::with_count(data, self.failures.count_of(&self.key)) else {
            return;
        };
        let due = (SystemTime::now() + AFTER_LOSS).into();
        let kind = &engine.types.activity;
        let saved = engine.remind(kind, &self.actor, names::RUN_ACTIVITY, Some(due), Some(data));
        let _saved = timeout(SAVE, saved).await;
    }

    fn count(&self, ended: Execution) {
        let elapsed = self.elapsed.get().copied().unwrap_or_default();
        self.engine
            .metrics
            .activity_execution(&self.request.name, ended, elapsed);
    }
}

impl Executable for Work {
    type Result = HistoryEvent;

    fn run(&self) -> BoxFuture<'_, Result<HistoryEvent, Status>> {
        Box::pin(async move {
            let (engine, began) = (&self.engine, Instant::now());
            let (span, parent) = spans::activity_span(&engine.tracer, &self.request, self.parent.clone());
            let name = &self.request.name;
            engine
                .metrics
                .activity_operation(name, Execution::Success, began.elapsed());
            let response = match self.failures.quarantined(&self.key) {
                // Its workflow could not be told yet.
                Some(count) => Ok(self.quarantined(count)),
                None => {
                    let _isolated = self.failures.isolate(&self.key).await;
                    match self
                        .workers
                        .run_activity(
                            &self.instance,
                            self.request.task_id,
                            encoded(&self.request, parent),
                        )
                        .await
                    {
                        // The other one has lost as many workers, and is counted.
                        Err(beside @ Cancelled::DisconnectedWithSuspect { losses })
                            if self.failures.count_of(&self.key) <= losses =>
                        {
                            Err(beside)
                        }
                        Err(Cancelled::Disconnected | Cancelled::DisconnectedWithSuspect { .. }) => {
                            match self.failures.record_loss(&self.key) {
                                Some(count) => {
                                    engine.metrics.activity_quarantined(name);
                                    Ok(self.quarantined(count))
                                }
                                None => {
                                    self.save_losses().await;
                                    Err(Cancelled::Disconnected)
                                }
                            }
                        }
                        response => response,
                    }
                }
            };
            if let Ok(response) = &response {
                spans::end_activity(span, response);
            }
            let _first = self.elapsed.set(began.elapsed());
            if response.is_err() {
                self.count(Execution::Recoverable);
            }
            let response = response.map_err(|cancelled| {
                let (instance, id) = (&self.instance, self.request.task_id);
                retry_later(format!(
                    "activity '{name}' {id} of workflow '{instance}' was not done: {cancelled}"
                ))
            })?;
            let mut result = event(NO_ID, now(), result(response, &self.request.task_execution_id));
            result.router.clone_from(&self.router);
            Ok(result)
        })
    }

    fn deliver<'a>(&'a self, result: &'a HistoryEvent) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let engine = &self.engine;
            let source = self.router.as_ref().map(|router| router.source_app_id.as_str());
            let source = source.filter(|app| !app.is_empty());
            let instance = &self.instance;
            let Err(error) = engine.add_event(source, instance, result, &self.origin).await else {
                let failed = matches!(result.event_type, Some(EventType::TaskFailed(_)));
                self.failures.clear(&self.key);
                self.count(if failed {
                    Execution::Failed
                } else {
                    Execution::Success
                });
                return Ok(());
            };
            if is_unknown(&error) {
                tracing::warn!(
                    target: LOG,
                    "workflow '{instance}' no longer exists: the result of its activity '{}' is dropped",
                    self.request.name
                );
                self.count(Execution::Failed);
                return Ok(());
            }
            if engine.remote_results {
                let kind = engine.types_of(source).workflow;
                let name = names::result_reminder(random());
                let data = any_for("HistoryEvent", result, &self.origin);
                return engine.remind(&kind, instance, &name, None, Some(data)).await;
            }
            self.count(Execution::Recoverable);
            Err(undelivered(&self.request.name, &error))
        })
    }

    fn scheduled(&self) -> i128 {
        self.scheduled
    }

    fn size(&self, result: &HistoryEvent) -> usize {
        self.request.encoded_len() + self.data.len() + result.encoded_len()
    }
}

fn undelivered(name: &str, error: &ActorError) -> Status {
    let method = methods::ADD_EVENT;
    retry_later(format!(
        "the result of activity '{name}' was not delivered: failed to invoke '{method}' method on workflow actor: {error}"
    ))
}

/// Which execution it is. An SDK may give the same id in another life of the instance, whose execution is another one. One that
/// was scheduled without an id, by a sidecar of Dapr for an SDK that gives none, is told by its time.
fn key(actor: &str, at: i128, execution: &str, of: &Origin) -> String {
    match (execution, of.execution.as_str()) {
        ("", _) => format!("{actor}::at-{at}"),
        (execution, "") => format!("{actor}::{execution}"),
        (execution, workflow) => format!("{actor}::{execution}::{workflow}"),
    }
}

/// What tells it from an earlier one of its key. Where the key has the workflow's execution nothing has to, and a step that is
/// repeated schedules the same one again, later.
fn scheduled(at: i128, of: &Origin) -> i128 {
    match of.execution.as_str() {
        "" => at,
        _ => 0,
    }
}

fn request(instance: &str, id: i32, task: TaskScheduledEvent) -> ActivityRequest {
    ActivityRequest {
        name: task.name,
        version: task.version,
        input: task.input,
        orchestration_instance: Some(OrchestrationInstance {
            instance_id: instance.to_owned(),
            execution_id: None,
        }),
        task_id: id,
        parent_trace_context: None,
        task_execution_id: task.task_execution_id,
    }
}

/// The request for the worker, as a part of the span `parent`.
fn encoded(request: &ActivityRequest, parent: Option<TraceContext>) -> Bytes {
    let context = ActivityRequest {
        parent_trace_context: parent,
        ..ActivityRequest::default()
    };
    let mut encoded = Vec::with_capacity(request.encoded_len() + context.encoded_len());
    // Encoded messages that follow each other are one message.
    request.encode_raw(&mut encoded);
    context.encode_raw(&mut encoded);
    encoded.into()
}

fn result(response: ActivityResponse, execution: &str) -> EventType {
    let (task_scheduled_id, task_execution_id) = (response.task_id, execution.to_owned());
    match response.failure_details {
        Some(failure_details) => EventType::TaskFailed(TaskFailedEvent {
            task_scheduled_id,
            failure_details: Some(failure_details),
            task_execution_id,
        }),
        None => EventType::TaskCompleted(TaskCompletedEvent {
            task_scheduled_id,
            result: response.result,
            task_execution_id,
        }),
    }
}

/// The data of an activity's reminder: the event that schedules it, encoded.
pub(super) fn reminder_data(event: Vec<u8>) -> Any {
    any_encoded("HistoryEvent", event)
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::TaskFailureDetails;

    use super::*;

    #[test]
    fn a_failure_is_told_from_a_result() {
        let done = ActivityResponse {
            task_id: 3,
            result: Some("7".to_owned()),
            ..ActivityResponse::default()
        };
        assert!(matches!(
            result(done.clone(), "x"),
            EventType::TaskCompleted(done) if done.task_scheduled_id == 3 && done.task_execution_id == "x"
        ));
        let failed = ActivityResponse {
            failure_details: Some(TaskFailureDetails::default()),
            ..done
        };
        assert!(matches!(result(failed, ""), EventType::TaskFailed(failed) if failed.task_scheduled_id == 3));
    }

    /// Regression: an activity was run again that a repeated step had scheduled anew, when its result was taken meanwhile.
    #[test]
    fn an_activity_is_the_same_whenever_its_execution_schedules_it() {
        let known = Origin::of("one");
        assert_eq!(scheduled(1, &known), scheduled(2, &known));
        let unknown = Origin::default();
        assert_ne!(scheduled(1, &unknown), scheduled(2, &unknown));
    }

    #[test]
    fn an_activity_without_an_id_is_another_one_in_the_next_life_of_its_instance() {
        let scheduled_by =
            |workflow: &str, at, execution: &str| key("a::0::0", at, execution, &Origin::of(workflow));
        let scheduled = |at, execution: &str| scheduled_by("", at, execution);
        assert_eq!(scheduled(1, ""), scheduled(1, ""));
        assert_ne!(scheduled(1, ""), scheduled(2, ""));
        // A step that is repeated schedules it later, and has it run once.
        assert_eq!(scheduled(1, "x"), scheduled(2, "x"));
        assert_ne!(scheduled(1, "x"), scheduled(1, "y"));
        // The SDK may make the same id in another life.
        assert_eq!(scheduled_by("one", 1, "x"), scheduled_by("one", 2, "x"));
        assert_ne!(scheduled_by("one", 1, "x"), scheduled_by("two", 2, "x"));
    }

    #[test]
    fn a_request_has_the_context_of_its_run() {
        let request = request(
            "a",
            3,
            TaskScheduledEvent {
                name: "pay".to_owned(),
                input: Some("1".to_owned()),
                ..TaskScheduledEvent::default()
            },
        );
        let parent = Some(TraceContext {
            trace_parent: "00-1-2-01".to_owned(),
            ..TraceContext::default()
        });
        for parent in [None, parent] {
            let read = ActivityRequest::decode(encoded(&request, parent.clone())).unwrap();
            let expected = ActivityRequest {
                parent_trace_context: parent,
                ..request.clone()
            };
            assert_eq!(read, expected);
        }
    }
}
