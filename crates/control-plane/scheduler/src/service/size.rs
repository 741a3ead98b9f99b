//! The error for a job that is too large. The limit applies when requests are decoded, before the message is
//! in memory, so the decoder's error cannot name the field.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::body::Body;
use tonic::codegen::BoxFuture;
use tonic::{Code, Status};
use tower::Service;

const SCHEDULE_JOB: &str = "/dapr.proto.scheduler.v1.Scheduler/ScheduleJob";

/// Adds the field, the limit and the remedy to such an error.
#[derive(Clone)]
pub(crate) struct ExplainSize<S> {
    pub(crate) service: S,
    /// Maximum size of a request in bytes.
    pub(crate) limit: usize,
}

impl<S> Service<Request<Body>> for ExplainSize<S>
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<Response<Body>, Infallible>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_schedule = request.uri().path() == SCHEDULE_JOB;
        let answer = self.service.call(request);
        if !is_schedule {
            return answer;
        }
        let limit = self.limit >> 20;
        Box::pin(async move {
            let mut answer = answer.await?;
            // No other error of this call has this code.
            if Status::from_header_map(answer.headers())
                .is_some_and(|status| status.code() == Code::OutOfRange)
            {
                let text = format!(
                    "the request with its job.data is larger than {limit} MiB: give the job a smaller job.data, for example \
                     the place where the rest is kept"
                );
                // The value is valid ASCII.
                let _ = Status::out_of_range(text).add_header(answer.headers_mut());
            }
            Ok(answer)
        })
    }
}
