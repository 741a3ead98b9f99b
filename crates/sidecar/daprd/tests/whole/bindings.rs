//! Bindings: output calls through both APIs, and input events to the app.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Method;
use http_body_util::BodyExt;
use outrigger_wire::common::v1::StateItem;
use outrigger_wire::runtime::v1::binding_event_response::BindingEventConcurrency;
use outrigger_wire::runtime::v1::{
    BindingEventRequest, BindingEventResponse, InvokeBindingRequest, InvokeBindingResponse,
    ListInputBindingsResponse,
};
use prost::Message;
use tokio::sync::{Semaphore, watch};
use tonic::Code;

use crate::common::worker::{self, ACTOR_STORE};
use crate::common::{App, Net, Node, Placement, app, eventually, get, grpc, post, request};

const INVOKE: &str = "/dapr.proto.runtime.v1.Dapr/InvokeBinding";
const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnBindingEvent";
const LIST: &str = "/dapr.proto.runtime.v1.AppCallback/ListInputBindings";

/// A component with these properties.
fn component(name: &str, kind: &str, properties: &[(&str, &str)]) -> String {
    let items: String = properties
        .iter()
        .map(|(name, value)| format!("  - name: {name}\n    value: '{value}'\n"))
        .collect();
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
         version: v1\n  metadata:\n{items}"
    )
}

fn clock(name: &str, more: &[(&str, &str)]) -> String {
    let mut properties = vec![("schedule", "@every 50ms")];
    properties.extend(more);
    component(name, "bindings.cron", &properties)
}

/// Number of events with this path that the app got.
fn events(app: &App, path: &str) -> usize {
    let posts = |seen: &&app::Seen| seen.method == Method::POST && seen.target == path;
    app.seen().iter().filter(posts).count()
}

async fn with_http_binding(target: &App) -> Node {
    let url = format!("http://127.0.0.1:{}", target.port);
    Net::plain()
        .sidecar("me")
        .resource(&component("web", "bindings.http", &[("url", &url)]))
        .start()
        .await
}

async fn invoke(node: &Node, metadata: &[(&str, &str)], operation: &str, path: &str) -> grpc::Outcome {
    let message = InvokeBindingRequest {
        name: "web".into(),
        data: "payload".into(),
        metadata: [("path".to_owned(), path.to_owned())].into(),
        operation: operation.into(),
    };
    grpc::unary(node.ports.grpc, INVOKE, metadata, &message).await
}

