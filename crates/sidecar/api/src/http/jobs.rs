//! `/v1.0/jobs/…` and `/v1.0-alpha1/jobs/…`.

use http::{Method, StatusCode};
use outrigger_transport::response::empty_response;
use outrigger_wire::internals::v1::JobHttpRequest;
use outrigger_wire::runtime::v1::Job;
use prost::Message;
use prost_types::Any;

use super::route::{ALPHA1, Endpoint, Handler, HandlerResult, V1};
use super::{Context, HttpApi};

type Version = (&'static str, &'static str);

pub(super) static STABLE: &[Endpoint] = &routes(V1);
pub(super) static ALPHA: &[Endpoint] = &routes(ALPHA1);

/// The routes of one version.
const fn routes(version: Version) -> [Endpoint; 3] {
    [
        job(version, Method::POST, "ScheduleJob", |api, context| {
            Box::pin(api.schedule_job(context))
        }),
        job(version, Method::GET, "GetJob", |api, context| {
            Box::pin(api.get_job(context))
        }),
        job(version, Method::DELETE, "DeleteJob", |api, context| {
            Box::pin(api.delete_job(context))
        }),
    ]
}

const fn job(version: Version, method: Method, name: &'static str, handler: Handler) -> Endpoint {
    Endpoint::new(Some(method), version, "jobs", &["jobs", "{name}"], name, handler)
}

impl HttpApi {
    async fn schedule_job(&self, context: Context<'_>) -> HandlerResult {
        let name = context.parameter(0)?;
        let jobs = &self.blocks.jobs;
        let request: JobHttpRequest = self.message("JobHTTPRequest", context.request).await?;
        if !request.name.is_empty() {
            return Err(jobs.named_twice().into());
        }
        let job = Job {
            name: name.trim().to_owned(),
            schedule: request.schedule,
            repeats: request.repeats,
            due_time: request.due_time,
            ttl: request.ttl,
            data: request.data.map(|data| Any {
                type_url: "type.googleapis.com/google.protobuf.Value".to_owned(),
                value: data.encode_to_vec(),
            }),
            failure_policy: request.failure_policy,
        };
        jobs.schedule(Some(job), request.overwrite.unwrap_or_default())
            .await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    async fn get_job(&self, context: Context<'_>) -> HandlerResult {
        let job = self.blocks.jobs.get(context.parameter(0)?).await?;
        self.message_response("Job", job).await
    }

    async fn delete_job(&self, context: Context<'_>) -> HandlerResult {
        self.blocks.jobs.delete(&context.parameter(0)?).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }
}
