//! Calls of workflow clients to an instance's actor: start, add an event, wait for a status.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use http::HeaderValue;
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Status as SpanStatus};
use outrigger_wire::durabletask::backend::v1::{CreateWorkflowInstanceRequest, WorkflowMetadata};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionStartedEvent, HistoryEvent, OrchestrationStatus, WorkflowInstance,
};
use prost::Message as _;
use prost_types::Timestamp;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use super::engine::request;
use super::error::is_unknown;
use super::instance::subtree::NOT_RECREATED;
use super::metrics::Operation;
use super::protocol::{FETCH_ONLY, WATCH_PAUSE, metadata, methods};
use super::service::Workflows;
use super::spans::{SCOPE, span_name, trace_context};
use crate::actors::{ActorCall, ActorError};

/// Pause before retrying a start while no sidecar hosts workflows.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Time for the first status of an instance of another app.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// A start request.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Instance id; not checked.
    pub id: String,
    /// The app whose workflow it is; `None` means this app. Not checked.
    pub app: Option<String>,
    /// Name of the workflow to start.
    pub name: String,
    /// Version of the workflow, only for its span.
    pub version: String,
    /// The input of the workflow, as text.
    pub input: Option<String>,
    /// Earliest start.
    pub at: Option<Timestamp>,
    /// The parent span.
    pub parent: Parent,
}

