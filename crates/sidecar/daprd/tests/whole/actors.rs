//! Actors of whole sidecars: placement, turns, state, timers and deactivation.

mod moves;
mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1::{
    ExecuteActorStateTransactionRequest, GetActorStateRequest, GetActorStateResponse, InvokeActorRequest,
    InvokeActorResponse, TransactionalActorStateOperation,
};
use prost::Message;
use prost_types::Any;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tonic::Code;
use tonic_types::StatusExt;

use crate::common::app::text;
use crate::common::grpc::{self, Outcome};
use crate::common::worker::ACTOR_STORE;
use crate::common::{Answer, App, Net, Node, Placement, eventually, get, post, request, within};

/// An app with actors of type `T`; `handle` answers their calls.
async fn host<F, R>(settings: Value, handle: F) -> App
where
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let (settings, handle) = (settings.to_string(), Arc::new(handle));
    App::start(move |request| {
        let (settings, handle) = (settings.clone(), Arc::clone(&handle));
        async move {
            match request.uri().path() {
                "/dapr/config" => text(200, &settings),
                "/healthz" => text(200, ""),
                _ => handle(request).await,
            }
        }
    })
    .await
}

/// An app with actors that echo requests.
async fn echo(settings: Value) -> App {
    host(settings, async |request: Request<Incoming>| {
        let shown = format!("{} {}", request.method(), request.uri());
        text(200, &shown)
    })
    .await
}

fn only() -> Value {
    json!({"entities": ["T"]})
}

async fn start(net: &Net, placement: &Placement, id: &str, app: Option<&App>) -> Node {
    let plan = net.sidecar(id).flag(&placement.flag()).resource(ACTOR_STORE);
    match app {
        Some(app) => plan.app(app.port).start().await,
        None => plan.start().await,
    }
}

async fn invoke(node: &Node, id: &str, method: &str) -> Answer {
    node.ask(post(&format!("/v1.0/actors/T/{id}/method/{method}?q=1"), "hi"))
        .await
}

async fn call(node: &Node, method: &str, message: &impl Message) -> Outcome {
    let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
    grpc::unary(node.ports.grpc, &path, &[], message).await
}

fn calls(app: &App) -> Vec<String> {
    let seen = app.seen().into_iter();
    seen.map(|seen| format!("{} {}", seen.method, seen.target))
        .collect()
}

#[tokio::test]
async fn calls_actor_at_its_host() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (one, two) = (echo(only()).await, echo(only()).await);
    let first = start(&net, &placement, "first", Some(&one)).await;
    let second = start(&net, &placement, "second", Some(&two)).await;
    let client = start(&net, &placement, "client", None).await;
    eventually(async || placement.has("T", 2)).await;
    for id in 0..40 {
        for node in [&client, &first, &second] {
            let answer = invoke(node, &id.to_string(), "greet").await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.text(), format!("PUT /actors/T/{id}/method/greet?q=1"));
        }
    }
    let (one, two) = (one.seen(), two.seen());
    assert!(!one.is_empty() && !two.is_empty());
    assert_eq!(one.len() + two.len(), 120);
    let places = |seen: &[crate::common::app::Seen]| {
        let targets = seen.iter().map(|seen| seen.target.clone());
        targets.collect::<std::collections::BTreeSet<_>>()
    };
    assert!(places(&one).is_disjoint(&places(&two)), "each lives in one place");
    assert!(
        one.iter()
            .any(|seen| seen.header("x-dapr-remote") == Some("true"))
    );
    assert!(
        one.iter()
            .all(|seen| seen.header("dapr-api-call") == Some("true"))
    );
    let answer = InvokeActorRequest {
        actor_type: "T".to_owned(),
        actor_id: "7".to_owned(),
        method: "greet".to_owned(),
        ..InvokeActorRequest::default()
    };
    let answer = call(&client, "InvokeActor", &answer).await;
    let data = answer.message::<InvokeActorResponse>().data;
    assert_eq!(&data[..], b"PUT /actors/T/7/method/greet");
    let runtime = &client.ask(get("/v1.0/metadata")).await.json()["actorRuntime"];
    assert_eq!(
        runtime,
        &json!({"runtimeStatus": "RUNNING", "hostReady": true, "placement": "placement: connected"})
    );
    let runtime = &first.ask(get("/v1.0/metadata")).await.json()["actorRuntime"];
    let count = runtime["activeActors"][0]["count"].as_u64().unwrap();
    assert!((1..40).contains(&count), "{runtime}");
}

