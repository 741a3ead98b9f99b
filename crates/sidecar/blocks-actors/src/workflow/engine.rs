//! What the actors of workflows share: who they are, the way to other actors, reminders, and the app's workers.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use outrigger_resources::configuration::Retention;
use outrigger_telemetry::trace::Tracer;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_workflow::error::StoredError;
use outrigger_workflow::names::ActorTypes;
use outrigger_workflow::{Arrival, Limit, Origin};
use prost::Message as _;
use prost_types::{Any, Timestamp};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

use super::activity::actor::Activities;
use super::activity::failures::ActivityFailures;
use super::instance::actor::Instances;
use super::instance::failures::InstanceFailures;
use super::instance::retention::Retentioners;
use super::metrics::WorkflowMetrics;
use super::worker::executor::Executors;
use super::worker::queue::WorkQueue;
use super::{LOG, Workflows};
use crate::actors::internal::PROTOBUF;
use crate::actors::{ActorCall, ActorError, Actors, InternalActors};

/// Methods of workflow actors.
pub(crate) mod methods {
    /// Creates an instance: `CreateWorkflowInstanceRequest`.
    pub(in crate::workflow) const CREATE: &str = "CreateWorkflowInstance";
    /// Adds an event: `HistoryEvent`.
    pub(in crate::workflow) const ADD_EVENT: &str = "AddWorkflowEvent";
    /// Removes the state of an instance that has ended.
    pub(in crate::workflow) const PURGE: &str = "PurgeWorkflowState";
    /// Watches the status of an instance: `OrchestrationMetadata`, one after the other.
    pub(in crate::workflow) const WATCH: &str = "WaitForRuntimeStatus";
    /// Begins another instance from an event of this one: `RerunWorkflowFromEventRequest`.
    pub(in crate::workflow) const FORK: &str = "ForkWorkflowHistory";
    /// Begins an instance with a history: `WorkflowState`.
    pub(in crate::workflow) const RERUN: &str = "RerunWorkflowInstance";
    /// Starts an activity: `HistoryEvent`.
    pub(in crate::workflow) const EXECUTE: &str = "Execute";
    /// Brings an answer to an executor: `OrchestratorResponse` or `ActivityResponse`.
    pub(in crate::workflow) const COMPLETE: &str = "Complete";
    /// The worker of an executor's work went away.
    pub(in crate::workflow) const CANCEL: &str = "Cancel";
    /// Waits for the answer that is brought to an executor.
    pub(in crate::workflow) const WATCH_COMPLETE: &str = "WatchComplete";
}

/// Says that a purge is the retention's, whose reminder ends by itself.
pub(crate) const RETENTION_CALL: &str = "purgeretentioncall";
/// When an activity is due, milliseconds since 1970.
pub(crate) const DUE_TIME: &str = "duetime";

/// What the actors of an app's workflows share.
pub(crate) struct Engine {
    pub(crate) app_id: Arc<str>,
    namespace: Arc<str>,
    actors: Weak<Actors>,
    /// The app's workers.
    pub(crate) queue: Arc<WorkQueue>,
    /// Activities whose workers went away.
    pub(crate) activity_failures: Arc<ActivityFailures>,
    /// Instances whose runs fail.
    pub(crate) instance_failures: Arc<InstanceFailures>,
    /// Cancelled when the app becomes unhealthy.
    unhealthy: Arc<Mutex<CancellationToken>>,
    /// Largest body.
    pub(crate) limit: Limit,
    /// When instances that have ended go.
    pub(crate) retention: Option<Retention>,
    /// Results of activities become reminders where the workflow's app is not there.
    pub(crate) remote_results: bool,
    /// Answers of workers may reach any sidecar of the app.
    pub(crate) is_clustered: bool,
    pub(crate) types: ActorTypes,
    /// Starts spans.
    pub(crate) tracer: Tracer,
    /// What is counted.
    pub(crate) metrics: Arc<WorkflowMetrics>,
    /// What goes on beside turns, and ends before the sidecar does.
    pub(crate) tasks: TaskTracker,
}

impl Workflows {
    /// The actors to host while there are workers.
    pub(crate) fn actors_of_app(&self) -> Vec<(String, Arc<dyn InternalActors>)> {
        // Workers that come now may have other code.
        self.instance_failures.forget();
        let engine = Arc::new(self.engine());
        let types = engine.types.clone();
        let instances = Arc::new(Instances::new(Arc::clone(&engine)));
        *self.instances.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&instances);
        let mut actors: Vec<(String, Arc<dyn InternalActors>)> = vec![
            (types.workflow, instances),
            (types.activity, Arc::new(Activities::new(Arc::clone(&engine)))),
            (types.retentioner, Arc::new(Retentioners::new(engine))),
        ];
        if self.with.is_clustered {
            actors.push((types.executor, Arc::<Executors>::default()));
        }
        actors
    }

    /// What actors share.
    pub(crate) fn engine(&self) -> Engine {
        Engine {
            app_id: Arc::clone(&self.with.app_id),
            namespace: Arc::clone(&self.with.namespace),
            actors: Arc::downgrade(&self.with.actors),
            queue: Arc::clone(&self.queue),
            activity_failures: Arc::clone(&self.activity_failures),
            instance_failures: Arc::clone(&self.instance_failures),
            unhealthy: Arc::clone(&self.unhealthy),
            limit: Limit(self.with.max_message.unwrap_or_default()),
            retention: self.with.settings.retention,
            remote_results: self.with.remote_results,
            is_clustered: self.with.is_clustered,
            types: self.types.clone(),
            tracer: self.with.tracer.clone(),
            metrics: Arc::clone(&self.with.metrics),
            tasks: self.tasks.clone(),
        }
    }
}