impl Workflows {
    /// Starts an instance. Without a worker this waits for one.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn start(&self, start: Start) -> Result<(), ActorError> {
        let mut span = self.create_span(&start);
        let event = EventType::ExecutionStarted(ExecutionStartedEvent {
            name: start.name,
            input: start.input,
            workflow_instance: Some(WorkflowInstance {
                instance_id: start.id.clone(),
                execution_id: Some(uuid::Uuid::new_v4().to_string()),
            }),
            scheduled_start_timestamp: start.at,
            parent_trace_context: trace_context(&span),
            ..ExecutionStartedEvent::default()
        });
        let created = CreateWorkflowInstanceRequest {
            start_event: Some(now(event)),
            propagated_history: None,
        };
        let kind = self.engine.types_of(start.app.as_deref()).workflow;
        let call = request(&kind, &start.id, methods::CREATE, created.encode_to_vec());
        let created = self
            .engine
            .metrics
            .counted(Operation::Create, self.create(&call))
            .await;
        if let Err(error) = &created {
            span.set_status(SpanStatus::Error(error.to_string()));
        }
        created
    }

    async fn create(&self, call: &ActorCall) -> Result<(), ActorError> {
        loop {
            match self.actors.invoke_plain(call).await {
                Ok(_) => return Ok(()),
                Err(error) if waits_for_host(&error) => sleep(START_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn create_span(&self, start: &Start) -> Span {
        let name = span_name("create_orchestration", &start.name, &start.version);
        let mut span = self
            .engine
            .tracer
            .start_scoped(SCOPE, SpanKind::Client, &name, &start.parent);
        if span.is_recording() {
            span.set("durabletask.type", "orchestration");
            span.set("durabletask.task.name", start.name.clone());
            span.set("durabletask.task.instance_id", start.id.clone());
            span.set("durabletask.task.version", start.version.clone());
        }
        span
    }

    /// Sends an event to an instance of an app, by default of this one.
    ///
    /// # Errors
    /// [`ActorError`]; for an unknown instance with [`outrigger_workflow::error::NO_INSTANCE`].
    pub async fn add(&self, app: Option<&str>, id: &str, event: EventType) -> Result<(), ActorError> {
        let mut event = now(event);
        if let Some(EventType::EventRaised(_)) = event.event_type {
            event.timestamp = Some(self.event_time());
        }
        let event = event.encode_to_vec();
        let call = ActorCall {
            content_type: Some(OCTETS),
            ..request(&self.engine.types_of(app).workflow, id, methods::ADD_EVENT, event)
        };
        let added = async { self.actors.invoke_plain(&call).await.map(|_| ()) };
        self.engine.metrics.counted(Operation::AddEvent, added).await
    }

    /// The current time, unique for each raised event: instances recognize a repeated delivery by it.
    fn event_time(&self) -> Timestamp {
        let mut last = self.last_event.lock().unwrap_or_else(PoisonError::into_inner);
        *last = after(*last, jiff::Timestamp::now());
        Timestamp {
            seconds: last.as_second(),
            nanos: last.subsec_nanosecond(),
        }
    }

    /// Waits until `until` accepts the status of an instance; `None` if it ends first.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn wait(
        &self,
        id: &str,
        until: impl Fn(OrchestrationStatus) -> bool,
    ) -> Result<Option<WorkflowMetadata>, ActorError> {
        let call = self.request(methods::WATCH, id, Vec::new());
        loop {
            let mut updates = match self.actors.watch(&call).await {
                Err(error) if waits_for_host(&error) => {
                    sleep(START_PAUSE).await;
                    continue;
                }
                opened => opened?,
            };
            let mut last = None;
            loop {
                let metadata = match updates.next().await {
                    None => return Ok(last),
                    // The actor moved: watch it on its new host.
                    Some(Err(error)) if waits_for_host(&error) => {
                        sleep(WATCH_PAUSE).await;
                        break;
                    }
                    Some(Err(error)) => return Err(error),
                    Some(Ok(update)) => status_of(id, &update.data.value)?,
                };
                if until(metadata.runtime_status()) {
                    return Ok(Some(metadata));
                }
                last = Some(metadata);
            }
        }
    }

    /// The status of an instance of another app; `None` if it does not exist.
    pub(crate) async fn get_elsewhere(
        &self,
        app: &str,
        id: &str,
    ) -> Result<Option<WorkflowMetadata>, ActorError> {
        let call = ActorCall {
            metadata: metadata(FETCH_ONLY, "true"),
            ..request(
                &self.engine.types_of(Some(app)).workflow,
                id,
                methods::WATCH,
                Vec::new(),
            )
        };
        let first = match self.actors.watch(&call).await {
            // A sidecar without this mark streams every change: the first one is the status, and none arrives
            // for an unknown instance.
            Ok(mut updates) => match timeout(FETCH_TIMEOUT, updates.next()).await {
                Ok(first) => first.transpose(),
                Err(_) => Ok(None),
            },
            Err(error) => Err(error),
        };
        match first {
            Ok(first) => first.map(|update| status_of(id, &update.data.value)).transpose(),
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A call to the actor of an instance.
    pub(crate) fn request(&self, method: &str, id: &str, body: Vec<u8>) -> ActorCall {
        request(&self.engine.types.workflow, id, method, body)
    }
}

/// Decodes a status. Its type is named `OrchestrationMetadata` by sidecars before the contract's v1.18.
fn status_of(id: &str, encoded: &[u8]) -> Result<WorkflowMetadata, ActorError> {
    WorkflowMetadata::decode(encoded).map_err(|error| {
        let text = format!("cannot decode the status of workflow '{id}': {error}");
        ActorError::Internal(Status::internal(text))
    })
}

/// Whether the error may pass when a host is available.
fn waits_for_host(error: &ActorError) -> bool {
    match error.status() {
        // The host of a child is away, not that of the instance.
        Some((_, text)) if text.starts_with(NOT_RECREATED) => false,
        Some((Code::FailedPrecondition | Code::Unavailable, _)) => true,
        _ => error.is_about_place(),
    }
}

/// The current time, or the next one after `last` if that is later.
fn after(last: jiff::Timestamp, now: jiff::Timestamp) -> jiff::Timestamp {
    let next = last.saturating_add(jiff::SignedDuration::from_nanos(1));
    next.map_or(now, |next| now.max(next))
}

/// An unnumbered event with the current time.
fn now(event: EventType) -> HistoryEvent {
    HistoryEvent {
        event_id: -1,
        timestamp: Some(SystemTime::now().into()),
        event_type: Some(event),
        ..HistoryEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_host_of_instance_only() {
        let of = |text: &str| waits_for_host(&ActorError::Internal(Status::unavailable(text)));
        assert!(of("the table changes"));
        assert!(!of(
            "cannot recreate workflow with ID 'a': failed to verify child workflow 'b'"
        ));
    }

    #[test]
    fn times_of_events_rise() {
        let at = |nanos| jiff::Timestamp::new(5, nanos).unwrap();
        assert_eq!(after(at(1), at(7)), at(7));
        assert_eq!(after(at(7), at(7)), at(8));
        assert_eq!(after(at(9), at(7)), at(10), "the clock went back");
    }
}