#[tokio::test]
async fn actor_failures_have_contract_codes() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = host(only(), async |request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        if path.ends_with("/own") {
            let mut response = text(200, "its own");
            response
                .headers_mut()
                .insert("x-daprerrorresponseheader", "1".parse().unwrap());
            return response;
        }
        text(if path.ends_with("/none") { 404 } else { 418 }, "teapot")
    })
    .await;
    let node = start(&net, &placement, "me", Some(&app)).await;
    let far = start(&net, &placement, "far", None).await;
    eventually(async || placement.has("T", 1)).await;
    let code = "ERR_ACTOR_INVOKE_METHOD";
    for (node, method, expected) in [
        (&node, "m", "error from actor service: (418) teapot"),
        (
            &far,
            "m",
            "rpc error: code = Internal desc = error invoke actor method: error from actor service: (418) teapot",
        ),
        (
            &node,
            "none",
            "actor method not found: actors/T/1/method/none: the app answered 404; see that its actor type has the method",
        ),
    ] {
        let message = invoke(node, "1", method).await.error(500, code);
        assert_eq!(message, format!("error invoke actor method: {expected}"));
    }
    for node in [&node, &far] {
        let answer = invoke(node, "1", "own").await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "its own"));
        assert!(answer.header("x-daprerrorresponseheader").is_some());
    }
    let calls = app.calls();
    let message = node.ask(post("/v1.0/actors/T/a%2Fb/method/m", "")).await;
    assert!(message.error(400, "ERR_BAD_REQUEST").contains("actorId"));
    let message = invoke(&node, "1", "m%3Fa=b").await.error(400, "ERR_BAD_REQUEST");
    assert!(
        message.starts_with("invalid request: method contains"),
        "{message}"
    );
    assert_eq!(app.calls(), calls);
    let internal = "/v1.0/actors/dapr.internal.default.far.workflow/1/method/PurgeWorkflowState";
    let message = node
        .ask(post(internal, ""))
        .await
        .error(403, "ERR_ACTOR_TYPE_RESERVED");
    assert!(
        message.contains("is reserved for the Dapr workflow runtime"),
        "{message}"
    );
    let reserved = InvokeActorRequest {
        actor_type: "dapr.internal.default.far.workflow".to_owned(),
        actor_id: "1".to_owned(),
        method: "PurgeWorkflowState".to_owned(),
        ..InvokeActorRequest::default()
    };
    let outcome = call(&node, "InvokeActor", &reserved).await;
    assert_eq!(outcome.status.code(), Code::PermissionDenied);
    let bare = net.sidecar("bare").start().await;
    let message = invoke(&bare, "1", "m").await.error(400, "ERR_ACTOR_NO_PLACEMENT");
    assert_eq!(
        message,
        "placement service is not configured: name it with --placement-host-address"
    );
    let missing = Request::builder().method("POST").uri("/v1.0/actors/U/1/method/m");
    let message = node.ask(missing.body(Body::Empty).unwrap()).await;
    let message = message.error(500, code);
    assert!(
        message.ends_with("did not find address for actor 'U/1'"),
        "{message}"
    );
    for (kind, id, shown) in [("U", "1", "U/1"), ("T", "", "/")] {
        let nobody = InvokeActorRequest {
            actor_type: kind.to_owned(),
            actor_id: id.to_owned(),
            method: "m".to_owned(),
            ..InvokeActorRequest::default()
        };
        let outcome = call(&node, "InvokeActor", &nobody).await;
        assert_eq!(outcome.status.code(), Code::FailedPrecondition);
        let message = format!(
            "failed to lookup actor: api error: code = FailedPrecondition desc = did not find address for actor '{shown}'"
        );
        assert_eq!(outcome.status.message(), message);
    }
}

