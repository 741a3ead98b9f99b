//! Errors of the jobs block.

use http::StatusCode;
use outrigger_blocks::jobs::{Cause, JobsError};
use outrigger_policy::status::http_from_grpc;
use tonic::Code;

use super::{ApiError, Detail};

impl From<JobsError> for ApiError {
    fn from(error: JobsError) -> Self {
        let bad = (StatusCode::BAD_REQUEST, Code::InvalidArgument);
        let internal = (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal);
        let (code, (http, grpc)) = match &error.cause {
            Cause::Empty("Job") => ("DAPR_SCHEDULER_EMPTY", bad),
            Cause::Empty("Name") => ("DAPR_SCHEDULER_JOB_NAME_EMPTY", bad),
            Cause::Empty(_) => ("DAPR_SCHEDULER_SCHEDULE_EMPTY", bad),
            Cause::NameTwice => ("DAPR_SCHEDULER_JOB_NAME", bad),
            Cause::Data(..) => ("DAPR_SCHEDULER_SCHEDULE_JOB", bad),
            Cause::Schedule(cause) => {
                let both = match cause.code() {
                    Code::Unknown => internal,
                    code => {
                        let http = StatusCode::from_u16(http_from_grpc(code as i32));
                        (http.unwrap_or(internal.0), code)
                    }
                };
                ("DAPR_SCHEDULER_SCHEDULE_JOB", both)
            }
            Cause::Get(_) => ("DAPR_SCHEDULER_GET_JOB", internal),
            Cause::List(_) => ("DAPR_SCHEDULER_LIST_JOBS", internal),
            Cause::Delete(_) => ("DAPR_SCHEDULER_DELETE_JOB", internal),
        };
        let mut metadata = vec![("appID".to_owned(), error.app_id.clone())];
        // This one is detected before the job is looked up.
        if !matches!(error.cause, Cause::NameTwice) {
            metadata.push(("namespace".to_owned(), error.namespace.clone()));
        }
        let info = Detail::ErrorInfo {
            reason: code,
            metadata: Some(metadata),
        };
        Self::new(code, "job", http, grpc, error.to_string()).with_detail(info)
    }
}
