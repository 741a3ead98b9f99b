//! Jobs: the scheduler triggers a job at an interval, a limited number of times.

use std::time::Instant;

use http_body_util::Full;
use hyper::Request;
use serde_json::json;

use crate::Failure;
use crate::bindings::until_posted;
use crate::calls::{LIMIT, get, send};
use crate::fleet::Fleet;

const JOB: &str = "soundings";
/// Number of triggers.
const TIMES: u64 = 3;

/// Schedules a job of the HTTP app, and waits until the last trigger has removed it. Prints a line.
/// Sidecars of Dapr 1.17, which `matrix` may run, have only the alpha route.
pub(crate) async fn all(fleet: &Fleet) -> Result<(), Failure> {
    let url = format!("http://127.0.0.1:{}/v1.0-alpha1/jobs/{JOB}", fleet.python.http);
    let job = json!({"schedule": "@every 100ms", "repeats": TIMES, "data": "by the deep, four"});
    let request = Request::post(&url).header("content-type", "application/json");
    let (status, answer) = send(request.body(Full::from(job.to_string()))?).await?;
    if status != 204 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    let seen = until_posted(fleet, &format!("job/{JOB}"), TIMES).await?;
    let deadline = Instant::now() + LIMIT;
    // The job is gone: reading it is an error.
    while get(&url).await?.0 != 500 {
        if Instant::now() > deadline {
            return Err(format!("the job {JOB} was triggered {seen} times and is still kept").into());
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let what = format!("the scheduler triggered it {seen} times, as scheduled: POST /job/{JOB}");
    println!("{:24} {what}", "job, every 100 ms");
    Ok(())
}
