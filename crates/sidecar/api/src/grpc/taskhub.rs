//! `TaskHubSidecarService`, the protocol of workflow SDKs for clients and workers.

use std::sync::Arc;

use outrigger_blocks_actors::actors::ActorError;
use outrigger_blocks_actors::workflow::{ItemCodec, Start, Workflows, is_final, parent_of};
use outrigger_telemetry::trace::Parent;
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::purge_instances_request::Request as Purge;
use outrigger_wire::durabletask::task_hub_sidecar_service_server::TaskHubSidecarService;
use outrigger_wire::durabletask::{
    ActivityResponse, CompleteTaskResponse, CreateInstanceRequest, CreateInstanceResponse, EventRaisedEvent,
    ExecutionResumedEvent, ExecutionSuspendedEvent, ExecutionTerminatedEvent, GetInstanceHistoryRequest,
    GetInstanceHistoryResponse, GetInstanceRequest, GetInstanceResponse, GetWorkItemsRequest,
    ListInstanceIDsRequest, ListInstanceIDsResponse, OrchestrationStatus, PurgeInstancesRequest,
    PurgeInstancesResponse, RaiseEventRequest, RaiseEventResponse, RerunWorkflowFromEventRequest,
    RerunWorkflowFromEventResponse, ResumeRequest, ResumeResponse, SuspendRequest, SuspendResponse,
    TerminateRequest, TerminateResponse, WorkItem, WorkerCapability, WorkflowResponse, WorkflowState,
};
use tonic::body::Body as TonicBody;
use tonic::codegen::BoxStream;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};

use super::CurrentSpan;
use super::boxed::boxed_methods;
use crate::error::ApiError;

/// Path prefix of the service's methods; it has no package.
pub(super) const SERVICE: &str = "/TaskHubSidecarService/";
/// The only streaming method.
pub(super) const GET_WORK_ITEMS: &str = "/TaskHubSidecarService/GetWorkItems";
/// The response of a worker to a turn.
pub(super) const COMPLETE_TURN: &str = "/TaskHubSidecarService/CompleteWorkflowTask";
/// The same method under its deprecated name.
pub(super) const COMPLETE_TURN_OLD: &str = "/TaskHubSidecarService/CompleteOrchestratorTask";
/// The response of a worker to an activity.
pub(super) const COMPLETE_ACTIVITY: &str = "/TaskHubSidecarService/CompleteActivityTask";

/// The gRPC service for workflow clients and workers.
#[derive(Clone)]
pub struct TaskHub {
    /// The workflow engine behind it.
    pub workflows: Arc<Workflows>,
}

impl TaskHub {
    /// Serves [`GET_WORK_ITEMS`]. Work items are sent in their stored encoding.
    pub(super) async fn work(&self, request: http::Request<TonicBody>) -> http::Response<TonicBody> {
        let workflows = Arc::clone(&self.workflows);
        let open = tower::service_fn(move |request: Request<GetWorkItemsRequest>| {
            let workflows = Arc::clone(&workflows);
            async move {
                if let Some(agent) = request.metadata().get("user-agent") {
                    tracing::info!(target: "dapr.wfengine", "worker connected for work items, user agent {agent:?}");
                }
                let stateful = i32::from(WorkerCapability::StatefulHistory);
                let is_stateful = request.get_ref().capabilities.contains(&stateful);
                let mut items = workflows.open_worker(is_stateful).await?;
                Ok(Response::new(futures::stream::poll_fn(move |cx| {
                    items.poll_recv(cx)
                })))
            }
        });
        Grpc::new(ItemCodec).server_streaming(open, request).await
    }

    fn check(&self) -> Result<(), Status> {
        self.workflows.check().map_err(|error| failed(&error, ""))
    }

    async fn add(&self, id: &str, event: EventType, what: &str) -> Result<(), Status> {
        self.check()?;
        let added = self.workflows.add(None, id, event).await;
        added.map_err(|error| failed(&error, what))
    }

    async fn wait(
        &self,
        request: &GetInstanceRequest,
        until: impl Fn(OrchestrationStatus) -> bool,
    ) -> Result<GetInstanceResponse, Status> {
        self.check()?;
        let found = self.workflows.wait(&request.instance_id, until).await;
        let found = found.map_err(|error| failed(&error, ""))?;
        Ok(described(request, found))
    }

