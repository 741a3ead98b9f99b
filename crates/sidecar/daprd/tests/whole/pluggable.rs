//! Pluggable components in separate processes: discovered at start, used over both protocols, restarted.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_wire::common::v1::StateItem;
use outrigger_wire::runtime::v1::{GetStateRequest, QueryStateRequest, SaveStateRequest};
use prost::Message;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::common::grpc::Outcome;
use crate::common::{App, Net, Node, app, eventually, get, grpc, post, request};
use crate::process::{Desk, Fault, Process};

const QUERY: &str = r#"{"filter":{"EQ":{"state":"CA"}}}"#;

struct Harbour {
    folder: TempDir,
    desk: Arc<Desk>,
    process: Process,
    node: Node,
}

async fn harbour() -> Harbour {
    let (folder, desk) = (tempfile::tempdir().unwrap(), Desk::new());
    let process = Process::start(folder.path(), "ship", &desk);
    let net = Net::plain();
    let component = |name: &str, kind: &str| {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
             version: v1\n  metadata:\n  - name: colour\n    value: red\n"
        )
    };
    let node = net
        .sidecar("me")
        .env("DAPR_COMPONENTS_SOCKETS_FOLDER", folder.path().to_str().unwrap())
        .resource(&component("orders", "state.ship"))
        .resource(&component("vault", "secretstores.ship"))
        .spec("  metrics:\n    recordErrorCodes: true\n")
        .start()
        .await;
    Harbour {
        folder,
        desk,
        process,
        node,
    }
}

async fn call(node: &Node, method: &str, message: &impl Message) -> Outcome {
    let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
    grpc::unary(node.ports.grpc, &path, &[], message).await
}

fn item(key: &str) -> StateItem {
    StateItem {
        key: key.to_owned(),
        value: "1".into(),
        ..StateItem::default()
    }
}

/// A status with a message for callers.
fn status_with(code: Code, http: &str) -> Status {
    let metadata = [("kit_error", "true"), ("http_code", http), ("tag", "THE_TAG")];
    let metadata: HashMap<_, _> = metadata
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let details = ErrorDetails::with_error_info("THE_REASON", "the.domain", metadata);
    Status::with_error_details(code, "the hold is full", details)
}

