//! Jobs of whole sidecars: scheduled over both protocols, stored and triggered by a real scheduler, handled
//! by apps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_wire::runtime::v1::{
    DeleteJobRequest, DeleteJobResponse, DeleteJobsByPrefixRequest, DeleteJobsByPrefixResponse,
    GetJobRequest, GetJobResponse, Job, JobEventRequest, JobEventResponse, ListJobsRequest, ListJobsResponse,
    ScheduleJobRequest, ScheduleJobResponse,
};
use prost::Message;
use prost_types::Any;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tonic::{Code, Status};

use crate::common::{Answer, App, Control, Net, Node, app, eventually, get, grpc, post, request, within};

const ON_JOB: &str = "/dapr.proto.runtime.v1.AppCallback/OnJobEvent";
const ON_JOB_ALPHA: &str = "/dapr.proto.runtime.v1.AppCallbackAlpha/OnJobEventAlpha1";

async fn schedule(node: &Node, name: &str, job: &Value) -> Answer {
    node.ask(post(&format!("/v1.0/jobs/{name}"), job.to_string()))
        .await
}

/// Schedules a job, which must be accepted.
async fn scheduled(node: &Node, name: &str, job: &Value) {
    let answer = schedule(node, name, job).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

async fn found(node: &Node, name: &str) -> Answer {
    node.ask(get(&format!("/v1.0/jobs/{name}"))).await
}

async fn call(node: &Node, method: &str, message: &impl Message) -> grpc::Outcome {
    let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
    grpc::unary(node.ports.grpc, &path, &[], message).await
}

/// An app that answers jobs with `status`, given the path and the number of earlier requests.
async fn handling(status: impl Fn(&str, usize) -> u16 + Send + Sync + 'static) -> App {
    let (status, seen) = (Arc::new(status), Arc::<std::sync::Mutex<Vec<String>>>::default());
    App::start(move |request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(path.clone());
            seen.iter().filter(|one| **one == path).count() - 1
        };
        let status = if request.method() == Method::POST {
            status(&path, before)
        } else {
            404
        };
        async move { app::text(status, "") }
    })
    .await
}

fn times(app: &App, path: &str) -> usize {
    app.seen().iter().filter(|seen| seen.target == path).count()
}

#[tokio::test]
async fn keeps_job_until_last_trigger() {
    let (net, control) = (Net::plain(), Control::start().await);
    let (tell, mut received) = mpsc::unbounded_channel();
    let app = App::start(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            if request.method() != Method::POST {
                return app::text(404, "");
            }
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let kind = head.headers["content-type"].to_str().unwrap().to_owned();
            tell.send((head.uri.path().to_owned(), kind, body)).unwrap();
            app::text(200, "")
        }
    })
    .await;
    let node = control
        .with_scheduler(net.sidecar("me").app(app.port))
        .start()
        .await;
    let job = json!({"schedule": "@every 1s", "dueTime": "0s", "repeats": 2, "data": {"n": [1, 2.5]}});
    scheduled(&node, "sound%7Cings@1", &job).await;
    let known = found(&node, "sound%7Cings@1").await;
    assert_eq!(known.status, 200, "{}", known.text());
    let known = known.json();
    assert_eq!(
        (&known["name"], &known["schedule"], &known["repeats"]),
        (&json!("sound|ings@1"), &json!("@every 1s"), &json!(2))
    );
    assert_eq!(known["data"]["value"], json!({"n": [1, 2.5]}));
    for _ in 0..2 {
        let (path, kind, body) = within(received.recv()).await.unwrap();
        assert_eq!(
            (path.as_str(), kind.as_str()),
            ("/job/sound%7Cings@1", "application/json")
        );
        assert_eq!(
            serde_json::from_slice::<Value>(&body).unwrap(),
            json!({"n": [1, 2.5]})
        );
    }
    eventually(async || found(&node, "sound%7Cings@1").await.status == 500).await;
    found(&node, "sound%7Cings@1")
        .await
        .error(500, "DAPR_SCHEDULER_GET_JOB");
    let labels = ["operation=\"job_trigger_op\""];
    node.counts("dapr_component_job_success_count", &labels, 2.0)
        .await;
}

