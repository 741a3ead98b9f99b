//! Workflows: durable functions of the app, run in turns by its workers.
//!
//! An instance is an actor: what is asked of it here goes to its actor, wherever that lives. Workers open streams of work
//! ([`worker`]); while there is one, this sidecar hosts the actors of its app's workflows.

mod activity;
mod engine;
mod instance;
mod manage;
pub mod metrics;
mod reminders;
mod spans;
mod worker;

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures::StreamExt;
use http::HeaderValue;
use outrigger_resources::configuration as settings;
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Status as SpanStatus, Tracer};
use outrigger_wire::durabletask::backend::v1::{CreateWorkflowInstanceRequest, OrchestrationMetadata};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionStartedEvent, HistoryEvent, OrchestrationIdReusePolicy, OrchestrationInstance,
    OrchestrationStatus, RerunWorkflowFromEventRequest, TraceContext,
};
use outrigger_workflow::error::NO_INSTANCE;
use outrigger_workflow::names::ActorTypes;
use prost::Message;
use prost_types::Timestamp;
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

pub use manage::control::{Action, WorkflowError};
pub use manage::list::{Listed, Listing};
pub use manage::overview::{Overview, WorkflowWait, WorkflowWork};
pub use manage::purge::Purged;
pub use manage::status::Waits;
pub use worker::item::ItemCodec;
pub use worker::oversized::Oversized;
pub use worker::stream::WorkItems;

use crate::actors::internal::PROTOBUF;
use crate::actors::{ActorCall, ActorError, Actors};
use activity::failures::ActivityFailures;
use engine::methods;
use instance::actor::Instances;
use instance::failures::InstanceFailures;
use metrics::{Operation, WorkflowMetrics};
use worker::queue::{Limits, WorkQueue};

const LOG: &str = "dapr.wfengine";
/// Tracer of workflow spans.
pub const SCOPE: &str = "durabletask";
/// Before an instance whose type nobody hosts is started again.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Before an instance that moved is watched again.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// What workflows are built from.
pub struct Dependencies {
    /// This app's id.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Hosts instances.
    pub actors: Arc<Actors>,
    /// `spec.workflow`.
    pub settings: settings::Workflow,
    /// Whether results of activities for workflows of other apps are kept as reminders there.
    pub remote_results: bool,
    /// Whether answers of workers may reach another sidecar of the app than the one that sent the work.
    pub is_clustered: bool,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counters of workflows and activities.
    pub metrics: Arc<WorkflowMetrics>,
    /// Largest message, bytes; `None` = no limit.
    pub max_message: Option<usize>,
}

/// The workflows of this app.
pub struct Workflows {
    with: Dependencies,
    types: ActorTypes,
    queue: Arc<WorkQueue>,
    /// Activities whose workers went away.
    activity_failures: Arc<ActivityFailures>,
    /// Instances whose runs fail.
    instance_failures: Arc<InstanceFailures>,
    /// How many streams of workers there are.
    workers: Mutex<usize>,
    tasks: TaskTracker,
    ended: CancellationToken,
    /// Cancelled when the app becomes unhealthy, and made anew.
    unhealthy: Arc<std::sync::Mutex<CancellationToken>>,
    /// The instances that live here, while there are workers.
    instances: std::sync::Mutex<Weak<Instances>>,
}

/// An instance to be started.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Instance id; not checked.
    pub id: String,
    /// Name of the workflow to start.
    pub name: String,
    /// Version of the workflow, for its span alone.
    pub version: String,
    /// The input of the workflow, as text.
    pub input: Option<String>,
    /// Not before.
    pub at: Option<Timestamp>,
    /// What becomes of an instance that has the id already.
    pub policy: Option<OrchestrationIdReusePolicy>,
    /// The span that starts it.
    pub parent: Parent,
}

impl Workflows {
    /// Without workers.
    pub fn new(with: Dependencies) -> Arc<Self> {
        let limit = |limit: Option<u32>| limit.and_then(|limit| usize::try_from(limit).ok());
        let limits = Limits {
            turns: limit(with.settings.max_workflows),
            activities: limit(with.settings.max_activities),
        };
        Arc::new(Self {
            types: ActorTypes::of(&with.namespace, &with.app_id),
            queue: WorkQueue::new(limits),
            activity_failures: Arc::new(ActivityFailures::new(with.settings.max_activity_losses)),
            instance_failures: Arc::new(InstanceFailures::new(with.metrics.failing.clone())),
            workers: Mutex::new(0),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
            unhealthy: Arc::default(),
            instances: std::sync::Mutex::default(),
            with,
        })
    }

    /// Says that instances can be run from now on, by workers that come.
    pub fn begin(&self) {
        tracing::info!(target: LOG, "Workflow engine started");
    }