#[tokio::test]
async fn uses_components_of_socket() {
    let harbour = harbour().await;
    let (node, desk) = (&harbour.node, &harbour.desk);
    assert_eq!(
        node.ask(post("/v1.0/state/orders", r#"[{"key":"k","value":{"a":1}}]"#))
            .await
            .status,
        204
    );
    let answer = node.ask(get("/v1.0/state/orders/k")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, r#"{"a":1}"#));
    let wrong = request("DELETE", "/v1.0/state/orders/k", &["if-match: other"], "");
    let message = node.ask(wrong).await.error(409, "ERR_STATE_DELETE");
    assert_eq!(
        message,
        "failed deleting state with key k: possible etag mismatch. error from state store: another one is stored"
    );
    let secret = node.ask(get("/v1.0/secrets/vault/anchor")).await.json();
    assert_eq!(secret, json!({"chain": "iron", "rope": "hemp"}));
    let found = node
        .ask(post("/v1.0-alpha1/state/orders/query", QUERY))
        .await
        .json();
    assert_eq!(found["results"][0]["key"], "found");
    let components = node.ask(get("/v1.0/metadata")).await.json()["components"].clone();
    let orders = components
        .as_array()
        .unwrap()
        .iter()
        .find(|component| component["name"] == "orders");
    let capabilities = &orders.unwrap()["capabilities"];
    assert_eq!(*capabilities, json!(["ETAG", "TRANSACTIONAL", "TTL", "ACTOR"]));
    let mut inits = desk.inits.lock().unwrap().clone();
    inits.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        (inits[0].0.as_str(), inits[1].0.as_str(), inits.len()),
        ("orders", "vault", 2)
    );
    assert_eq!(inits[0].1["colour"], "red");
}

#[tokio::test]
async fn recovers_after_component_restart() {
    let Harbour {
        folder,
        desk,
        process,
        node,
    } = harbour().await;
    drop(process);
    let failed = async || node.ask(get("/v1.0/state/orders/k")).await;
    eventually(async || failed().await.status == 500).await;
    let message = failed().await.error(500, "ERR_STATE_GET");
    assert!(
        message.contains("rpc error: code = Unavailable") && message.contains("ship.sock"),
        "{message}"
    );
    let _process = Process::start(folder.path(), "ship", &desk);
    assert_eq!(node.ask(get("/v1.0/state/orders/k")).await.status, 204);
    node.stop().await.unwrap();
}

#[tokio::test]
async fn component_chooses_error_for_callers() {
    let harbour = harbour().await;
    let (node, desk) = (&harbour.node, &harbour.desk);
    desk.faulty(Some(Fault::Answer(status_with(Code::DataLoss, "506"))));
    let text = "api error: code = DataLoss desc = the hold is full";
    let message = node
        .ask(get("/v1.0/state/orders/k"))
        .await
        .error(506, "ERR_STATE_GET");
    assert_eq!(message, format!("fail to get k from state store orders: {text}"));
    for body in [
        r#"[{"key":"a","value":1}]"#,
        r#"[{"key":"a","value":1},{"key":"b","value":1}]"#,
    ] {
        let message = node
            .ask(post("/v1.0/state/orders", body))
            .await
            .error(506, "ERR_STATE_SAVE");
        assert_eq!(
            message,
            format!("failed saving state in state store orders: {text}")
        );
    }
    let answer = node.ask(post("/v1.0-alpha1/state/orders/query", QUERY)).await;
    assert_eq!(answer.status.as_u16(), 506);
    let expected = json!({
        "errorCode": "THE_TAG",
        "message": "the hold is full",
        "details": [{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "THE_REASON", "domain": "the.domain", "metadata": null,
        }],
    });
    assert_eq!(answer.json(), expected);
    let body = r#"{"operations":[{"operation":"delete","request":{"key":"a"}}]}"#;
    let message = node
        .ask(post("/v1.0/state/orders/transaction", body))
        .await
        .error(500, "ERR_STATE_TRANSACTION");
    assert_eq!(
        message,
        format!("error while executing state transaction: {text}")
    );
    let labels = [
        "category=\"pluggable-component\"",
        "error_code=\"ERR_PLUGGABLE_COMPONENT\"",
    ];
    node.counts("dapr_error_code_total", &labels, 1.0).await;

    let query = QueryStateRequest {
        store_name: "orders".into(),
        query: QUERY.into(),
        ..QueryStateRequest::default()
    };
    let one = GetStateRequest {
        store_name: "orders".into(),
        key: "k".into(),
        ..GetStateRequest::default()
    };
    let several = SaveStateRequest {
        store_name: "orders".into(),
        states: vec![item("a"), item("b")],
    };
    for outcome in [
        call(node, "GetState", &one).await,
        call(node, "SaveState", &several).await,
        call(node, "QueryStateAlpha1", &query).await,
    ] {
        let status = &outcome.status;
        assert_eq!(
            (status.code(), status.message()),
            (Code::DataLoss, "the hold is full")
        );
        let info = outcome.error_info();
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("THE_REASON", "the.domain")
        );
    }
}

#[tokio::test]
async fn blocked_shutdown_pauses_broker() {
    let (folder, desk) = (tempfile::tempdir().unwrap(), Desk::new());
    let _process = Process::start(folder.path(), "ship", &desk);
    let (go, gate) = watch::channel(false);
    let app = App::start(move |request| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/a" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            app::text(200, "")
        }
    })
    .await;
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .app(app.port)
        .env("DAPR_COMPONENTS_SOCKETS_FOLDER", folder.path().to_str().unwrap())
        .flag("--dapr-block-shutdown-duration=1s")
        .resource(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: pubsub.ship\n  \
             version: v1\n  metadata:\n  - name: consumerID\n    value: me\n",
        )
        .resource(
            "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-a\nspec:\n  pubsubname: broker\n  \
             topic: a\n  routes: {default: /a}\n",
        )
        .start()
        .await;
    let published = node.ask(post("/v1.0/publish/broker/a", "x")).await;
    assert_eq!(published.status, 204, "{}", published.text());
    let at_app = || app.seen().iter().any(|seen| seen.target == "/a");
    eventually(async || at_app()).await;
    node.shutdown.begin();
    eventually(async || *desk.pauses.lock().unwrap() == 1).await;
    assert!(desk.answers.lock().unwrap().is_empty());
    go.send(true).unwrap();
    node.ended().await.unwrap();
    assert_eq!(*desk.answers.lock().unwrap(), [("0".to_owned(), false)]);
}

#[tokio::test]
async fn respects_transaction_limit_of_component() {
    let harbour = harbour().await;
    let (node, desk) = (&harbour.node, &harbour.desk);
    *desk.max_size.lock().unwrap() = Some(1);
    let operation = r#"{"operation":"upsert","request":{"key":"a","value":1}}"#;
    let url = "/v1.0/state/orders/transaction";
    let one = format!(r#"{{"operations":[{operation}]}}"#);
    assert_eq!(node.ask(post(url, one)).await.status, 204);
    let two = format!(r#"{{"operations":[{operation},{operation}]}}"#);
    let message = node
        .ask(post(url, two))
        .await
        .error(400, "ERR_STATE_STORE_TOO_MANY_TRANSACTIONS");
    assert!(
        message.contains("contains 2 operations") && message.ends_with(": 1"),
        "{message}"
    );
}

#[tokio::test]
async fn missing_component_process_fails_start() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let started = net
        .sidecar("me")
        .env("DAPR_COMPONENTS_SOCKETS_FOLDER", folder.path().to_str().unwrap())
        .resource(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: orders\nspec:\n  \
             type: state.ship\n  version: v1\n",
        )
        .try_launch()
        .await;
    let error = started.err().unwrap().to_string();
    assert_eq!(
        error,
        "component orders (state.ship/v1) did not start; its error is logged above"
    );
}