#[tokio::test]
async fn invalid_jobs_have_contract_codes() {
    let (net, control) = (Net::plain(), Control::start().await);
    let app = handling(|_, _| 200).await;
    let node = control
        .with_scheduler(net.sidecar("me").app(app.port))
        .start()
        .await;
    let kept = json!({"dueTime": "1h"});
    scheduled(&node, "kept", &kept).await;
    for (name, job, status, code) in [
        (
            "a",
            json!({"name": "b", "dueTime": "1h"}),
            400,
            "DAPR_SCHEDULER_JOB_NAME",
        ),
        ("a", json!({}), 400, "DAPR_SCHEDULER_SCHEDULE_EMPTY"),
        (
            "a",
            json!({"schedule": "every tide"}),
            500,
            "DAPR_SCHEDULER_SCHEDULE_JOB",
        ),
        (
            "a",
            json!({"dueTime": "2h", "ttl": "1h"}),
            500,
            "DAPR_SCHEDULER_SCHEDULE_JOB",
        ),
        ("kept", kept.clone(), 409, "DAPR_SCHEDULER_SCHEDULE_JOB"),
    ] {
        let answer = schedule(&node, name, &job).await;
        answer.error(status, code);
        let info = answer.json()["details"][0].clone();
        assert_eq!(
            (&info["reason"], &info["metadata"]["appID"]),
            (&json!(code), &json!("me")),
            "{job}"
        );
    }
    let over = json!({"dueTime": "2h", "overwrite": true});
    scheduled(&node, "kept", &over).await;
    assert_eq!(found(&node, "kept").await.json()["dueTime"], "2h");
    let delete = || request("DELETE", "/v1.0/jobs/kept", &[], "");
    assert_eq!(node.ask(delete()).await.status, 204);
    found(&node, "kept").await.error(500, "DAPR_SCHEDULER_GET_JOB");
}

/// A gRPC app with one method for jobs.
async fn grpc_app(method: &'static str) -> (App, mpsc::UnboundedReceiver<JobEventRequest>) {
    let (tell, received) = mpsc::unbounded_channel();
    let app = App::start(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            if request.uri().path() != method {
                return grpc::failure(&Status::unimplemented("not this app"));
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let message = grpc::messages(body).remove(0);
            tell.send(JobEventRequest::decode(message).unwrap()).unwrap();
            grpc::ok(&JobEventResponse {})
        }
    });
    (app.await, received)
}

/// Invariant: an app with an SDK before v1.18 gets its jobs, and a job needs no data.
#[tokio::test]
async fn older_apps_get_jobs() {
    let (net, control) = (Net::plain(), Control::start().await);
    let (app, mut received) = grpc_app(ON_JOB_ALPHA).await;
    let plan = net.sidecar("me").app(app.port).flag("--app-protocol=grpc");
    let node = control.with_scheduler(plan).start().await;
    scheduled(&node, "plain", &json!({"dueTime": "0s"})).await;
    let event = within(received.recv()).await.unwrap();
    assert_eq!((event.name.as_str(), event.data), ("plain", None));
    let job = json!({"dueTime": "1h"}).to_string();
    let alpha = node.ask(post("/v1.0-alpha1/jobs/later", job)).await;
    assert_eq!(alpha.status, 204);
    let known = found(&node, "later").await.json();
    assert_eq!((&known["dueTime"], known.get("data")), (&json!("1h"), None));
}

#[tokio::test]
async fn grpc_job_carries_any_message() {
    let (net, control) = (Net::plain(), Control::start().await);
    let (app, mut received) = grpc_app(ON_JOB).await;
    let plan = net.sidecar("me").app(app.port).flag("--app-protocol=grpc");
    let node = control.with_scheduler(plan).start().await;
    let data = Any {
        type_url: "type.googleapis.com/shop.v1.Order".to_owned(),
        value: b"\x08\x07".to_vec(),
    };
    let request = ScheduleJobRequest {
        job: Some(Job {
            name: "order".to_owned(),
            due_time: Some("0s".to_owned()),
            data: Some(data.clone()),
            ..Job::default()
        }),
        overwrite: false,
    };
    call(&node, "ScheduleJob", &request)
        .await
        .message::<ScheduleJobResponse>();
    let event = within(received.recv()).await.unwrap();
    assert_eq!(
        (event.name.as_str(), event.method.as_str()),
        ("order", "job/order")
    );
    assert_eq!(
        (event.content_type.as_str(), event.data),
        (data.type_url.as_str(), Some(data.clone()))
    );
    let later = ScheduleJobRequest {
        job: Some(Job {
            name: "later".to_owned(),
            due_time: Some("1h".to_owned()),
            ..Job::default()
        }),
        ..request
    };
    call(&node, "ScheduleJob", &later)
        .await
        .message::<ScheduleJobResponse>();
    let named = |name: &str| name.to_owned();
    let known = call(&node, "GetJob", &GetJobRequest { name: named("later") }).await;
    let known = known.message::<GetJobResponse>().job.unwrap();
    assert_eq!(known.due_time.as_deref(), Some("1h"));
    let listed = call(&node, "ListJobs", &ListJobsRequest {}).await;
    assert_eq!(listed.message::<ListJobsResponse>().jobs, [known]);
    let others = DeleteJobsByPrefixRequest {
        name_prefix: Some("lately".to_owned()),
    };
    let gone = call(&node, "DeleteJobsByPrefix", &others).await;
    gone.message::<DeleteJobsByPrefixResponse>();
    let gone = call(&node, "DeleteJob", &DeleteJobRequest { name: named("later") }).await;
    gone.message::<DeleteJobResponse>();
    let missing = call(&node, "GetJob", &GetJobRequest { name: named("later") }).await;
    assert_eq!(missing.status.code(), Code::Internal);
    let again = call(&node, "ScheduleJob", &ScheduleJobRequest::default()).await;
    assert_eq!(again.status.code(), Code::InvalidArgument);
}