impl Engine {
    pub(crate) fn actors(&self) -> Result<Arc<Actors>, ActorError> {
        self.actors.upgrade().ok_or(ActorError::Ended)
    }

    /// Cancelled when the app becomes unhealthy next.
    pub(crate) fn unhealthy(&self) -> CancellationToken {
        self.unhealthy
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The types of an app of this namespace; of this one where none is named.
    pub(crate) fn types_of(&self, app: Option<&str>) -> ActorTypes {
        match app {
            Some(app) if *app != *self.app_id => ActorTypes::of(&self.namespace, app),
            _ => self.types.clone(),
        }
    }

    /// Calls an actor, wherever it lives.
    pub(crate) async fn call(
        &self,
        kind: &str,
        id: &str,
        method: &str,
        metadata: HeaderMap,
        body: Bytes,
    ) -> Result<(), ActorError> {
        let call = ActorCall {
            kind: kind.to_owned(),
            id: id.to_owned(),
            method: method.to_owned(),
            content_type: Some(PROTOBUF),
            metadata,
            from_grpc: true,
            body,
            ..ActorCall::default()
        };
        self.actors()?.invoke_plain(&call).await.map(|_| ())
    }

    /// Adds an event to an instance of an app.
    pub(crate) async fn add_event(
        &self,
        app: Option<&str>,
        instance: &str,
        event: &HistoryEvent,
        origin: &Origin,
    ) -> Result<(), ActorError> {
        let kind = self.types_of(app).workflow;
        let mut body = event.encode_to_vec();
        origin.append_to(&mut body);
        self.call(&kind, instance, methods::ADD_EVENT, HeaderMap::new(), body.into())
            .await
    }
}

/// Metadata of one entry.
pub(crate) fn metadata(name: &'static str, value: &str) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(value) {
        metadata.insert(name, value);
    }
    metadata
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}

/// An id that is nobody else's.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// A message in the form that says which one it is.
pub(crate) fn any(name: &str, message: &impl prost::Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

/// The same, with the execution that it is for.
pub(crate) fn any_for(name: &str, message: &impl prost::Message, origin: &Origin) -> Any {
    let mut any = any(name, message);
    origin.append_to(&mut any.value);
    any
}

/// Reads an event that comes to an instance.
pub(crate) fn arrival(encoded: &[u8]) -> Result<Arrival, Status> {
    let event = decode("the event", encoded)?;
    let origin = Origin::read(encoded);
    Ok(Arrival { event, origin })
}

/// Reads a body of a call.
pub(crate) fn decode<M: prost::Message + Default>(what: &str, body: impl bytes::Buf) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::invalid_argument(format!("{what} cannot be read: {error}")))
}

/// A failure without a code of its own.
pub(crate) fn plain(error: impl std::fmt::Display) -> Status {
    Status::unknown(error.to_string())
}

/// What is stored of an instance cannot be used: no repetition mends that.
pub(crate) fn broken(error: &StoredError) -> Status {
    Status::data_loss(error.to_string())
}

/// Whether that is what an error says.
pub(crate) fn is_broken(code: Code) -> bool {
    code == Code::DataLoss
}

/// How often a step is repeated at once because the stored state of its instance has changed. Behind that its reminder or
/// its sender repeats it.
const MAX_REPEATS: usize = 3;

/// The store has another state of an instance than the one that was read: another sidecar has written it, or it was restored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the stored state has changed")]
struct StateChanged;

/// The status of a step that found the stored state changed.
pub(crate) fn state_changed(error: impl std::fmt::Display) -> Status {
    let mut status = retry_later(error);
    status.set_source(Arc::new(StateChanged));
    status
}

/// Whether that is what a status says.
pub(crate) fn is_state_changed(status: &Status) -> bool {
    std::error::Error::source(status).is_some_and(<dyn std::error::Error>::is::<StateChanged>)
}

/// Repeats a step of an instance at once where the stored state has changed: it reads the instance anew.
pub(crate) async fn repeat_on_change<T, F>(id: &str, mut step: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    for _ in 0..MAX_REPEATS {
        match step().await {
            Err(error) if is_state_changed(&error) => {
                let why = error.message();
                tracing::info!(target: LOG, "workflow '{id}' is read again, its stored state has changed: {why}");
            }
            done => return done,
        }
    }
    step().await
}

/// An error that passes: the scheduler triggers the reminder again.
pub(crate) fn retry_later(error: impl std::fmt::Display) -> Status {
    Status::new(Code::Aborted, error.to_string())
}
