//! Actors whose app is killed, or whose store is slow.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use serde_json::json;
use tokio::task::JoinSet;

use crate::common::{Answer, App, Control, Net, Node, Plan, app, eventually, get, post, within};

/// Number of turns begun, by path.
type Turns = Arc<Mutex<BTreeMap<String, usize>>>;

/// An app with actors of type `T` on a port; 0 means any port. The method `hang` never ends.
async fn host(port: u16, turns: &Turns) -> App {
    let turns = Arc::clone(turns);
    App::listen(port, move |request: Request<Incoming>| {
        let turns = Arc::clone(&turns);
        async move {
            let path = request.uri().path().to_owned();
            match (request.method(), path.as_str()) {
                (&Method::GET, "/dapr/config") => return app::text(200, r#"{"entities":["T"]}"#),
                (&Method::GET, _) => return app::text(404, ""),
                _ => {}
            }
            *turns.lock().unwrap().entry(path.clone()).or_default() += 1;
            if path.ends_with("/hang") {
                std::future::pending::<()>().await;
            }
            app::text(200, "")
        }
    })
    .await
}

fn begun(turns: &Turns, path: &str) -> usize {
    turns.lock().unwrap().get(path).copied().unwrap_or_default()
}

/// A store in a file, whose writes wait for other writers.
fn store(file: &Path) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: state.sqlite\n  version: \
         v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n  - name: busyTimeout\n    value: 30s\n  - name: \
         connectionString\n    value: '{}'\n",
        file.display()
    )
}

async fn sidecar(net: &Net, control: &Control, file: &Path, app: &App) -> Node {
    plan(net, control, file, app).start().await
}

fn plan<'n>(net: &'n Net, control: &Control, file: &Path, app: &App) -> Plan<'n> {
    let plan = net.sidecar("me").app(app.port).resource(&store(file));
    control.with_both(plan)
}

async fn invoke(node: &Node, id: &str, method: &str) -> Answer {
    node.ask(post(&format!("/v1.0/actors/T/{id}/method/{method}"), ""))
        .await
}

/// Invariant: killing the app during a turn fails that call, which is not repeated. Once the app is back,
/// that actor and others can be called and reminded.
#[tokio::test]
async fn killed_app_fails_only_its_turn() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, turns) = (Net::plain(), Control::start().await, Turns::default());
    let app = host(0, &turns).await;
    let node = Arc::new(sidecar(&net, &control, &folder.path().join("state.db"), &app).await);
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let reminder = json!({"dueTime": "0s", "period": "1s"});
    let path = "/v1.0/actors/T/2/reminders/wake";
    assert_eq!(node.ask(post(path, reminder.to_string())).await.status, 204);
    let hanging = tokio::spawn({
        let node = Arc::clone(&node);
        async move { invoke(&node, "1", "hang").await }
    });
    let hang = "/actors/T/1/method/hang";
    eventually(async || begun(&turns, hang) == 1).await;
    let port = app.port;
    app.stop().await;
    let answer = within(hanging).await.unwrap();
    assert_eq!(answer.status, 500, "{}", answer.text());
    let gone = invoke(&node, "1", "m").await;
    assert_eq!(gone.status, 500, "{}", gone.text());

    let _app = host(port, &turns).await;
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let wake = "/actors/T/2/method/remind/wake";
    let before = begun(&turns, wake);
    eventually(async || begun(&turns, wake) > before + 1).await;
    assert_eq!(begun(&turns, hang), 1, "the turn that failed does not run again");
}

