//! One execution of an activity: the request to the worker, and the result for the workflow.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_wire::durabletask::backend::v1::ActivityInvocation;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ActivityRequest, ActivityResponse, HistoryEvent, TaskCompletedEvent, TaskFailedEvent, TaskFailureDetails,
    TaskRouter, TaskScheduledEvent, TraceContext, WorkflowInstance,
};
use outrigger_workflow::event::{NO_ID, event, nanos};
use outrigger_workflow::{Origin, names};
use prost::Message as _;
use tokio::time::timeout;
use tonic::Status;

use super::executions::Executable;
use super::failures::{self, ActivityFailures};
use super::invocation;
use crate::actors::ActorError;
use crate::workflow::engine::Engine;
use crate::workflow::error::{is_unknown, retry_later};
use crate::workflow::metrics::Ended as Execution;
use crate::workflow::own::is_own;
use crate::workflow::protocol::{LOG, any_for, methods, now, random};
use crate::workflow::spans;
use crate::workflow::worker::error::Cancelled;
use crate::workflow::worker::workers::Workers;

/// Pause before an activity that lost its worker is redelivered, as after any failure.
const LOSS_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for saving the loss count.
const SAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Error type of a quarantined activity.
const QUARANTINED: &str = "ActivityParked";

/// One execution of an activity.
pub(super) struct Work {
    engine: Arc<Engine>,
    workers: Arc<Workers>,
    failures: Arc<ActivityFailures>,
    /// The activity's actor.
    actor: String,
    /// Key of the execution.
    pub(super) key: String,
    instance: String,
    /// Without trace context, which each run adds.
    request: ActivityRequest,
    parent: Option<TraceContext>,
    router: Option<TaskRouter>,
    /// The workflow execution that awaits it.
    origin: Origin,
    /// See [`scheduled`].
    scheduled: i128,
    /// The data of its reminder.
    data: Vec<u8>,
    /// Duration at the worker.
    elapsed: OnceLock<Duration>,
}

impl Work {
    /// Reads the reminder data of the actor `id`.
    pub(super) fn read(
        engine: &Arc<Engine>,
        workers: &Arc<Workers>,
        failures: &Arc<ActivityFailures>,
        id: &str,
        data: &[u8],
    ) -> Result<Self, Status> {
        let ActivityInvocation {
            history_event,
            propagated_history,
        } = invocation::admit(engine, data)?;
        let event = history_event.unwrap_or_default();
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
            request: ActivityRequest {
                propagated_history,
                ..request(instance, event.event_id, task)
            },
            scheduled: scheduled(at, &origin),
            origin,
            router: event.router,
            data: data.to_vec(),
            elapsed: OnceLock::new(),
        })
    }

    /// The result of a quarantined activity, whose workers disconnected `count` times.
    fn quarantined(&self, count: u32) -> ActivityResponse {
        let (name, instance_id) = (&self.request.name, self.instance.clone());
        let error_message = format!(
            "activity '{name}' lost its worker {count} times: the worker's stream ended before it answered, so the \
             activity may crash the app. It is parked and not run again; see the app's log. \
             spec.workflow.maxActivityLosses of the Configuration sets the limit."
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

    /// Saves the loss count in the reminder, so that a sidecar that starts later continues it. If that fails,
    /// the reminder is redelivered unchanged.
    async fn save_losses(&self) {
        let engine = &self.engine;
        let data = invocation::reminder_data(self.data.clone());
        let Some(data) = failures::with_count(data, self.failures.count_of(&self.key)) else {
            return;
        };
        let due = (SystemTime::now() + LOSS_PAUSE).into();
        let kind = &engine.types.activity;
        let key = Some(self.request.name.clone());
        let saved = engine.remind_limited(kind, &self.actor, names::RUN_ACTIVITY, Some(due), Some(data), key);
        let _saved = timeout(SAVE_TIMEOUT, saved).await;
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
                // Its workflow has not been informed yet.
                Some(count) => Ok(self.quarantined(count)),
                None if is_own(name) => self.workers.run_own_activity(&self.request).await,
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
                        // The suspect has lost at least as many workers, and is counted instead.
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
                    "activity '{name}' {id} of workflow '{instance}' failed: {cancelled}"
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
            let mut attested;
            let mut result = result;
            if engine.signs() {
                // Anew for each attempt: a parent that was away for long gets a valid certificate.
                attested = result.clone();
                let input = self.request.input.as_deref();
                engine.attest(instance, &self.request.name, input, &mut attested)?;
                result = &attested;
            }
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

/// The key of an execution. SDKs may reuse an activity's id in another life of the instance, so the key
/// includes the workflow's execution. If Dapr scheduled it for an SDK without ids, its time identifies it.
fn key(actor: &str, at: i128, execution: &str, of: &Origin) -> String {
    match (execution, of.execution.as_str()) {
        ("", _) => format!("{actor}::at-{at}"),
        (execution, "") => format!("{actor}::{execution}"),
        (execution, workflow) => format!("{actor}::{execution}::{workflow}"),
    }
}

/// Distinguishes executions of one key by time. 0 if the key includes the workflow's execution: a repeated
/// step schedules the same execution later.
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
        workflow_instance: Some(WorkflowInstance {
            instance_id: instance.to_owned(),
            execution_id: None,
        }),
        task_id: id,
        parent_trace_context: None,
        task_execution_id: task.task_execution_id,
        propagated_history: None,
    }
}

/// The encoded request for the worker, with `parent` as parent span.
fn encoded(request: &ActivityRequest, parent: Option<TraceContext>) -> Bytes {
    let context = ActivityRequest {
        parent_trace_context: parent,
        ..ActivityRequest::default()
    };
    let mut encoded = Vec::with_capacity(request.encoded_len() + context.encoded_len());
    // Concatenated protobuf messages are merged.
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
            attestation: None,
            signer_certificate: None,
        }),
        None => EventType::TaskCompleted(TaskCompletedEvent {
            task_scheduled_id,
            result: response.result,
            task_execution_id,
            attestation: None,
            signer_certificate: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::TaskFailureDetails;

    use super::*;

    #[test]
    fn distinguishes_failure_from_result() {
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

    /// Regression: an activity ran again if a repeated step rescheduled it after its result had been
    /// consumed.
    #[test]
    fn rescheduled_activity_keeps_its_key() {
        let known = Origin::of("one");
        assert_eq!(scheduled(1, &known), scheduled(2, &known));
        let unknown = Origin::default();
        assert_ne!(scheduled(1, &unknown), scheduled(2, &unknown));
    }

    #[test]
    fn activity_without_id_differs_after_recreation() {
        let scheduled_by =
            |workflow: &str, at, execution: &str| key("a::0::0", at, execution, &Origin::of(workflow));
        let scheduled = |at, execution: &str| scheduled_by("", at, execution);
        assert_eq!(scheduled(1, ""), scheduled(1, ""));
        assert_ne!(scheduled(1, ""), scheduled(2, ""));
        // A repeated step schedules it later: one execution.
        assert_eq!(scheduled(1, "x"), scheduled(2, "x"));
        assert_ne!(scheduled(1, "x"), scheduled(1, "y"));
        // An SDK may reuse the id in another life.
        assert_eq!(scheduled_by("one", 1, "x"), scheduled_by("one", 2, "x"));
        assert_ne!(scheduled_by("one", 1, "x"), scheduled_by("two", 2, "x"));
    }

    #[test]
    fn request_has_run_context() {
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
