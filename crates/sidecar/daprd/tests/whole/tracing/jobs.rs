//! Spans of triggered jobs, and the trace context sent to the app.

use outrigger_wire::runtime::v1::JobEventResponse;

use super::pubsub::sampled;
use super::*;
use crate::common::{Control, within};

const ON_JOB: &str = "/dapr.proto.runtime.v1.AppCallback/OnJobEvent";

/// Triggers a job and compares the `traceparent` of the request at `target` with the exported span.
async fn is_triggered_in_a_span(app: App, protocol: &str, target: &str, statement: &str) {
    let (net, control) = (Net::plain(), Control::start().await);
    let (otel, spans) = collector().await;
    let plan = net
        .sidecar("me")
        .app(app.port)
        .flag(&format!("--app-protocol={protocol}"))
        .spec(&sampled(&otel));
    let node = control.with_scheduler(plan).start().await;
    let job = post("/v1.0/jobs/soundings", r#"{"dueTime":"0s"}"#);
    assert_eq!(node.ask(job).await.status, 204);
    let told = || app.seen().into_iter().find(|seen| seen.target == target);
    eventually(async || told().is_some()).await;
    let (trace, id, flags) = context(told().unwrap().header("traceparent").unwrap());
    assert_eq!(flags, "01");

    within(node.stop()).await.unwrap();
    let spans = spans.lock().unwrap();
    let triggers: Vec<_> = spans
        .iter()
        .filter(|sent| sent.span.name == "job/soundings")
        .collect();
    let [sent] = triggers[..] else {
        panic!("{} spans", triggers.len());
    };
    assert_eq!((hex(&sent.span.trace_id), hex(&sent.span.span_id)), (trace, id));
    assert_eq!(sent.span.kind(), SpanKind::Client);
    assert_eq!(sent.attributes()["dapr.api"], statement);
}

/// Invariant: a job reaches the app within an exported span.
#[tokio::test]
async fn triggers_job_in_span_over_http() {
    let app = App::start(|request: http::Request<hyper::body::Incoming>| async move {
        let is_job = request.method() == http::Method::POST;
        app::text(if is_job { 200 } else { 404 }, "")
    })
    .await;
    is_triggered_in_a_span(app, "http", "/job/soundings", "POST /job/soundings").await;
}

/// The same with a gRPC app.
#[tokio::test]
async fn triggers_job_in_span_over_grpc() {
    let app = App::start(|request: http::Request<hyper::body::Incoming>| async move {
        match request.uri().path() {
            ON_JOB => grpc::ok(&JobEventResponse {}),
            _ => grpc::failure(&tonic::Status::unimplemented("not this app")),
        }
    })
    .await;
    is_triggered_in_a_span(app, "grpc", ON_JOB, ON_JOB).await;
}
