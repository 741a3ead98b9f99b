//! Shared state of all workflow actors of an app: names, settings, and calls to other actors.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use http::HeaderMap;
use outrigger_identity::Identity;
use outrigger_resources::configuration as settings;
use outrigger_telemetry::trace::Tracer;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_workflow::names::ActorTypes;
use outrigger_workflow::{Limit, Origin};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::WorkflowAccess;
use super::metrics::WorkflowMetrics;
use super::own::OwnWork;
use super::protocol::methods;
use crate::actors::internal::PROTOBUF;
use crate::actors::{ActorCall, ActorError, Actors};

/// Maximum concurrent calls of one step.
pub(crate) const MAX_CONCURRENT: usize = 32;

/// The dependencies of `Workflows`.
pub struct Dependencies {
    /// This app's id.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Hosts instances.
    pub actors: Arc<Actors>,
    /// Decides about calls of other apps.
    pub access: Arc<WorkflowAccess>,
    /// `spec.workflow`.
    pub settings: settings::Workflow,
    /// Whether results for workflows of unreachable apps become reminders there.
    pub remote_results: bool,
    /// Whether worker answers may reach another sidecar of the app than the one that sent the work.
    pub is_clustered: bool,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counters of workflows and activities.
    pub metrics: Arc<WorkflowMetrics>,
    /// Largest message, bytes; `None` = no limit.
    pub max_message: Option<usize>,
    /// Signs histories; `None` if they are not signed.
    pub signer: Option<Identity>,
    /// Runs workflows and activities of the sidecar itself.
    pub own: Arc<dyn OwnWork>,
}

pub(crate) struct Engine {
    pub(crate) app_id: Arc<str>,
    pub(crate) namespace: Arc<str>,
    /// Weak, because actors own the workflow actors, which own this.
    actors: Weak<Actors>,
    /// Cancelled and replaced when the app becomes unhealthy.
    unhealthy: Mutex<CancellationToken>,
    /// Maximum body size.
    pub(crate) limit: Limit,
    /// When completed instances are purged.
    pub(crate) retention: Option<settings::Retention>,
    /// Whether results for workflows of unreachable apps become reminders there.
    pub(crate) remote_results: bool,
    /// Whether worker answers may reach any sidecar of the app.
    pub(crate) is_clustered: bool,
    pub(crate) types: ActorTypes,
    /// Decides about calls of other apps.
    pub(crate) access: Arc<WorkflowAccess>,
    pub(crate) tracer: Tracer,
    pub(crate) metrics: Arc<WorkflowMetrics>,
    /// Signs histories; `None` if they are not signed.
    pub(crate) signer: Option<Identity>,
    /// Background tasks that must end before the sidecar does.
    pub(crate) tasks: TaskTracker,
}

impl Engine {
    pub(crate) fn new(with: Dependencies) -> Arc<Self> {
        Arc::new(Self {
            types: ActorTypes::of(&with.namespace, &with.app_id),
            app_id: with.app_id,
            namespace: with.namespace,
            actors: Arc::downgrade(&with.actors),
            access: with.access,
            unhealthy: Mutex::default(),
            limit: Limit(with.max_message.unwrap_or_default()),
            retention: with.settings.retention,
            remote_results: with.remote_results,
            is_clustered: with.is_clustered,
            tracer: with.tracer,
            metrics: with.metrics,
            signer: with.signer,
            tasks: TaskTracker::new(),
        })
    }

    pub(crate) fn actors(&self) -> Result<Arc<Actors>, ActorError> {
        self.actors.upgrade().ok_or(ActorError::Ended)
    }

    /// Cancelled when the app next becomes unhealthy.
    pub(crate) fn unhealthy(&self) -> CancellationToken {
        let token = self.unhealthy.lock();
        token.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn app_is_unhealthy(&self) {
        let mut token = self.unhealthy.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }

    /// The actor types of an app of this namespace; by default of this app.
    pub(crate) fn types_of(&self, app: Option<&str>) -> ActorTypes {
        match app {
            Some(app) if *app != *self.app_id => ActorTypes::of(&self.namespace, app),
            _ => self.types.clone(),
        }
    }

    pub(crate) async fn call(
        &self,
        kind: &str,
        id: &str,
        method: &str,
        metadata: HeaderMap,
        body: Bytes,
    ) -> Result<(), ActorError> {
        let call = ActorCall {
            metadata,
            ..request(kind, id, method, body)
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

/// A call to an internal actor with an encoded message as body.
pub(crate) fn request(kind: &str, id: &str, method: &str, body: impl Into<Bytes>) -> ActorCall {
    ActorCall {
        kind: kind.to_owned(),
        id: id.to_owned(),
        method: method.to_owned(),
        content_type: Some(PROTOBUF),
        from_grpc: true,
        body: body.into(),
        ..ActorCall::default()
    }
}