#[tokio::test]
async fn serializes_calls_per_actor() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (go, running, most) = (
        Arc::new(Notify::new()),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let app = {
        let (go, running, most) = (Arc::clone(&go), Arc::clone(&running), Arc::clone(&most));
        host(only(), move |request: Request<Incoming>| {
            let (go, running, most) = (Arc::clone(&go), Arc::clone(&running), Arc::clone(&most));
            async move {
                if request.uri().path().contains("/busy/") {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    go.notified().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                }
                text(200, "")
            }
        })
        .await
    };
    let node = Arc::new(start(&net, &placement, "me", Some(&app)).await);
    eventually(async || placement.has("T", 1)).await;
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let node = Arc::clone(&node);
        busy.spawn(async move { invoke(&node, "busy", "m").await.status });
    }
    eventually(async || running.load(Ordering::SeqCst) == 1).await;
    assert_eq!(invoke(&node, "other", "m").await.status, 200);
    while !busy.is_empty() {
        go.notify_one();
        assert_eq!(within(busy.join_next()).await.unwrap().unwrap(), 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn reentrant_call_joins_turn() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (seen, mut ids) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let app = {
        let go = Arc::clone(&go);
        let settings = json!({"entities": ["T"], "reentrancy": {"enabled": true, "maxStackDepth": 2}});
        host(settings, move |request: Request<Incoming>| {
            let id = request
                .headers()
                .get("dapr-reentrancy-id")
                .map(|id| id.to_str().unwrap().to_owned());
            if request.method() != "DELETE" {
                seen.send(id.unwrap()).unwrap();
            }
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                text(200, "")
            }
        })
        .await
    };
    let node = Arc::new(start(&net, &placement, "me", Some(&app)).await);
    eventually(async || placement.has("T", 1)).await;
    let outer = tokio::spawn({
        let node = Arc::clone(&node);
        async move { invoke(&node, "1", "m").await.status }
    });
    let id = within(ids.recv()).await.unwrap();
    let header = format!("Dapr-Reentrancy-Id: {id}");
    let again = move || request("POST", "/v1.0/actors/T/1/method/n", &[&header], "");
    let inner = tokio::spawn({
        let (node, again) = (Arc::clone(&node), again());
        async move { node.ask(again).await.status }
    });
    assert_eq!(within(ids.recv()).await.unwrap(), id);
    let message = node.ask(again()).await.error(500, "ERR_ACTOR_STACK_DEPTH");
    assert_eq!(message, "maximum stack depth exceeded");
    go.notify_one();
    go.notify_one();
    eventually(async || {
        go.notify_one();
        outer.is_finished() && inner.is_finished()
    })
    .await;
    assert_eq!(outer.await.unwrap(), 200);
    assert_eq!(inner.await.unwrap(), 200);
}

#[tokio::test]
async fn state_requires_active_actor() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = echo(only()).await;
    let node = start(&net, &placement, "me", Some(&app)).await;
    eventually(async || placement.has("T", 1)).await;
    let operations = json!([
        {"operation": "upsert", "request": {"key": "k", "value": {"a": [1, 2]}}},
        {"operation": "upsert", "request": {"key": "gone", "value": 1}},
        {"operation": "delete", "request": {"key": "gone"}},
    ]);
    let save = || post("/v1.0/actors/T/1/state", operations.to_string());
    let message = node.ask(save()).await.error(400, "ERR_ACTOR_INSTANCE_MISSING");
    assert_eq!(message, "actor instance is missing");
    assert_eq!(invoke(&node, "1", "m").await.status, 200);
    assert_eq!(node.ask(save()).await.status, 204);
    let answer = node.ask(get("/v1.0/actors/T/1/state/k")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, r#"{"a":[1,2]}"#));
    for absent in ["T/1/state/gone", "T/2/state/k"] {
        assert_eq!(node.ask(get(&format!("/v1.0/actors/{absent}"))).await.status, 204);
    }
    let operation = |kind: &str, key: &str| TransactionalActorStateOperation {
        operation_type: kind.to_owned(),
        key: key.to_owned(),
        value: Some(Any {
            value: b"raw".to_vec(),
            ..Any::default()
        }),
        ..TransactionalActorStateOperation::default()
    };
    let transaction = |operations| ExecuteActorStateTransactionRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        operations,
    };
    let saved = transaction(vec![operation("upsert", "raw")]);
    assert_eq!(
        call(&node, "ExecuteActorStateTransaction", &saved)
            .await
            .status
            .code(),
        Code::Ok
    );
    let wanted = GetActorStateRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        key: "raw".to_owned(),
    };
    let found = call(&node, "GetActorState", &wanted).await;
    assert_eq!(&found.message::<GetActorStateResponse>().data[..], b"raw");
    let unknown = transaction(vec![operation("increment", "k")]);
    let outcome = call(&node, "ExecuteActorStateTransaction", &unknown).await;
    assert_eq!(outcome.status.code(), Code::Unimplemented);
    assert_eq!(outcome.status.message(), "operation type increment not supported");
    let info = outcome.status.get_error_details().error_info().unwrap().clone();
    assert_eq!(info.reason, "ERR_NOT_SUPPORTED_STATE_OPERATION");
    for (wrong, expected) in [
        (operation("upsert", ""), "missing key"),
        (
            TransactionalActorStateOperation {
                metadata: [("ttlInSeconds".to_owned(), "1".to_owned())].into(),
                ..operation("upsert", "k")
            },
            r#"ttlInSeconds is not supported without the "ActorStateTTL" feature enabled"#,
        ),
    ] {
        let outcome = call(&node, "ExecuteActorStateTransaction", &transaction(vec![wrong])).await;
        assert_eq!(outcome.status.code(), Code::Internal);
        let expected = format!("error saving actor transaction state: {expected}");
        assert_eq!(outcome.status.message(), expected);
    }
    let malformed = node.ask(post("/v1.0/actors/T/1/state", "{")).await;
    malformed.error(400, "ERR_MALFORMED_REQUEST");
    let out_of_range = r#"[{"operation": "upsert", "request": {"key": "k", "value": 1E400}}]"#;
    let malformed = node.ask(post("/v1.0/actors/T/1/state", out_of_range)).await;
    malformed.error(400, "ERR_MALFORMED_REQUEST");
    let numbers =
        r#"[{"operation": "upsert", "request": {"key": "k", "value": 1, "metadata": {"ttlInSeconds": 5}}}]"#;
    let malformed = node.ask(post("/v1.0/actors/T/1/state", numbers)).await;
    malformed.error(500, "ERR_ACTOR_STATE_TRANSACTION_SAVE");
}

