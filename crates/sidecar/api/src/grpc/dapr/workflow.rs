//! Workflow methods.

use outrigger_blocks_actors::workflow::{InstanceId, WorkflowError};
use outrigger_wire::runtime::v1::{
    GetWorkflowRequest, GetWorkflowResponse, PauseWorkflowRequest, PurgeWorkflowRequest,
    RaiseEventWorkflowRequest, ResumeWorkflowRequest, StartWorkflowRequest, StartWorkflowResponse,
    TerminateWorkflowRequest,
};
use tonic::{Request, Response, Status};

use super::{CurrentSpan, DaprService};
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of(
        "workflows",
        "v1alpha1",
        &[
            "StartWorkflowAlpha1",
            "GetWorkflowAlpha1",
            "TerminateWorkflowAlpha1",
            "RaiseEventWorkflowAlpha1",
            "PurgeWorkflowAlpha1",
            "PauseWorkflowAlpha1",
            "ResumeWorkflowAlpha1",
        ],
    ),
    Group::of(
        "workflows",
        "v1beta1",
        &[
            "StartWorkflowBeta1",
            "GetWorkflowBeta1",
            "TerminateWorkflowBeta1",
            "RaiseEventWorkflowBeta1",
            "PurgeWorkflowBeta1",
            "PauseWorkflowBeta1",
            "ResumeWorkflowBeta1",
        ],
    ),
];

impl DaprService {
    pub(super) async fn start_workflow_alpha1(
        &self,
        request: Request<StartWorkflowRequest>,
    ) -> Result<Response<StartWorkflowResponse>, Status> {
        self.workflow_start(request).await
    }

    pub(super) async fn get_workflow_alpha1(
        &self,
        request: Request<GetWorkflowRequest>,
    ) -> Result<Response<GetWorkflowResponse>, Status> {
        self.workflow_get(request.into_inner()).await
    }

    pub(super) async fn raise_event_workflow_alpha1(
        &self,
        request: Request<RaiseEventWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        self.workflow_raise(request.into_inner()).await
    }

    pub(super) async fn purge_workflow_alpha1(
        &self,
        request: Request<PurgeWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_purge(of, false).await)
    }

    pub(super) async fn terminate_workflow_alpha1(
        &self,
        request: Request<TerminateWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_terminate(of).await)
    }

    pub(super) async fn pause_workflow_alpha1(
        &self,
        request: Request<PauseWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_pause(of).await)
    }

    pub(super) async fn resume_workflow_alpha1(
        &self,
        request: Request<ResumeWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_resume(of).await)
    }

    pub(super) async fn start_workflow_beta1(
        &self,
        request: Request<StartWorkflowRequest>,
    ) -> Result<Response<StartWorkflowResponse>, Status> {
        self.workflow_start(request).await
    }

    pub(super) async fn get_workflow_beta1(
        &self,
        request: Request<GetWorkflowRequest>,
    ) -> Result<Response<GetWorkflowResponse>, Status> {
        self.workflow_get(request.into_inner()).await
    }

    pub(super) async fn raise_event_workflow_beta1(
        &self,
        request: Request<RaiseEventWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        self.workflow_raise(request.into_inner()).await
    }

    pub(super) async fn purge_workflow_beta1(
        &self,
        request: Request<PurgeWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_purge(of, false).await)
    }

    pub(super) async fn terminate_workflow_beta1(
        &self,
        request: Request<TerminateWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_terminate(of).await)
    }

    pub(super) async fn pause_workflow_beta1(
        &self,
        request: Request<PauseWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_pause(of).await)
    }

    pub(super) async fn resume_workflow_beta1(
        &self,
        request: Request<ResumeWorkflowRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.get_ref();
        let of = of(&request.instance_id, request.app_id.as_deref());
        self.workflow_done(self.workflows.manage_resume(of).await)
    }

    async fn workflow_start(
        &self,
        request: Request<StartWorkflowRequest>,
    ) -> Result<Response<StartWorkflowResponse>, Status> {
        let span = request.extensions().get::<CurrentSpan>();
        let parent = span.map(|span| span.0.clone()).unwrap_or_default();
        let started = self.workflows.manage_start(request.into_inner(), parent).await;
        let instance_id = started.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(StartWorkflowResponse { instance_id }))
    }

    async fn workflow_get(
        &self,
        request: GetWorkflowRequest,
    ) -> Result<Response<GetWorkflowResponse>, Status> {
        let of = of(&request.instance_id, request.app_id.as_deref());
        let found = self.workflows.manage_get(of).await;
        let found = found.map_err(|error| self.fail(&error.into()))?;
        // Callers recognise an unknown instance because all other fields are empty.
        Ok(Response::new(found.unwrap_or_else(|| GetWorkflowResponse {
            instance_id: request.instance_id,
            ..GetWorkflowResponse::default()
        })))
    }

    async fn workflow_raise(&self, request: RaiseEventWorkflowRequest) -> Result<Response<()>, Status> {
        let RaiseEventWorkflowRequest {
            instance_id,
            event_name,
            event_data,
            app_id,
            ..
        } = request;
        // gRPC does not distinguish absent data from empty data.
        let data = (!event_data.is_empty()).then_some(&*event_data);
        let of = of(&instance_id, app_id.as_deref());
        let raised = self.workflows.manage_raise(of, &event_name, data).await;
        self.workflow_done(raised)
    }

    fn workflow_done(&self, done: Result<(), WorkflowError>) -> Result<Response<()>, Status> {
        done.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(()))
    }
}

const fn of<'a>(id: &'a str, app: Option<&'a str>) -> InstanceId<'a> {
    InstanceId { id, app }
}