    /// Waits until an instance has `status` or a final one.
    async fn wait_or_end(&self, id: String, status: OrchestrationStatus) -> Result<(), Status> {
        let request = GetInstanceRequest {
            instance_id: id,
            ..GetInstanceRequest::default()
        };
        let is_met = |now| now == status || is_final(now);
        self.wait(&request, is_met).await.map(|_| ())
    }
}

/// The status of an error; `what` names the failed operation. Actor errors have codes only if the contract
/// defines them.
fn failed(error: &ActorError, what: &str) -> Status {
    let code = match error {
        // An id in use, or in use by a child that cannot be asked.
        ActorError::Internal(status) if matches!(status.code(), Code::AlreadyExists | Code::Unavailable) => {
            status.code()
        }
        ActorError::Internal(_) => Code::Unknown,
        ActorError::Peer(status) | ActorError::Cut(status) => status.code(),
        ActorError::NoPlacement
        | ActorError::NoNamespace
        | ActorError::NoStore
        | ActorError::Ended
        | ActorError::Illegal(_) => ApiError::from(error.clone()).grpc,
        _ => Code::Unknown,
    };
    let text = match what {
        "" => error.to_string(),
        what => format!("{what}: {error}"),
    };
    Status::new(code, text)
}

fn described(request: &GetInstanceRequest, found: Option<WorkflowMetadata>) -> GetInstanceResponse {
    let Some(found) = found else {
        return GetInstanceResponse::default();
    };
    let mut state = WorkflowState {
        instance_id: request.instance_id.clone(),
        name: found.name,
        workflow_status: found.runtime_status,
        created_timestamp: found.created_at,
        last_updated_timestamp: found.last_updated_at,
        version: found.version,
        parent_app_id: found.parent_app_id,
        parent_instance_id: Some(found.parent_instance_id).filter(|parent| !parent.is_empty()),
        started_at: found.started_at,
        ..WorkflowState::default()
    };
    if request.get_inputs_and_outputs {
        state.input = found.input;
        state.output = found.output;
        state.custom_status = found.custom_status;
        state.failure_details = found.failure_details;
    }
    GetInstanceResponse {
        exists: true,
        workflow_state: Some(state),
    }
}

/// The parent span of a request: the one it names, else the one it arrived with.
fn parent(request: &Request<CreateInstanceRequest>) -> Parent {
    match &request.get_ref().parent_trace_context {
        Some(context) => parent_of(Some(context)),
        None => request
            .extensions()
            .get::<CurrentSpan>()
            .map(|span| span.0.clone())
            .unwrap_or_default(),
    }
}

boxed_methods! {
    impl TaskHubSidecarService for TaskHub {
        hello(Request<()>) -> Response<()>;
        start_instance(Request<CreateInstanceRequest>) -> Response<CreateInstanceResponse>;
        get_instance(Request<GetInstanceRequest>) -> Response<GetInstanceResponse>;
        wait_for_instance_start(Request<GetInstanceRequest>) -> Response<GetInstanceResponse>;
        wait_for_instance_completion(Request<GetInstanceRequest>) -> Response<GetInstanceResponse>;
        raise_event(Request<RaiseEventRequest>) -> Response<RaiseEventResponse>;
        terminate_instance(Request<TerminateRequest>) -> Response<TerminateResponse>;
        suspend_instance(Request<SuspendRequest>) -> Response<SuspendResponse>;
        resume_instance(Request<ResumeRequest>) -> Response<ResumeResponse>;
        purge_instances(Request<PurgeInstancesRequest>) -> Response<PurgeInstancesResponse>;
        get_work_items(Request<GetWorkItemsRequest>) -> Response<BoxStream<WorkItem>>;
        complete_activity_task(Request<ActivityResponse>) -> Response<CompleteTaskResponse>;
        complete_workflow_task(Request<WorkflowResponse>) -> Response<CompleteTaskResponse>;
        complete_orchestrator_task(Request<WorkflowResponse>) -> Response<CompleteTaskResponse>;
        rerun_workflow_from_event(Request<RerunWorkflowFromEventRequest>) -> Response<RerunWorkflowFromEventResponse>;
        list_instance_i_ds(Request<ListInstanceIDsRequest>) -> Response<ListInstanceIDsResponse>;
        get_instance_history(Request<GetInstanceHistoryRequest>) -> Response<GetInstanceHistoryResponse>;
    }
}

impl TaskHub {
    async fn hello(&self, _request: Request<()>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }

    async fn start_instance(
        &self,
        request: Request<CreateInstanceRequest>,
    ) -> Result<Response<CreateInstanceResponse>, Status> {
        self.check()?;
        let parent = parent(&request);
        let request = request.into_inner();
        let instance_id = request.instance_id;
        let starts_now = request.scheduled_start_timestamp.is_none();
        let start = Start {
            id: instance_id.clone(),
            app: None,
            name: request.name,
            version: request.version.unwrap_or_default(),
            input: request.input,
            at: request.scheduled_start_timestamp,
            parent,
        };
        let started = self.workflows.start(start).await;
        started.map_err(|error| failed(&error, "failed to create workflow instance"))?;
        if starts_now {
            let request = GetInstanceRequest {
                instance_id: instance_id.clone(),
                ..GetInstanceRequest::default()
            };
            self.wait(&request, has_begun).await?;
        }
        Ok(Response::new(CreateInstanceResponse { instance_id }))
    }

    async fn get_instance(
        &self,
        request: Request<GetInstanceRequest>,
    ) -> Result<Response<GetInstanceResponse>, Status> {
        self.check()?;
        let request = request.into_inner();
        let found = self.workflows.get(&request.instance_id).await;
        let found = found.map_err(|error| failed(&error, ""))?;
        Ok(Response::new(described(&request, found)))
    }

    async fn wait_for_instance_start(
        &self,
        request: Request<GetInstanceRequest>,
    ) -> Result<Response<GetInstanceResponse>, Status> {
        let found = self.wait(request.get_ref(), has_begun).await?;
        Ok(Response::new(found))
    }

    async fn wait_for_instance_completion(
        &self,
        request: Request<GetInstanceRequest>,
    ) -> Result<Response<GetInstanceResponse>, Status> {
        let found = self.wait(request.get_ref(), is_final).await?;
        Ok(Response::new(found))
    }

    async fn raise_event(
        &self,
        request: Request<RaiseEventRequest>,
    ) -> Result<Response<RaiseEventResponse>, Status> {
        let RaiseEventRequest {
            instance_id,
            name,
            input,
        } = request.into_inner();
        let event = EventType::EventRaised(EventRaisedEvent { name, input });
        self.add(&instance_id, event, "").await?;
        Ok(Response::new(RaiseEventResponse {}))
    }

    async fn terminate_instance(
        &self,
        request: Request<TerminateRequest>,
    ) -> Result<Response<TerminateResponse>, Status> {
        let TerminateRequest {
            instance_id,
            output,
            recursive,
        } = request.into_inner();
        let event = EventType::ExecutionTerminated(ExecutionTerminatedEvent {
            input: output,
            recurse: recursive,
        });
        self.add(&instance_id, event, "failed to submit termination request")
            .await?;
        self.wait_or_end(instance_id, OrchestrationStatus::Terminated)
            .await?;
        Ok(Response::new(TerminateResponse {}))
    }

    async fn suspend_instance(
        &self,
        request: Request<SuspendRequest>,
    ) -> Result<Response<SuspendResponse>, Status> {
        let SuspendRequest { instance_id, reason } = request.into_inner();
        let input = reason.filter(|reason| !reason.is_empty());
        let event = EventType::ExecutionSuspended(ExecutionSuspendedEvent { input });
        self.add(&instance_id, event, "").await?;
        self.wait_or_end(instance_id, OrchestrationStatus::Suspended)
            .await?;
        Ok(Response::new(SuspendResponse {}))
    }

    async fn resume_instance(
        &self,
        request: Request<ResumeRequest>,
    ) -> Result<Response<ResumeResponse>, Status> {
        let ResumeRequest { instance_id, reason } = request.into_inner();
        let input = reason.filter(|reason| !reason.is_empty());
        let event = EventType::ExecutionResumed(ExecutionResumedEvent { input });
        self.add(&instance_id, event, "").await?;
        self.wait_or_end(instance_id, OrchestrationStatus::Running)
            .await?;
        Ok(Response::new(ResumeResponse {}))
    }

