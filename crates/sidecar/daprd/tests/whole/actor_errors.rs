//! Actors that lack a prerequisite: the contract's codes, and texts with the remedy.

use serde_json::json;

use crate::common::worker::ACTOR_STORE;
use crate::common::{App, Control, Net, Node, Placement, app, eventually, get, post, request};
use crate::process::{Desk, Process};

const WRITE: &str = r#"[{"operation":"upsert","request":{"key":"k","value":1}}]"#;
const STATE: &str = "/v1.0/actors/T/1/state";

/// An app with actors of type `T`.
async fn host() -> App {
    App::start(|request| async move {
        match request.uri().path() {
            "/dapr/config" => app::text(200, r#"{"entities":["T"]}"#),
            _ => app::text(200, ""),
        }
    })
    .await
}

async fn until_placed(node: &Node) {
    eventually(async || node.ask(post("/v1.0/actors/T/1/method/m", "")).await.status == 200).await;
}

#[tokio::test]
async fn types_need_state_store() {
    let (net, placement, app) = (Net::plain(), Placement::start().await, host().await);
    let node = net
        .sidecar("me")
        .flag(&placement.flag())
        .app(app.port)
        .start()
        .await;
    assert!(!placement.has("T", 1), "the type is not advertised");
    for request in [get(&format!("{STATE}/k")), post(STATE, WRITE)] {
        let message = node.ask(request).await.error(500, "ERR_ACTOR_RUNTIME_NOT_FOUND");
        assert!(message.contains("actorStateStore"), "{message}");
    }
}

#[tokio::test]
async fn store_without_transactions_fails_state_calls() {
    let (folder, desk) = (tempfile::tempdir().unwrap(), Desk::new());
    *desk.features.lock().unwrap() = vec!["ETAG"];
    let _store = Process::start(folder.path(), "ship", &desk);
    let (net, placement, app) = (Net::plain(), Placement::start().await, host().await);
    let component = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: harbour\nspec:\n  type: \
                     state.ship\n  version: v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n";
    let node = net
        .sidecar("me")
        .env("DAPR_COMPONENTS_SOCKETS_FOLDER", folder.path().to_str().unwrap())
        .resource(component)
        .flag(&placement.flag())
        .app(app.port)
        .start()
        .await;
    until_placed(&node).await;
    for (request, code) in [
        (get(&format!("{STATE}/k")), "ERR_ACTOR_STATE_GET"),
        (post(STATE, WRITE), "ERR_ACTOR_STATE_TRANSACTION_SAVE"),
    ] {
        let message = node.ask(request).await.error(500, code);
        assert!(
            message.contains("harbour has no ETags or no transactions"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn reminders_require_hosted_type() {
    let (net, control, app) = (Net::plain(), Control::start().await, host().await);
    let plan = net.sidecar("me").app(app.port).resource(ACTOR_STORE);
    let node = control.with_both(plan).start().await;
    let other = control.with_both(net.sidecar("other")).start().await;
    let storeless = control
        .with_both(net.sidecar("storeless").app(app.port))
        .start()
        .await;
    until_placed(&node).await;
    let path = "/v1.0/actors/T/1/reminders/r";
    let set = |overwrite: bool| {
        let reminder = json!({"dueTime": "1h", "period": "1h", "overwrite": overwrite});
        post(path, reminder.to_string())
    };
    for node in [&other, &storeless] {
        for request in [set(true), get(path), request("DELETE", path, &[], "")] {
            node.ask(request)
                .await
                .error(403, "ERR_ACTOR_REMINDER_NON_HOSTED");
        }
    }
    assert_eq!(node.ask(set(false)).await.status, 204);
    node.ask(set(false))
        .await
        .error(409, "ERR_ACTOR_REMINDER_ALREADY_EXISTS");
    assert_eq!(node.ask(set(true)).await.status, 204);
}

/// As in the contract, calls wait for placement and are answered when it is available.
#[tokio::test]
async fn calls_wait_for_first_placement_table() {
    let (net, placement, app) = (Net::plain(), Placement::start().await, host().await);
    placement.hold(true);
    let node = net
        .sidecar("me")
        .resource(ACTOR_STORE)
        .flag(&placement.flag())
        .app(app.port)
        .launch()
        .await;
    eventually(async || placement.is_locked()).await;
    let call = node.ask(post("/v1.0/actors/T/1/method/m", ""));
    let mut call = std::pin::pin!(call);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(300), &mut call).await;
    assert!(waited.is_err(), "it waits");
    placement.hold(false);
    assert_eq!(crate::common::within(call).await.status, 200);
}