/// Invariant: a failing job is retried as its failure policy says and then ends; a job unknown to the app
/// ends at once.
#[tokio::test]
async fn failed_job_follows_policy() {
    let (net, control) = (Net::plain(), Control::start().await);
    let app = handling(|path, before| match path {
        "/job/again" if before < 2 => 500,
        "/job/never" => 500,
        "/job/unknown" => 404,
        _ => 200,
    })
    .await;
    let node = control
        .with_scheduler(net.sidecar("me").app(app.port))
        .start()
        .await;
    let constant =
        json!({"dueTime": "0s", "failurePolicy": {"constant": {"interval": "1s", "maxRetries": 5}}});
    let drop = json!({"dueTime": "0s", "failurePolicy": {"drop": {}}});
    for (name, job) in [("again", &constant), ("never", &drop), ("unknown", &constant)] {
        scheduled(&node, name, job).await;
    }
    for name in ["again", "never", "unknown"] {
        eventually(async || found(&node, name).await.status == 500).await;
    }
    let counts = ["again", "never", "unknown"].map(|name| times(&app, &format!("/job/{name}")));
    assert_eq!(counts, [3, 1, 1]);
}

/// Invariant: an accepted job is triggered, late rather than never, even if its scheduler was killed.
#[tokio::test]
async fn killed_scheduler_resumes_jobs() {
    let (net, mut control) = (Net::plain(), Control::start().await);
    let app = handling(|_, _| 200).await;
    let node = control
        .with_scheduler(net.sidecar("me").app(app.port))
        .start()
        .await;
    scheduled(&node, "tide", &json!({"schedule": "@every 1s"})).await;
    scheduled(&node, "once", &json!({"dueTime": "1s"})).await;
    eventually(async || times(&app, "/job/tide") > 0).await;
    control.scheduler.kill();
    let before = times(&app, "/job/tide");
    control.start_scheduler().await;
    eventually(async || times(&app, "/job/tide") > before + 1 && times(&app, "/job/once") > 0).await;
    scheduled(&node, "after", &json!({"dueTime": "0s"})).await;
    eventually(async || times(&app, "/job/after") == 1).await;
}

/// Invariant: triggers in flight at a killed sidecar are repeated at another sidecar of the app.
#[tokio::test]
async fn redelivers_job_after_sidecar_kill() {
    let (net, control) = (Net::plain(), Control::start().await);
    let open = Arc::new(Semaphore::new(0));
    let (waiting, begun) = (Arc::clone(&open), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&begun);
    let stuck = App::start(move |request: Request<Incoming>| {
        let (waiting, counting) = (Arc::clone(&waiting), Arc::clone(&counting));
        async move {
            if request.method() == Method::POST {
                counting.fetch_add(1, Ordering::SeqCst);
                waiting.acquire().await.unwrap().forget();
            }
            app::text(404, "")
        }
    })
    .await;
    let first = control
        .with_scheduler(net.sidecar("me").app(stuck.port))
        .start()
        .await;
    scheduled(&first, "order", &json!({"dueTime": "0s"})).await;
    eventually(async || begun.load(Ordering::SeqCst) == 1).await;
    drop(first);
    drop(stuck);
    let app = handling(|_, _| 200).await;
    let second = control
        .with_scheduler(net.sidecar("me").app(app.port))
        .start()
        .await;
    eventually(async || times(&app, "/job/order") == 1).await;
    eventually(async || found(&second, "order").await.status == 500).await;
    assert_eq!(times(&app, "/job/order"), 1);
}
