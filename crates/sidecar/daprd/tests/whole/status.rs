//! The status on the metrics port: what runs, what does not, and why.

use serde_json::{Value, json};

use crate::common::{Answer, App, Net, Node, client, eventually, get, post};
use crate::workflow_api::{Worker, World};

fn component(name: &str, kind: &str, more: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  version: v1\n{more}"
    )
}

async fn page(node: &Node, path: &str) -> Answer {
    Answer::read(client::send(node.ports.metrics, get(path)).await.unwrap()).await
}

async fn status(node: &Node) -> Value {
    page(node, "/status.json").await.json()
}

/// The only row of a list whose member has this value.
fn row(status: &Value, list: &str, member: &str, value: &str) -> Value {
    let rows = status[list].as_array().unwrap();
    let mut found = rows.iter().filter(|row| row[member] == value);
    match (found.next(), found.next()) {
        (Some(row), None) => row.clone(),
        _ => panic!("{list} has not one {member} {value}: {status:#}"),
    }
}

#[tokio::test]
async fn shows_failed_parts() {
    const PASSWORD: &str = "hunter2hunter2";
    let net = Net::plain();
    let bad = format!(
        "  ignoreErrors: true\n  metadata:\n  - name: connectionString\n    value: {PASSWORD}\n  - name: busyTimeout\n    \
         value: {PASSWORD}\n"
    );
    let policies = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    timeouts:\n      \
                    slow: soon\n      fast: 1s\n  targets:\n    apps:\n      me: {timeout: slow}\n";
    let subscription = "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: sub\nspec:\n  pubsubname: none\n  topic: \
                        t\n  routes: {default: /t}\n";
    let app = App::echo().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .spec("  components:\n    deny: [state.redis/v1]\n")
        .resource(&component("mem", "state.in-memory", ""))
        .resource(&component("odd", "state.nosuch", "  ignoreErrors: true\n"))
        .resource(&component("bad", "state.sqlite", &bad))
        .resource(&component("denied", "state.redis", ""))
        .resource(&component("foreign", "state.in-memory", "scopes: [other]\n"))
        .resource(policies)
        .resource(subscription)
        .start()
        .await;
    let seen = status(&node).await;
    for (name, state, error, place) in [
        ("mem", "loaded", "", "0.yaml:1"),
        (
            "odd",
            "failed",
            "couldn't find state component state.nosuch/v1",
            "1.yaml:6",
        ),
        ("bad", "failed", "busyTimeout", "2.yaml:"),
        ("denied", "skipped", "deny list", "3.yaml:1"),
    ] {
        let row = row(&seen, "components", "name", name);
        assert_eq!(row["state"], state, "{row}");
        assert!(row["error"].as_str().unwrap_or_default().contains(error), "{row}");
        assert!(row["place"].as_str().unwrap().contains(place), "{row}");
    }
    let findings = seen["findings"].as_array().unwrap();
    for (level, place, text) in [
        ("info", "4.yaml:1", "its scopes are other"),
        (
            "error",
            "5.yaml:8",
            "the timeout \"slow\" does not apply to apps.me",
        ),
    ] {
        let is_it = |finding: &&Value| {
            let has = |member: &str, part: &str| finding[member].as_str().unwrap().contains(part);
            finding["level"] == level && has("place", place) && has("text", text)
        };
        assert!(findings.iter().any(|finding| is_it(&finding)), "{text}: {seen:#}");
    }
    assert_eq!(row(&seen, "subscriptions", "topic", "t")["state"], "no broker");
    assert_eq!(seen["sidecar"]["appHealthy"], true);
    assert_eq!(seen["sidecar"]["notReady"], json!([]));

    let html = page(&node, "/status").await;
    assert!(html.text().contains("<td>odd</td>"), "{}", html.text());
    assert!(!html.text().contains(PASSWORD) && !seen.to_string().contains(PASSWORD));
    assert!(
        page(&node, "/metrics")
            .await
            .text()
            .contains("dapr_runtime_component_loaded")
    );
}

#[tokio::test]
async fn shows_peers_and_connections() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    assert_eq!(status(&caller).await["peers"], json!([]));
    assert_eq!(
        caller.ask(post("/v1.0/invoke/callee/method/m", "")).await.status,
        200
    );
    let peer = row(&status(&caller).await, "peers", "appID", "callee");
    assert_eq!(peer["connections"], 1);
    let port = callee.ports.internal.to_string();
    assert!(peer["address"].as_str().unwrap().ends_with(&port), "{peer}");
}

#[tokio::test]
async fn shows_pending_workflows() {
    let world = World::new().await;
    let node = world.sidecar().await;
    let mut worker = Worker::connect(&node).await;
    world.hosts(1).await;
    let start = post("/v1.0/workflows/dapr/order/start?instanceID=a", "");
    assert_eq!(node.ask(start).await.status, 202);
    let (_, token) = worker.turn().await;
    let seen = status(&node).await;
    assert_eq!(seen["sidecar"]["workers"], 1);
    let work = row(&seen, "work", "instanceID", "a");
    assert_eq!(work["kind"], "turn");
    assert!(
        work["why"].as_str().unwrap().contains("sent to a worker at"),
        "{work}"
    );
    // Without unfinished actions, it waits for an event.
    worker.answer("a", &token, Vec::new()).await;
    eventually(async || {
        let seen = status(&node).await;
        let waits = seen["workflowWaits"].as_array().unwrap();
        seen["work"] == json!([])
            && waits
                .iter()
                .any(|wait| wait["instanceID"] == "a" && wait["kind"] == "event")
    })
    .await;
}
