//! Kubernetes mode: placement found by its DNS name, and the namespaces of pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use outrigger_wire::runtime::v1::InvokeActorRequest;
use serde_json::json;
use tonic::Code;

use crate::common::client::try_send;
use crate::common::{Answer, App, Control, Net, Node, app, eventually, get, grpc, post};
use crate::operator::Process;

/// Number of actors.
const ACTORS: usize = 5;

/// An app with actors of type `T`, and its number of deactivations.
async fn host() -> (App, Arc<AtomicUsize>) {
    let ended = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&ended);
    let app = App::start(move |request| {
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let counted = Arc::clone(&counted);
        async move {
            match (method, path.as_str()) {
                (Method::GET, "/dapr/config") => return app::text(200, r#"{"entities":["T"]}"#),
                (Method::GET, _) => return app::text(404, ""),
                (Method::DELETE, _) => drop(counted.fetch_add(1, Ordering::SeqCst)),
                _ => {}
            }
            app::text(200, "")
        }
    });
    (app.await, ended)
}

async fn call(node: &Node, actor: usize) -> u16 {
    let path = format!("/v1.0/actors/T/{actor}/method/m");
    node.ask(post(&path, "")).await.status.as_u16()
}

async fn connection(node: &Node) -> String {
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    metadata["actorRuntime"]["placement"].as_str().unwrap().to_owned()
}

async fn started(handover: bool) -> (Net, Control, App, Arc<AtomicUsize>, Node) {
    let net = Net::secure().await;
    let [tls, sentry, anchors] = net.of_control_plane();
    let mut flags = vec![tls.as_str(), &sentry, &anchors];
    flags.extend(handover.then_some("--handover"));
    let control = Control::with_placement(&flags).await;
    let operator = Process::start(&net, "dapr-operator").await;
    operator.put(
        &json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Component",
        "metadata": {"name": "store", "namespace": "default"},
        "spec": {"type": "state.in-memory", "version": "v1", "metadata": [{"name": "actorStateStore", "value": "true"}]}}),
    );
    let (app, ended) = host().await;
    operator.configure(json!({"spec": {}}));
    let plan = operator.beside(&net).configuration("settings");
    let plan = plan.env("NAMESPACE", "default");
    let plan = plan.app(app.port).flag(&format!(
        "--placement-host-address=localhost:{}",
        control.placement.port()
    ));
    let plan = match handover {
        true => plan.flag("--actors-handover"),
        false => plan,
    };
    let node = plan.start().await;
    for actor in 0..ACTORS {
        eventually(async || call(&node, actor).await == 200).await;
    }
    (net, control, app, ended, node)
}

/// Invariant: while no replica behind the placement name is the leader, actors stay where they are; with a
/// leader again too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors_survive_outage_of_named_placement() {
    let (_net, mut control, _app, ended, node) = started(true).await;
    control.placement.kill();
    let gone = Instant::now();
    // Longer than any timeout that could deactivate actors.
    while gone.elapsed() < Duration::from_secs(4) {
        for actor in 0..ACTORS {
            assert_eq!(call(&node, actor).await, 200);
        }
    }
    assert_eq!(connection(&node).await, "placement: disconnected");
    control.start_placement().await;
    eventually(async || connection(&node).await == "placement: connected").await;
    for actor in 0..ACTORS {
        assert_eq!(call(&node, actor).await, 200);
    }
    assert_eq!(ended.load(Ordering::SeqCst), 0, "none ended");
}

/// Invariant: without handover all actors end with the stream, as in the contract.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors_end_with_named_placement() {
    let (_net, mut control, _app, ended, node) = started(false).await;
    control.placement.kill();
    eventually(async || ended.load(Ordering::SeqCst) == ACTORS).await;
    control.start_placement().await;
    eventually(async || call(&node, 0).await == 200).await;
}

/// A pod without a known namespace has no actors and no workflows, because they could belong to any
/// namespace. If the namespace is set to empty, the pod gets no certificate.
#[tokio::test]
async fn disables_actors_without_namespace() {
    let net = Net::secure().await;
    let operator = Process::start(&net, "dapr-operator").await;
    operator.configure(json!({"spec": {}}));
    let plan = operator.beside(&net).configuration("settings");
    let plan = plan.flag("--placement-host-address=127.0.0.1:1");
    let Err(error) = plan.clone().env("NAMESPACE", "").try_launch().await else {
        panic!("it starts with no namespace");
    };
    let error = error.to_string();
    assert!(error.contains("namespace is required"), "{error}");

    let node = plan.launch().await;
    let ask = async |target: &str| {
        let mut answer = None;
        eventually(async || {
            answer = try_send(node.ports.http, post(target, "")).await;
            answer.is_some()
        })
        .await;
        Answer::read(answer.unwrap()).await
    };
    for target in [
        "/v1.0/actors/T/1/method/m",
        "/v1.0/workflows/dapr/order/start?instanceID=a",
    ] {
        ask(target).await.error(412, "ERR_ACTOR_NAMESPACE_REQUIRED");
    }
    let request = InvokeActorRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        method: "m".to_owned(),
        ..InvokeActorRequest::default()
    };
    let path = "/dapr.proto.runtime.v1.Dapr/InvokeActor";
    let refused = grpc::unary(node.ports.grpc, path, &[], &request).await;
    assert_eq!(
        refused.status.code(),
        Code::FailedPrecondition,
        "{:?}",
        refused.status
    );
}