#[tokio::test]
async fn deactivates_idle_actors_and_fires_timers() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = echo(json!({"entities": ["T"], "actorIdleTimeout": "200ms"})).await;
    let node = start(&net, &placement, "me", Some(&app)).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "idle", "m").await.status, 200);
    eventually(async || calls(&app).contains(&"DELETE /actors/T/idle".to_owned())).await;
    let runtime = async || node.ask(get("/v1.0/metadata")).await.json()["actorRuntime"].clone();
    eventually(async || runtime().await["activeActors"] == json!([{"type": "T"}])).await;
    let timer = json!({"dueTime": "0s", "period": "R2/PT0.0S", "data": {"a": 1}, "callback": "c"});
    let wrong = post("/v1.0/actors/T/1/timers/t", timer.to_string());
    let message = node.ask(wrong).await.error(500, "ERR_ACTOR_TIMER_CREATE");
    assert!(
        message.starts_with("error creating actor timer: invalid timer period"),
        "{message}"
    );
    let timer = json!({"dueTime": "0s", "period": "10ms", "data": {"a": 1}, "callback": "c"});
    let path = "/v1.0/actors/T/1/timers/t";
    assert_eq!(node.ask(post(path, timer.to_string())).await.status, 204);
    let fired = "PUT /actors/T/1/method/timer/t".to_owned();
    let count = || calls(&app).iter().filter(|call| **call == fired).count();
    eventually(async || count() > 3).await;
    assert_eq!(node.ask(request("DELETE", path, &[], "")).await.status, 204);
    eventually(async || calls(&app).contains(&"DELETE /actors/T/1".to_owned())).await;
    let elsewhere = post("/v1.0/actors/U/1/timers/t", "{}");
    let message = node.ask(elsewhere).await.error(500, "ERR_ACTOR_TIMER_CREATE");
    assert!(message.ends_with("can't create timer for actor U||1: actor type not registered"));
}

#[tokio::test]
async fn refuses_foreign_actor_callers() {
    let placement = Placement::start().await;
    let net = Net::secure().await;
    let identity = net.identity("dapr-placement").await;
    drop(identity);
    let app = echo(only()).await;
    // A sidecar with an identity does not use a cleartext placement.
    let plan = net.sidecar("me").flag(&placement.flag()).resource(ACTOR_STORE);
    let node = plan.app(app.port).launch().await;
    eventually(async || node.ask(get("/v1.0/healthz/outbound")).await.status == 204).await;
    let health = node.ask(get("/v1.0/healthz")).await;
    assert!(
        health
            .error(500, "ERR_HEALTH_NOT_READY")
            .contains("internal-placement-service")
    );
    assert!(!placement.has("T", 1));
}