#[tokio::test]
async fn invokes_output_bindings() {
    let target = App::echo().await;
    let node = with_http_binding(&target).await;
    let body = r#"{"operation":"post","data":{"b":1,"a":[true]},"metadata":{"path":"x","X-Own":"yes"}}"#;
    for method in ["POST", "PUT"] {
        let answer = node.ask(request(method, "/v1.0/bindings/web", &[], body)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, r#"{"a":[true],"b":1}"#)
        );
        assert_eq!(answer.header("metadata.statuscode"), Some("200"));
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(target.last().header("x-own"), Some("yes"));
    let outcome = invoke(&node, &[], "create", "/deep/path").await;
    let answer: InvokeBindingResponse = outcome.message();
    assert_eq!(answer.data, "payload");
    assert_eq!(answer.metadata["statusCode"], "200");
    assert_eq!(outcome.header("metadata.statuscode"), Some("200"));
    assert_eq!(target.last().target, "/deep/path");
    let labels = ["component=\"web\"", "operation=\"post\"", "success=\"true\""];
    node.counts("dapr_component_output_binding_count", &labels, 2.0)
        .await;
}

#[tokio::test]
async fn empty_response_is_204() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let node = Net::plain()
        .sidecar("me")
        .resource(&component(
            "files",
            "bindings.localstorage",
            &[("rootPath", root)],
        ))
        .start()
        .await;
    let call = |operation: &str| {
        let body =
            format!(r#"{{"operation":"{operation}","data":"some text","metadata":{{"fileName":"a/f"}}}}"#);
        node.ask(post("/v1.0/bindings/files", body))
    };
    assert_eq!(call("create").await.text(), r#"{"fileName":"a/f"}"#);
    assert_eq!(std::fs::read(folder.path().join("a/f")).unwrap(), b"some text");
    assert_eq!(call("get").await.text(), "some text");
    assert_eq!(call("delete").await.status, 204);
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(metadata["components"][0]["capabilities"][0], "OUTPUT_BINDING");
}

#[tokio::test]
async fn invalid_binding_calls_have_contract_texts() {
    let target = App::start(|_| async { app::text(418, "short and stout") }).await;
    let node = with_http_binding(&target).await;
    for (path, body, reason) in [
        ("web", "{}", "operation field is missing from request"),
        (
            "none",
            r#"{"operation":"get"}"#,
            "couldn't find output binding none",
        ),
        (
            "web",
            r#"{"operation":"sing"}"#,
            "binding web does not support operation sing. supported operations:create get head post put patch \
             delete options trace",
        ),
        ("web", r#"{"operation":"get"}"#, "received status code 418"),
    ] {
        let answer = node.ask(post(&format!("/v1.0/bindings/{path}"), body)).await;
        let teapot = reason.contains("418");
        assert_eq!(answer.header("metadata.statuscode"), teapot.then_some("418"));
        let message = answer.error(500, "ERR_INVOKE_OUTPUT_BINDING");
        assert_eq!(message, format!("error invoking output binding {path}: {reason}"));
    }
    let answer = node.ask(post("/v1.0/bindings/web", "{")).await;
    let message = answer.error(400, "ERR_MALFORMED_REQUEST");
    assert!(
        message.starts_with("failed deserializing HTTP body: "),
        "{message}"
    );
    let outcome = invoke(&node, &[], "get", "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
    assert_eq!(outcome.error_info().reason, "ERR_INVOKE_OUTPUT_BINDING");
    assert_eq!(outcome.header("metadata.statuscode"), Some("418"));
}

#[tokio::test]
async fn passes_trace_and_baggage_to_binding() {
    let target = App::echo().await;
    let node = with_http_binding(&target).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [&*format!("traceparent: {trace}"), "baggage: a=1,b=2"];
    let body = r#"{"operation":"get"}"#;
    node.ask(request("POST", "/v1.0/bindings/web", &headers, body))
        .await;
    let seen = target.last();
    assert!(
        seen.header("traceparent")
            .unwrap()
            .contains("4bf92f3577b34da6a3ce929d0e0e4736")
    );
    assert_eq!(seen.header("baggage"), Some("a=1,b=2"));
    invoke(
        &node,
        &[("traceparent", trace), ("baggage", "a=1,b=2")],
        "get",
        "",
    )
    .await;
    let seen = target.last();
    assert_eq!(seen.header("traceparent"), Some(trace));
    assert_eq!(seen.header("baggage"), Some("a=1,b=2"));
    node.ask(post("/v1.0/bindings/web", body)).await;
    assert!(target.last().header("traceparent").is_some());
    let answer = node
        .ask(request("POST", "/v1.0/bindings/web", &["baggage: ="], body))
        .await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn retries_binding_call_by_policy() {
    let failures = Arc::new(AtomicUsize::new(2));
    let left = failures.clone();
    let target = App::start(move |_| {
        let fails = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        async move { app::text(if fails { 503 } else { 200 }, "") }
    })
    .await;
    let url = format!("http://127.0.0.1:{}", target.port);
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: test\nspec:\n  policies:\n    \
                  retries:\n      few: {policy: constant, duration: 10ms, maxRetries: 3}\n  targets:\n    \
                  components:\n      web: {outbound: {retry: few}}\n";
    let node = Net::plain()
        .sidecar("me")
        .resource(&component("web", "bindings.http", &[("url", &url)]))
        .resource(policy)
        .start()
        .await;
    let answer = node
        .ask(post("/v1.0/bindings/web", r#"{"operation":"get"}"#))
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(target.calls(), 3);
}

#[tokio::test]
async fn delivers_events_to_http_app() {
    let app = App::start(|request| async move {
        match (request.method(), request.uri().path()) {
            (&Method::OPTIONS, "/asked" | "/elsewhere") => app::text(405, ""),
            (&Method::OPTIONS, _) => app::text(404, ""),
            _ => app::text(200, ""),
        }
    })
    .await;
    let node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .env("APP_API_TOKEN", "secret")
        .resource(&clock("asked", &[]))
        .resource(&clock("unwanted", &[]))
        .resource(&clock("declared", &[("direction", "Input")]))
        .resource(&clock("moved", &[("route", "/elsewhere")]))
        .resource(&clock("output-only", &[("direction", "output")]))
        .start()
        .await;
    for path in ["/asked", "/declared", "/elsewhere"] {
        eventually(async || events(&app, path) > 1).await;
    }
    for path in ["/unwanted", "/output-only", "/moved"] {
        assert_eq!(events(&app, path), 0, "{path}");
    }
    let seen = app
        .seen()
        .into_iter()
        .find(|seen| seen.target == "/asked" && seen.method == Method::POST);
    let seen = seen.unwrap();
    assert_eq!(seen.header("dapr-api-token"), Some("secret"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("timezone"), Some("Local"));
    assert!(seen.header("readtimeutc").unwrap().ends_with("+0000 UTC"));
    let labels = ["component=\"asked\"", "success=\"true\""];
    eventually(async || node.metric("dapr_component_input_binding_count", &labels).await > Some(1.0)).await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let found = |name: &str| {
        let all = metadata["components"].as_array().unwrap();
        all.iter().find(|item| item["name"] == name).unwrap()["capabilities"].clone()
    };
    assert_eq!(found("asked"), serde_json::json!(["INPUT_BINDING"]));
}

/// A gRPC app that subscribes to `tick` and answers its events with `answer`.
async fn grpc_app(
    answer: BindingEventResponse,
    seen: Arc<std::sync::Mutex<Vec<BindingEventRequest>>>,
) -> App {
    App::start(move |request| {
        let (answer, seen) = (answer.clone(), seen.clone());
        async move {
            match request.uri().path() {
                LIST => grpc::ok(&ListInputBindingsResponse {
                    bindings: vec!["tick".to_owned()],
                }),
                ON_EVENT => {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let event = BindingEventRequest::decode(grpc::messages(body).remove(0)).unwrap();
                    seen.lock().unwrap().push(event);
                    grpc::ok(&answer)
                }
                other => panic!("{other} is not called"),
            }
        }
    })
    .await
}

#[tokio::test]
async fn delivers_events_to_grpc_app() {
    let target = App::echo().await;
    let url = format!("http://127.0.0.1:{}", target.port);
    let answer = BindingEventResponse {
        to: vec!["web".to_owned(), "none".to_owned()],
        data: r#"{"b": 1, "a": 2}"#.into(),
        ..BindingEventResponse::default()
    };
    let seen = Arc::default();
    let app = grpc_app(answer, Arc::clone(&seen)).await;
    let node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .flag("--app-protocol=grpc")
        .resource(&clock("tick", &[]))
        .resource(&clock("other", &[]))
        .resource(&component("web", "bindings.http", &[("url", &url)]))
        .start()
        .await;
    eventually(async || target.calls() > 1).await;
    assert_eq!(
        target.last().header("content-type"),
        Some("application/json; charset=utf-8")
    );
    let labels = ["component=\"web\"", "operation=\"create\"", "success=\"true\""];
    eventually(async || node.metric("dapr_component_output_binding_count", &labels).await > Some(1.0)).await;
    let events = seen.lock().unwrap().clone();
    assert!(
        events
            .iter()
            .all(|event| event.name == "tick" && event.metadata.contains_key("readTimeUTC"))
    );
}

#[tokio::test]
async fn refuses_response_with_too_many_fields() {
    let answer = BindingEventResponse {
        states: vec![StateItem::default(); (128 << 10) + 1],
        ..BindingEventResponse::default()
    };
    let app = grpc_app(answer, Arc::default()).await;
    let node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .flag("--app-protocol=grpc")
        // A debug build takes longer to create such a response than the other clocks pause.
        .resource(&component("tick", "bindings.cron", &[("schedule", "@every 1s")]))
        .start()
        .await;
    let count = async |success: &'static str| {
        let labels = ["component=\"tick\"", success];
        node.metric("dapr_component_input_binding_count", &labels).await
    };
    eventually(async || count("success=\"false\"").await >= Some(1.0)).await;
    assert!(count("success=\"true\"").await < Some(1.0));
}

#[tokio::test]
async fn limits_concurrent_bindings_of_response() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let (now, seen, passed) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&gate));
    let target = App::start(move |_| {
        let (now, seen, passed) = (Arc::clone(&now), Arc::clone(&seen), Arc::clone(&passed));
        async move {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            passed.acquire().await.unwrap().forget();
            now.fetch_sub(1, Ordering::SeqCst);
            app::text(200, "")
        }
    })
    .await;
    let is_first = Arc::new(AtomicBool::new(true));
    let app = App::start(move |request| {
        let is_first = Arc::clone(&is_first);
        async move {
            if request.uri().path() == LIST {
                return grpc::ok(&ListInputBindingsResponse {
                    bindings: vec!["tick".to_owned()],
                });
            }
            let mut answer = BindingEventResponse::default();
            if is_first.swap(false, Ordering::SeqCst) {
                answer.to = vec!["web".to_owned(); 200];
                answer.set_concurrency(BindingEventConcurrency::Parallel);
            }
            grpc::ok(&answer)
        }
    })
    .await;
    let url = format!("http://127.0.0.1:{}", target.port);
    let _node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .flag("--app-protocol=grpc")
        .resource(&clock("tick", &[]))
        .resource(&component("web", "bindings.http", &[("url", &url)]))
        .start()
        .await;
    eventually(async || running.load(Ordering::SeqCst) == 64).await;
    gate.add_permits(200);
    eventually(async || gate.available_permits() == 0).await;
    assert_eq!(most.load(Ordering::SeqCst), 64);
}

#[tokio::test]
async fn retries_refused_event_by_policy() {
    let app = App::start(|request| async move {
        let status = if request.uri().path() == "/tick" { 500 } else { 200 };
        app::text(status, "no")
    })
    .await;
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: test\nspec:\n  policies:\n    \
                  retries:\n      few: {policy: constant, duration: 1ms, maxRetries: 2}\n  targets:\n    \
                  components:\n      tick: {inbound: {retry: few}}\n";
    let properties = [("direction", "input"), ("schedule", "@every 200ms")];
    let node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .resource(&component("tick", "bindings.cron", &properties))
        .resource(policy)
        .start()
        .await;
    let labels = ["component=\"tick\"", "success=\"false\""];
    let failed = async || {
        node.metric("dapr_component_input_binding_count", &labels)
            .await
            .unwrap_or(0.0)
    };
    eventually(async || failed().await >= 2.0).await;
    let (before, calls) = (failed().await, events(&app, "/tick"));
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    let calls = calls as f64;
    assert!(calls >= before * 3.0, "{calls} calls for {before} events");
}

/// A sidecar with a clock, and an app with health checks every second.
async fn ticking(app: &App) -> Node {
    Net::plain()
        .sidecar("me")
        .app(app.port)
        .flag("--enable-app-health-check")
        .flag("--app-health-probe-interval=1")
        .flag("--app-health-threshold=1")
        .resource(&clock("tick", &[("direction", "input")]))
        .start()
        .await
}

#[tokio::test]
async fn delivers_events_only_to_healthy_app() {
    let well = Arc::new(AtomicBool::new(false));
    let probes = Arc::new(AtomicUsize::new(0));
    let (state, count) = (well.clone(), probes.clone());
    let app = App::start(move |request| {
        let probe = request.uri().path() == "/healthz";
        if probe {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let healthy = !probe || state.load(Ordering::SeqCst);
        async move { app::text(if healthy { 200 } else { 503 }, "") }
    })
    .await;
    let _node = ticking(&app).await;
    // There are many ticks between two probes.
    let probed = async |times: usize| {
        let before = probes.load(Ordering::SeqCst);
        eventually(async || probes.load(Ordering::SeqCst) >= before + times).await;
    };
    probed(2).await;
    assert_eq!(events(&app, "/tick"), 0);
    well.store(true, Ordering::SeqCst);
    eventually(async || events(&app, "/tick") > 1).await;
    well.store(false, Ordering::SeqCst);
    // Events may arrive until the probe's response is processed, but not later.
    eventually(async || {
        let before = events(&app, "/tick");
        probed(2).await;
        events(&app, "/tick") == before
    })
    .await;
    well.store(true, Ordering::SeqCst);
    let before = events(&app, "/tick");
    eventually(async || events(&app, "/tick") > before).await;
}

#[tokio::test]
async fn resumes_events_after_recovery() {
    let (release, released) = watch::channel(false);
    let well = Arc::new(AtomicBool::new(true));
    let probes = Arc::new(AtomicUsize::new(0));
    let (state, probed) = (well.clone(), probes.clone());
    let app = App::start(move |request| {
        let (mut released, healthy) = (released.clone(), state.load(Ordering::SeqCst));
        let probe = request.uri().path() == "/healthz";
        if probe {
            probed.fetch_add(1, Ordering::SeqCst);
        }
        async move {
            if !probe {
                released.wait_for(|released| *released).await.unwrap();
            }
            app::text(if !probe || healthy { 200 } else { 503 }, "")
        }
    })
    .await;
    let _node = ticking(&app).await;
    eventually(async || events(&app, "/tick") > 0).await;
    // When the third probe arrives, the response to the second has been processed.
    let turn = async |healthy: bool| {
        well.store(healthy, Ordering::SeqCst);
        let before = probes.load(Ordering::SeqCst);
        eventually(async || probes.load(Ordering::SeqCst) >= before + 3).await;
    };
    turn(false).await;
    turn(true).await;
    let before = events(&app, "/tick");
    release.send(true).unwrap();
    eventually(async || events(&app, "/tick") > before).await;
}

#[tokio::test]
async fn shutdown_finishes_event_in_flight() {
    let (release, released) = watch::channel(false);
    let answered = Arc::new(AtomicUsize::new(0));
    let count = answered.clone();
    let app = App::start(move |request| {
        let (mut released, count) = (released.clone(), count.clone());
        async move {
            if request.uri().path() == "/tick" {
                released.wait_for(|released| *released).await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            }
            app::text(200, "")
        }
    })
    .await;
    let (net, placement) = (Net::plain(), Placement::start().await);
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag(&placement.flag())
        .flag("--dapr-graceful-shutdown-seconds=60")
        .resource(ACTOR_STORE)
        .resource(&clock("tick", &[("direction", "input")]))
        .start()
        .await;
    let mut work = worker::stream(&node).await;
    eventually(async || events(&app, "/tick") > 0).await;
    node.shutdown.begin();
    assert_eq!(grpc::next(&mut work).await, None, "no more events are read");
    assert!(!node.is_over(), "an event is with the app");
    // The APIs stay available as long as the app may need them.
    assert_eq!(node.ask(get("/v1.0/metadata")).await.status, 200);
    release.send(true).unwrap();
    node.ended().await.unwrap();
    assert_eq!(answered.load(Ordering::SeqCst), events(&app, "/tick"));
}