/// Invariant: while the store accepts no writes, turns without writes continue. Pending writes are stored
/// once and in order.
#[tokio::test]
async fn slow_store_delays_only_writers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let (net, control, turns) = (Net::plain(), Control::start().await, Turns::default());
    let app = host(0, &turns).await;
    let node = Arc::new(sidecar(&net, &control, &file, &app).await);
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let path = "/v1.0/actors/T/1/state";
    let write =
        |value: u32| json!([{"operation": "upsert", "request": {"key": "k", "value": value}}]).to_string();
    assert_eq!(node.ask(post(path, write(1))).await.status, 204);

    let busy = rusqlite::Connection::open(&file).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writing = tokio::spawn({
        let (node, body) = (Arc::clone(&node), write(2));
        async move { node.ask(post(path, body)).await }
    });
    // Longer than any wait of an unblocked call.
    let until = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < until {
        for id in ["1", "2", "3"] {
            let answer = within(invoke(&node, id, "m")).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        assert!(!writing.is_finished(), "it is not stored yet");
    }
    busy.execute_batch("COMMIT").unwrap();
    assert_eq!(within(writing).await.unwrap().status, 204);
    let stored = node.ask(get("/v1.0/actors/T/1/state/k")).await;
    assert_eq!((stored.status.as_u16(), stored.text()), (200, "2"));
}

/// Invariant: writes pending when the host lost placement are not stored, because other hosts may have the
/// actor.
#[tokio::test]
async fn fenced_host_drops_pending_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let (net, mut control, turns) = (Net::plain(), Control::start().await, Turns::default());
    let app = host(0, &turns).await;
    let node = Arc::new(sidecar(&net, &control, &file, &app).await);
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let path = "/v1.0/actors/T/1/state";
    let write =
        |value: u32| json!([{"operation": "upsert", "request": {"key": "k", "value": value}}]).to_string();
    assert_eq!(node.ask(post(path, write(1))).await.status, 204);

    let busy = rusqlite::Connection::open(&file).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let writing = tokio::spawn({
        let (node, body) = (Arc::clone(&node), write(2));
        async move { node.ask(post(path, body)).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    control.placement.kill();
    let answer = within(writing).await.unwrap();
    assert_eq!(answer.status, 500, "{}", answer.text());
    busy.execute_batch("COMMIT").unwrap();
    // Behind the other one in the same queue.
    let later = json!([{"key": "later", "value": 3}]).to_string();
    assert_eq!(node.ask(post("/v1.0/state/store", later)).await.status, 204);
    let stored: String = busy
        .query_row("SELECT value FROM state WHERE key LIKE '%T||1||k'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(stored, "1");
}

/// Invariant: pending writes of a turn aborted by a move are not stored, because the new host has the actor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_turn_drops_pending_write() {
    let folder = tempfile::tempdir().unwrap();
    let (file, elsewhere) = (folder.path().join("state.db"), folder.path().join("other.db"));
    let (net, control, turns) = (Net::plain(), Control::with_handover().await, Turns::default());
    let (app, other) = (host(0, &turns).await, host(0, &turns).await);
    let first = plan(&net, &control, &file, &app).flag("--actors-handover");
    let node = Arc::new(first.start().await);
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let ids: Vec<_> = (0..12).map(|id| id.to_string()).collect();
    let mut hanging = JoinSet::new();
    for id in ids.clone() {
        let node = Arc::clone(&node);
        hanging.spawn(async move { invoke(&node, &id, "hang").await });
    }
    let hangs = |id: &String| begun(&turns, &format!("/actors/T/{id}/method/hang")) == 1;
    eventually(async || ids.iter().all(hangs)).await;
    let busy = rusqlite::Connection::open(&file).unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut writes = JoinSet::new();
    for id in ids.clone() {
        let node = Arc::clone(&node);
        let body = json!([{"operation": "upsert", "request": {"key": "k", "value": 1}}]).to_string();
        writes.spawn(async move {
            let path = format!("/v1.0/actors/T/{id}/state");
            (id, node.ask(post(&path, body)).await)
        });
    }
    let second = plan(&net, &control, &elsewhere, &other).flag("--actors-handover");
    let _second = second.start().await;
    let (id, answer) = within(writes.join_next()).await.unwrap().unwrap();
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.text().contains("disseminating"), "{}", answer.text());
    busy.execute_batch("COMMIT").unwrap();
    // Behind the other ones in the same queue.
    let later = json!([{"key": "later", "value": 3}]).to_string();
    assert_eq!(node.ask(post("/v1.0/state/store", later)).await.status, 204);
    let key = format!("%T||{id}||k");
    let stored: u32 = busy
        .query_row("SELECT COUNT(*) FROM state WHERE key LIKE ?1", [key], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(stored, 0);
}