    async fn purge_instances(
        &self,
        request: Request<PurgeInstancesRequest>,
    ) -> Result<Response<PurgeInstancesResponse>, Status> {
        self.check()?;
        let request = request.into_inner();
        let force = request.force();
        let id = match request.request {
            Some(Purge::PurgeInstanceFilter(_)) => {
                return Err(Status::unknown(
                    "multi-instance purge is not unimplemented: purge instances by their ids",
                ));
            }
            Some(Purge::InstanceId(id)) => id,
            None => String::new(),
        };
        let purged = self.workflows.purge(&id, request.recursive, force).await;
        if let Some(error) = purged.error {
            return Err(failed(&error, "failed to purge workflow state"));
        }
        Ok(Response::new(PurgeInstancesResponse {
            deleted_instance_count: i32::try_from(purged.count).unwrap_or(i32::MAX),
            ..PurgeInstancesResponse::default()
        }))
    }

    async fn get_work_items(
        &self,
        request: Request<GetWorkItemsRequest>,
    ) -> Result<Response<BoxStream<WorkItem>>, Status> {
        // `TaskHub::work` serves it, because stored work items are not messages of the generated service.
        let agent = request.metadata().get("user-agent");
        let agent = agent.and_then(|agent| agent.to_str().ok()).unwrap_or("none");
        Err(Status::internal(format!(
            "the sidecar did not pass a worker's call of {GET_WORK_ITEMS} (user agent: {agent}) to the work queue: \
             this is a bug of the sidecar, report it with the sidecar's version"
        )))
    }

    async fn complete_activity_task(
        &self,
        request: Request<ActivityResponse>,
    ) -> Result<Response<CompleteTaskResponse>, Status> {
        let response = request.into_inner();
        let (id, task) = (response.instance_id.clone(), response.task_id);
        if !self.workflows.workers().activity_done(response).await? {
            tracing::warn!(
                target: "dapr.wfengine",
                "ignored the result of activity {task} of workflow '{id}': it is not pending"
            );
        }
        Ok(Response::new(CompleteTaskResponse {}))
    }

    async fn complete_orchestrator_task(
        &self,
        request: Request<WorkflowResponse>,
    ) -> Result<Response<CompleteTaskResponse>, Status> {
        self.complete_workflow_task(request).await
    }

    async fn complete_workflow_task(
        &self,
        request: Request<WorkflowResponse>,
    ) -> Result<Response<CompleteTaskResponse>, Status> {
        let response = request.into_inner();
        let id = response.instance_id.clone();
        if !self.workflows.workers().step_done(response).await? {
            tracing::warn!(
                target: "dapr.wfengine",
                "ignored the result of a step of workflow '{id}': it is not pending"
            );
        }
        Ok(Response::new(CompleteTaskResponse {}))
    }

    async fn rerun_workflow_from_event(
        &self,
        request: Request<RerunWorkflowFromEventRequest>,
    ) -> Result<Response<RerunWorkflowFromEventResponse>, Status> {
        self.check()?;
        let rerun = self.workflows.rerun(request.into_inner()).await;
        let new_instance_id = rerun.map_err(|error| match error.status() {
            Some((code, text)) => Status::new(code, text),
            None => failed(&error, ""),
        })?;
        let request = GetInstanceRequest {
            instance_id: new_instance_id.clone(),
            ..GetInstanceRequest::default()
        };
        self.wait(&request, has_begun).await?;
        Ok(Response::new(RerunWorkflowFromEventResponse { new_instance_id }))
    }

    async fn list_instance_i_ds(
        &self,
        request: Request<ListInstanceIDsRequest>,
    ) -> Result<Response<ListInstanceIDsResponse>, Status> {
        self.check()?;
        let ListInstanceIDsRequest {
            continuation_token,
            page_size,
        } = request.into_inner();
        let page = self.workflows.list(continuation_token, page_size).await;
        let page = page.map_err(|error| failed(&error, ""))?;
        Ok(Response::new(ListInstanceIDsResponse {
            instance_ids: page.keys,
            continuation_token: page.token,
        }))
    }

    async fn get_instance_history(
        &self,
        request: Request<GetInstanceHistoryRequest>,
    ) -> Result<Response<GetInstanceHistoryResponse>, Status> {
        self.check()?;
        let id = request.into_inner().instance_id;
        let found = self.workflows.history(&id).await;
        let events = found
            .map_err(|error| failed(&error, ""))?
            .ok_or_else(|| Status::not_found(format!("workflow instance '{id}' not found")))?;
        Ok(Response::new(GetInstanceHistoryResponse { events }))
    }
}

fn has_begun(status: OrchestrationStatus) -> bool {
    status != OrchestrationStatus::Pending
}