    /// The app is unhealthy: reminders of activities wait no longer, and come again. What runs goes on.
    pub fn app_is_unhealthy(&self) {
        let mut unhealthy = self
            .unhealthy
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *unhealthy).cancel();
    }

    /// How many workers are connected.
    pub fn workers(&self) -> usize {
        self.queue.streams()
    }

    /// Whether there can be workflows at all.
    ///
    /// # Errors
    /// [`ActorError`] without placement or without a state store of actors.
    pub fn check(&self) -> Result<(), ActorError> {
        self.with.actors.check_available()
    }

    fn hosted_types(&self) -> Vec<String> {
        let ActorTypes {
            workflow,
            activity,
            retentioner,
            executor,
        } = &self.types;
        let executor = self.with.is_clustered.then_some(executor);
        let types = [workflow, activity, retentioner].into_iter().chain(executor);
        types.cloned().collect()
    }

    /// Starts an instance. Without a worker this waits for one, until the future is dropped.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn start(&self, start: Start) -> Result<(), ActorError> {
        let mut span = self.create_span(&start);
        let event = EventType::ExecutionStarted(ExecutionStartedEvent {
            name: start.name,
            input: start.input,
            orchestration_instance: Some(OrchestrationInstance {
                instance_id: start.id.clone(),
                execution_id: Some(uuid::Uuid::new_v4().to_string()),
            }),
            scheduled_start_timestamp: start.at,
            parent_trace_context: trace_context(&span),
            ..ExecutionStartedEvent::default()
        });
        let request = CreateWorkflowInstanceRequest {
            start_event: Some(now(event)),
            policy: Some(start.policy.unwrap_or_default()),
        };
        let call = self.request(methods::CREATE, &start.id, request.encode_to_vec(), PROTOBUF);
        let created = self.counted(Operation::Create, self.create(&call)).await;
        if let Err(error) = &created {
            span.set_status(SpanStatus::Error(error.to_string()));
        }
        created
    }

    async fn create(&self, call: &ActorCall) -> Result<(), ActorError> {
        loop {
            match self.with.actors.invoke_plain(call).await {
                Ok(_) => return Ok(()),
                Err(error) if waits_for_host(&error) => sleep(START_PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    fn create_span(&self, start: &Start) -> Span {
        let name = span_name("create_orchestration", &start.name, &start.version);
        let mut span = self
            .with
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

    /// Sends an event to an instance.
    ///
    /// # Errors
    /// [`ActorError`]; what an unknown instance says is [`NO_INSTANCE`].
    pub async fn add(&self, id: &str, event: EventType) -> Result<(), ActorError> {
        let event = now(event).encode_to_vec();
        let call = self.request(methods::ADD_EVENT, id, event, OCTETS);
        let added = async { self.with.actors.invoke_plain(&call).await.map(|_| ()) };
        self.counted(Operation::AddEvent, added).await
    }

    /// Waits until the status of an instance is one that `until` takes; `None` where it ended without.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn wait(
        &self,
        id: &str,
        until: impl Fn(OrchestrationStatus) -> bool,
    ) -> Result<Option<OrchestrationMetadata>, ActorError> {
        let call = self.request(methods::WATCH, id, Vec::new(), PROTOBUF);
        loop {
            let mut updates = match self.with.actors.watch(&call).await {
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
                    // It moved: it is watched again where it is now.
                    Some(Err(error)) if waits_for_host(&error) => {
                        sleep(WATCH_PAUSE).await;
                        break;
                    }
                    Some(Err(error)) => return Err(error),
                    Some(Ok(any)) => {
                        OrchestrationMetadata::decode(any.value.as_slice()).map_err(|error| {
                            let text = format!("the status of workflow '{id}' cannot be read: {error}");
                            ActorError::Internal(Status::internal(text))
                        })?
                    }
                };
                if until(metadata.runtime_status()) {
                    return Ok(Some(metadata));
                }
                last = Some(metadata);
            }
        }
    }

    /// Starts an instance that goes on from an event of another; its id.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn rerun(&self, mut request: RerunWorkflowFromEventRequest) -> Result<String, ActorError> {
        let invalid = |text: &str| ActorError::Internal(Status::invalid_argument(text));
        if request.source_instance_id.is_empty() {
            return Err(invalid("rerun workflow source instance ID is required"));
        }
        let id = match request.new_instance_id.take() {
            Some(id) => id,
            None => uuid::Uuid::new_v4().to_string(),
        };
        if id == request.source_instance_id {
            let text = "rerun workflow instance ID must be different from the original instance ID";
            return Err(invalid(text));
        }
        request.new_instance_id = Some(id.clone());
        let source = request.source_instance_id.clone();
        let call = self.request(methods::FORK, &source, request.encode_to_vec(), PROTOBUF);
        self.with.actors.invoke_plain(&call).await?;
        Ok(id)
    }

    /// A call of the actor of an instance.
    fn request(&self, method: &str, id: &str, body: Vec<u8>, content_type: HeaderValue) -> ActorCall {
        ActorCall {
            kind: self.types.workflow.clone(),
            id: id.to_owned(),
            method: method.to_owned(),
            content_type: Some(content_type),
            from_grpc: true,
            body: Bytes::from(body),
            ..ActorCall::default()
        }
    }

    async fn counted<T>(
        &self,
        operation: Operation,
        done: impl Future<Output = Result<T, ActorError>>,
    ) -> Result<T, ActorError> {
        let began = Instant::now();
        let done = done.await;
        self.with
            .metrics
            .operation(operation, done.is_ok(), began.elapsed());
        done
    }
}

/// Whether somebody who hosts the instance may come.
fn waits_for_host(error: &ActorError) -> bool {
    let waits = |(code, _)| matches!(code, Code::FailedPrecondition | Code::Unavailable);
    error.is_about_place() || error.status().is_some_and(waits)
}

/// Whether an error says that there is no such instance, with whatever was put before that.
pub fn is_unknown(error: &ActorError) -> bool {
    error.to_string().ends_with(NO_INSTANCE)
}

/// Whether an error says that an instance is stalled: as here, or in the words of Dapr's sidecars.
fn is_stalled(error: &ActorError) -> bool {
    let text = error.to_string();
    ["workflow is stalled", "actor is stalled"]
        .iter()
        .any(|said| text.ends_with(said))
}

/// Whether a status is final.
pub fn is_final(status: OrchestrationStatus) -> bool {
    use OrchestrationStatus as S;
    matches!(status, S::Completed | S::Failed | S::Terminated | S::Canceled)
}

/// An event of this moment, which no history has numbered.
fn now(event: EventType) -> HistoryEvent {
    HistoryEvent {
        event_id: -1,
        timestamp: Some(SystemTime::now().into()),
        event_type: Some(event),
        ..HistoryEvent::default()
    }
}

/// The name of a workflow span.
pub fn span_name(what: &str, name: &str, version: &str) -> String {
    match version {
        "" => format!("{what}||{name}"),
        version => format!("{what}||{name}||{version}"),
    }
}

/// A span as histories carry it.
pub fn trace_context(span: &Span) -> Option<TraceContext> {
    // What is not sampled leaves nothing in a history.
    let context = span.context().filter(|context| context.is_sampled())?;
    Some(TraceContext {
        trace_parent: context.traceparent().as_str().to_owned(),
        span_id: context.span_id_hex(),
        trace_state: span.state().map(|state| state.as_str().to_owned()),
    })
}

/// The parent that a trace context of a history or a request names.
pub fn parent_of(context: Option<&TraceContext>) -> Parent {
    context.map_or_else(Parent::default, |context| {
        let state = context.trace_state.as_deref().unwrap_or_default();
        let TraceContext {
            trace_parent,
            span_id,
            ..
        } = context;
        if trace_parent.split('-').count() == 4 {
            return Parent::from_text(trace_parent, state);
        }
        // The Go SDK gives the ids of trace and span apart, of what is sampled only.
        Parent::from_text(&format!("00-{trace_parent}-{span_id}-01"), state)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_contexts_come_in_two_forms() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let of = |trace_parent: String, span_id: &str| {
            let context = TraceContext {
                trace_parent,
                span_id: span_id.to_owned(),
                trace_state: None,
            };
            parent_of(Some(&context)).context
        };
        let whole = of(format!("00-{trace}-{span}-01"), "");
        assert!(whole.is_some_and(|context| context.is_sampled()));
        assert_eq!(of(trace.to_owned(), span), whole);
        assert_eq!(of(String::new(), ""), None);
    }

    #[test]
    fn an_unknown_instance_is_known_by_what_is_said_wherever_it_lives() {
        let said = Status::not_found(outrigger_workflow::error::AddError::Unknown.to_string());
        let wrapped = Status::internal(format!("error invoke actor method: {}", said.message()));
        assert!(is_unknown(&ActorError::Internal(said)));
        assert!(is_unknown(&ActorError::Peer(wrapped.clone())));
        assert!(is_unknown(&ActorError::Invoke(wrapped.message().to_owned())));
        let stalled = Status::failed_precondition(outrigger_workflow::error::AddError::Stalled.to_string());
        let stalled = ActorError::Internal(stalled);
        assert!(!is_unknown(&stalled) && is_stalled(&stalled));
    }
}
