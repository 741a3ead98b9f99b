//! Job methods.

use outrigger_wire::runtime::v1::{
    DeleteJobRequest, DeleteJobResponse, GetJobRequest, GetJobResponse, Job, ScheduleJobRequest,
    ScheduleJobResponse,
};
use tonic::{Response, Status};

use super::DaprService;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of(
        "jobs",
        "v1",
        &[
            "ScheduleJob",
            "DeleteJob",
            "GetJob",
            "DeleteJobsByPrefix",
            "ListJobs",
        ],
    ),
    Group::of(
        "jobs",
        "v1alpha1",
        &[
            "ScheduleJobAlpha1",
            "DeleteJobAlpha1",
            "GetJobAlpha1",
            "DeleteJobsByPrefixAlpha1",
            "ListJobsAlpha1",
        ],
    ),
];

impl DaprService {
    pub(super) async fn job_schedule(
        &self,
        request: ScheduleJobRequest,
    ) -> Result<Response<ScheduleJobResponse>, Status> {
        let scheduled = self.blocks.jobs.schedule(request.job, request.overwrite).await;
        scheduled.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(ScheduleJobResponse {}))
    }

    pub(super) async fn job_get(&self, request: GetJobRequest) -> Result<Response<GetJobResponse>, Status> {
        let job = self.blocks.jobs.get(request.name).await;
        let job = job.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(GetJobResponse { job: Some(job) }))
    }

    pub(super) async fn job_delete(
        &self,
        request: &DeleteJobRequest,
    ) -> Result<Response<DeleteJobResponse>, Status> {
        let deleted = self.blocks.jobs.delete(&request.name).await;
        deleted.map_err(|error| self.fail(&error.into()))?;
        Ok(Response::new(DeleteJobResponse {}))
    }

    pub(super) async fn job_delete_prefix(&self, prefix: &str) -> Result<(), Status> {
        let deleted = self.blocks.jobs.delete_prefix(prefix).await;
        deleted.map_err(|error| self.fail(&error.into()))
    }

    pub(super) async fn job_list(&self) -> Result<Vec<Job>, Status> {
        let jobs = self.blocks.jobs.list().await;
        jobs.map_err(|error| self.fail(&error.into()))
    }
}
