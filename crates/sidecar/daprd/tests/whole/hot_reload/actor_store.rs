//! The actor state store, which appears, changes and ends while actors are hosted.

use super::*;
use crate::common::{Placement, app::text};

/// A store of actors of this type; `note` makes versions differ.
fn marked(name: &str, note: &str) -> String {
    let rest = format!(
        "  metadata:\n  - name: actorStateStore\n    value: \"true\"\n  - name: note\n    value: {note}\n"
    );
    component(name, "state.in-memory", &rest)
}

async fn called(node: &Node) -> bool {
    node.ask(post("/v1.0/actors/T/1/method/m", "hi")).await.status == 200
}

async fn saved(node: &Node) -> u16 {
    let save = r#"[{"operation":"upsert","request":{"key":"k","value":1}}]"#;
    node.ask(post("/v1.0/actors/T/1/state", save))
        .await
        .status
        .as_u16()
}

#[tokio::test]
async fn hosts_actors_while_store_runs() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = App::start(|request| async move {
        match request.uri().path() {
            "/dapr/config" => text(200, r#"{"entities": ["T"]}"#),
            _ => text(200, ""),
        }
    })
    .await;
    let deactivated = || app.seen().iter().filter(|seen| seen.method == "DELETE").count();
    let node = plan(&net).flag(&placement.flag()).app(app.port).start().await;
    assert!(!called(&node).await && !placement.has("T", 1));

    put(&node, "first.yaml", &marked("first", "one"));
    eventually(async || called(&node).await).await;
    assert_eq!(saved(&node).await, 204);

    // Another version is used under the running actors.
    put(&node, "first.yaml", &marked("first", "two"));
    put(&node, "second.yaml", &marked("second", "one"));
    put(&node, "marker.yaml", &memory("marker"));
    until(
        &node,
        &[("first", "state.in-memory"), ("marker", "state.in-memory")],
    )
    .await;
    assert!(called(&node).await && deactivated() == 0);
    assert_eq!(saved(&node).await, 204);

    // The skipped one takes over.
    delete(&node, "first.yaml");
    until(
        &node,
        &[("marker", "state.in-memory"), ("second", "state.in-memory")],
    )
    .await;
    assert_eq!(deactivated(), 1);
    eventually(async || called(&node).await).await;

    // Unmarked.
    put(&node, "second.yaml", &memory("second"));
    eventually(async || !placement.has("T", 1)).await;
    eventually(async || deactivated() == 2).await;
    assert!(!called(&node).await);
    let answer = node.ask(get("/v1.0/actors/T/1/state/k")).await;
    let text = "the state store is not configured to use the actor runtime";
    assert!(answer.text().contains(text), "{}", answer.text());
    node.stop().await.unwrap();
}
