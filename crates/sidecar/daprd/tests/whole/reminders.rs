//! Actors with the real control plane: reminders, timers, state with a TTL, and hosts that join, move and are
//! killed.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_components_testing::server::{Etcd, Postgres, Redis};
use outrigger_wire::runtime::v1::{
    GetActorReminderRequest, GetActorReminderResponse, RegisterActorReminderRequest,
    UnregisterActorReminderRequest,
};
use prost::Message;
use serde_json::{Value, json};

use crate::common::{Answer, App, Control, Net, Node, app, eventually, get, grpc, post, request};

const TTL: &str = "  features:\n  - name: ActorStateTTL\n    enabled: true\n";

/// A store that outlives its sidecars.
fn store(folder: &std::path::Path) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: state.sqlite\n  version: \
         v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n  - name: connectionString\n    value: '{}'\n",
        folder.join("state.db").display()
    )
}

/// The requests of all hosts in order: host, method, path and body.
type Got = Arc<std::sync::Mutex<Vec<(String, String, String)>>>;

/// An app `name` with actors of type `T` that records its requests in `got`.
async fn host(name: &str, got: &Got) -> App {
    let (name, got) = (name.to_owned(), Arc::clone(got));
    App::start(move |request: Request<Incoming>| {
        let (name, got) = (name.clone(), Arc::clone(&got));
        async move {
            let target = format!("{} {}", request.method(), request.uri());
            if request.uri().path() == "/dapr/config" {
                return app::text(200, r#"{"entities":["T"],"drainOngoingCallTimeout":"1s"}"#);
            }
            if request.method() == Method::GET {
                return app::text(404, "");
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            got.lock().unwrap().push((name, target, body));
            app::text(200, "")
        }
    })
    .await
}

async fn sidecar(net: &Net, control: &Control, store: &str, id: &str, app: &App) -> Node {
    let plan = net.sidecar(id).app(app.port).resource(store).spec(TTL);
    control.with_both(plan).start().await
}

async fn invoke(node: &Node, id: &str) -> Answer {
    node.ask(post(&format!("/v1.0/actors/T/{id}/method/m"), "")).await
}

/// Waits until an actor can be called.
async fn until_placed(node: &Node, id: &str) {
    eventually(async || invoke(node, id).await.status == 200).await;
}

fn count(got: &Got, host: &str, target: &str) -> usize {
    let got = got.lock().unwrap();
    let at = got
        .iter()
        .filter(|(name, seen, _)| name == host && seen == target);
    at.count()
}

/// The hosts that received a request.
fn hosts(got: &Got, target: &str) -> Vec<String> {
    let got = got.lock().unwrap();
    let mut hosts: Vec<_> = got
        .iter()
        .filter(|(_, seen, _)| seen == target)
        .map(|(name, ..)| name.clone())
        .collect();
    hosts.dedup();
    hosts
}

async fn call(node: &Node, method: &str, message: &impl Message) -> grpc::Outcome {
    let path = format!("/dapr.proto.runtime.v1.Dapr/{method}");
    grpc::unary(node.ports.grpc, &path, &[], message).await
}

#[tokio::test]
async fn reminder_fires_until_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, &store(folder.path()), "me", &app).await;
    until_placed(&node, "1").await;
    let path = "/v1.0/actors/T/1/reminders/wake";
    let reminder = json!({"dueTime": "0s", "period": "1s", "data": {"n": 1}});
    assert_eq!(node.ask(post(path, reminder.to_string())).await.status, 204);
    let fired = "PUT /actors/T/1/method/remind/wake";
    eventually(async || count(&got, "one", fired) > 1).await;
    let body = {
        let got = got.lock().unwrap();
        got.iter()
            .find(|(_, target, _)| target == fired)
            .unwrap()
            .2
            .clone()
    };
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["data"], json!({"n": 1}));
    let known = node.ask(get(path)).await;
    assert_eq!(known.status, 200, "{}", known.text());
    assert_eq!(known.json()["data"], json!({"n": 1}));
    assert_eq!(node.ask(request("DELETE", path, &[], "")).await.status, 204);
    node.ask(get(path))
        .await
        .error(404, "ERR_ACTOR_REMINDER_NOT_FOUND");
    let register = RegisterActorReminderRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        name: "grpc".to_owned(),
        due_time: "0s".to_owned(),
        period: "R2/PT1S".to_owned(),
        data: b"{\"a\":2}".to_vec().into(),
        ..RegisterActorReminderRequest::default()
    };
    call(&node, "RegisterActorReminder", &register)
        .await
        .message::<()>();
    let wanted = GetActorReminderRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        name: "grpc".to_owned(),
    };
    call(&node, "GetActorReminder", &wanted)
        .await
        .message::<GetActorReminderResponse>();
    eventually(async || count(&got, "one", "PUT /actors/T/1/method/remind/grpc") == 2).await;
    let back = UnregisterActorReminderRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        name: "grpc".to_owned(),
    };
    call(&node, "UnregisterActorReminder", &back)
        .await
        .message::<()>();
}

#[tokio::test]
async fn invalid_reminders_have_contract_codes() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, &store(folder.path()), "me", &app).await;
    until_placed(&node, "1").await;
    for (path, body, status, code) in [
        (
            "T/1/reminders/r",
            json!({"dueTime": "soon"}),
            500,
            "ERR_ACTOR_REMINDER_CREATE",
        ),
        (
            "T/1/timers/t",
            json!({"dueTime": "0s", "period": "R0/PT1S"}),
            500,
            "ERR_ACTOR_TIMER_CREATE",
        ),
        (
            "T/1/timers/t",
            json!({"dueTime": "0s", "period": "often"}),
            500,
            "ERR_ACTOR_TIMER_CREATE",
        ),
    ] {
        let answer = node
            .ask(post(&format!("/v1.0/actors/{path}"), body.to_string()))
            .await;
        answer.error(status, code);
    }
    let answer = node.ask(post("/v1.0/actors/T/1/reminders/r", "{")).await;
    answer.error(400, "ERR_MALFORMED_REQUEST");
    for path in ["T/1/reminders/r", "T/1/timers/t"] {
        let undeliverable = r#"{"dueTime": "1h", "data": 1E400}"#;
        let answer = node
            .ask(post(&format!("/v1.0/actors/{path}"), undeliverable))
            .await;
        answer.error(400, "ERR_MALFORMED_REQUEST");
    }
    let endless = json!({"dueTime": "1h", "period": "R0/PT1S"}).to_string();
    let answer = node.ask(post("/v1.0/actors/T/1/reminders/r", endless)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

/// A store for actors.
fn component(kind: &str, version: &str, properties: &[(&str, &str)]) -> String {
    let properties = properties
        .iter()
        .map(|(name, value)| format!("  - name: {name}\n    value: '{value}'\n"));
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: {kind}\n  version: \
         {version}\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n{}",
        properties.collect::<String>()
    )
}

#[tokio::test]
async fn memory_store_supports_actors() {
    is_for_actors(&component("state.in-memory", "v1", &[])).await;
}

#[tokio::test]
async fn sqlite_store_supports_actors() {
    let folder = tempfile::tempdir().unwrap();
    is_for_actors(&store(folder.path())).await;
}

#[tokio::test]
async fn redis_store_supports_actors() {
    let Some(redis) = Redis::start(&[]) else { return };
    is_for_actors(&component("state.redis", "v1", &[("redisHost", &redis.host())])).await;
}

#[tokio::test]
async fn postgres_stores_support_actors() {
    let Some(postgres) = Postgres::start() else { return };
    let text = postgres.text();
    for version in ["v1", "v2"] {
        let own = if version == "v1" {
            "tableName"
        } else {
            "tablePrefix"
        };
        let properties = [("connectionString", text.as_str()), (own, "actors_")];
        is_for_actors(&component("state.postgresql", version, &properties)).await;
    }
}

#[tokio::test]
async fn etcd_store_supports_actors() {
    let Some(etcd) = Etcd::start() else { return };
    is_for_actors(&component("state.etcd", "v2", &[("endpoints", &etcd.endpoint())])).await;
}

/// Invariant: in this store, actor state is written all or nothing, can be read, and expires; reminders fire.
async fn is_for_actors(store: &str) {
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, store, "me", &app).await;
    until_placed(&node, "1").await;
    let reminder = json!({"dueTime": "0s", "period": "R2/PT1S"});
    let path = "/v1.0/actors/T/1/reminders/wake";
    assert_eq!(node.ask(post(path, reminder.to_string())).await.status, 204);
    let upsert = |key: &str, metadata: Value| json!({"operation": "upsert", "request": {"key": key, "value": "x", "metadata": metadata}});
    let operations = json!([
        upsert("short", json!({"ttlInSeconds": "1"})),
        upsert("long", json!({"ttlInSeconds": "600"})),
        upsert("kept", json!({})),
    ]);
    let saved = node
        .ask(post("/v1.0/actors/T/1/state", operations.to_string()))
        .await;
    assert_eq!(saved.status, 204, "{}", saved.text());
    let long = node.ask(get("/v1.0/actors/T/1/state/long")).await;
    // As in Dapr, Redis is not asked for the expiry of its values.
    let tells = long.header("metadata.ttlexpiretime").is_some();
    assert_eq!(tells, !store.contains("state.redis"), "{:?}", long.headers);
    let kept = node.ask(get("/v1.0/actors/T/1/state/kept")).await;
    assert!(kept.header("metadata.ttlexpiretime").is_none());
    let status = async |key: &str| {
        node.ask(get(&format!("/v1.0/actors/T/1/state/{key}")))
            .await
            .status
    };
    eventually(async || status("short").await == 204).await;
    assert_eq!(
        (status("long").await.as_u16(), status("kept").await.as_u16()),
        (200, 200)
    );
    // All or nothing: an invalid operation undoes the others.
    let operations = json!([
        {"operation": "delete", "request": {"key": "kept"}},
        {"operation": "upsert", "request": {"key": "long", "value": "y", "etag": "987654321"}},
    ]);
    let refused = node
        .ask(post("/v1.0/actors/T/1/state", operations.to_string()))
        .await;
    refused.error(500, "ERR_ACTOR_STATE_TRANSACTION_SAVE");
    let long = node.ask(get("/v1.0/actors/T/1/state/long")).await;
    assert_eq!((status("kept").await.as_u16(), long.text()), (200, "\"x\""));
    eventually(async || count(&got, "one", "PUT /actors/T/1/method/remind/wake") == 2).await;
}

/// Invariant: the actors of a killed host move to others with their state and reminders.
#[tokio::test]
async fn killed_host_loses_no_state_or_reminder() {
    // Replicas of one app: state belongs to the app.
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let store = store(folder.path());
    let apps = [host("one", &got).await, host("two", &got).await];
    let first = sidecar(&net, &control, &store, "me", &apps[0]).await;
    until_placed(&first, "1").await;
    let set = json!([{"operation": "upsert", "request": {"key": "k", "value": 7}}]);
    assert_eq!(
        first
            .ask(post("/v1.0/actors/T/1/state", set.to_string()))
            .await
            .status,
        204
    );
    let reminder = json!({"dueTime": "0s", "period": "R20/PT1S"});
    let path = "/v1.0/actors/T/1/reminders/wake";
    assert_eq!(first.ask(post(path, reminder.to_string())).await.status, 204);
    let fired = "PUT /actors/T/1/method/remind/wake";
    eventually(async || count(&got, "one", fired) > 0).await;
    let second = sidecar(&net, &control, &store, "me", &apps[1]).await;
    drop(first);
    eventually(async || count(&got, "two", fired) > 0).await;
    until_placed(&second, "1").await;
    let state = second.ask(get("/v1.0/actors/T/1/state/k")).await;
    assert_eq!((state.status.as_u16(), state.text()), (200, "7"));
    // None of its occurrences is lost.
    for times in 1..=20 {
        eventually(async || count(&got, "one", fired) + count(&got, "two", fired) >= times).await;
    }
}

/// Invariant: without the scheduler, calls, state and timers work; reminders due in the outage fire
/// afterwards.
#[tokio::test]
async fn scheduler_outage_delays_only_reminders() {
    let folder = tempfile::tempdir().unwrap();
    let (net, mut control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, &store(folder.path()), "me", &app).await;
    until_placed(&node, "1").await;
    for (path, body) in [
        ("reminders/wake", json!({"dueTime": "0s", "period": "R6/PT1S"})),
        ("timers/tick", json!({"dueTime": "0s", "period": "100ms"})),
    ] {
        let path = format!("/v1.0/actors/T/1/{path}");
        assert_eq!(node.ask(post(&path, body.to_string())).await.status, 204);
    }
    let (woken, ticked) = (
        "PUT /actors/T/1/method/remind/wake",
        "PUT /actors/T/1/method/timer/tick",
    );
    eventually(async || count(&got, "one", woken) > 0).await;
    control.scheduler.kill();
    let (came, before) = (count(&got, "one", woken), count(&got, "one", ticked));
    let mut value = 0;
    // Longer than a period of the reminder.
    eventually(async || {
        value += 1;
        assert_eq!(invoke(&node, "1").await.status, 200);
        let set = json!([{"operation": "upsert", "request": {"key": "k", "value": value}}]);
        let set = node.ask(post("/v1.0/actors/T/1/state", set.to_string())).await;
        assert_eq!(set.status, 204, "{}", set.text());
        let state = node.ask(get("/v1.0/actors/T/1/state/k")).await;
        assert_eq!(state.text(), value.to_string());
        count(&got, "one", ticked) > before + 20
    })
    .await;
    assert!(
        count(&got, "one", woken) <= came + 1,
        "one may have been under way"
    );
    control.start_scheduler().await;
    for times in 1..=6 {
        eventually(async || count(&got, "one", woken) >= times).await;
    }
}

/// Invariant: actors move to a new host, each is in one place, and every call is answered.
#[tokio::test]
async fn actors_move_to_new_host() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let store = store(folder.path());
    let apps = [host("one", &got).await, host("two", &got).await];
    let first = sidecar(&net, &control, &store, "one", &apps[0]).await;
    until_placed(&first, "0").await;
    for id in 0..20 {
        assert_eq!(invoke(&first, &id.to_string()).await.status, 200);
    }
    let second = sidecar(&net, &control, &store, "two", &apps[1]).await;
    let moved = || {
        let ids = 0..20;
        ids.filter(|id| count(&got, "one", &format!("DELETE /actors/T/{id}")) > 0)
            .collect::<Vec<_>>()
    };
    eventually(async || !moved().is_empty()).await;
    for id in 0..20 {
        for node in [&first, &second] {
            let answer = invoke(node, &id.to_string()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let moved = moved();
    assert!(moved.len() < 20, "some stay");
    for id in 0..20 {
        let hosts = hosts(&got, &format!("PUT /actors/T/{id}/method/m"));
        let expected: &[&str] = if moved.contains(&id) {
            &["one", "two"]
        } else {
            &["one"]
        };
        assert_eq!(hosts, expected, "{id}");
    }
}

/// Invariant: after outages of placement and of the scheduler, actors are called and reminded again.
#[tokio::test]
async fn reconnects_to_restarted_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let (net, mut control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, &store(folder.path()), "me", &app).await;
    until_placed(&node, "1").await;
    let reminder = json!({"dueTime": "0s", "period": "1s"});
    let path = "/v1.0/actors/T/1/reminders/wake";
    assert_eq!(node.ask(post(path, reminder.to_string())).await.status, 204);
    let fired = "PUT /actors/T/1/method/remind/wake";
    eventually(async || count(&got, "one", fired) > 0).await;
    control.placement.kill();
    control.start_placement().await;
    until_placed(&node, "2").await;
    control.scheduler.kill();
    control.start_scheduler().await;
    let before = count(&got, "one", fired);
    eventually(async || count(&got, "one", fired) > before + 1).await;
    assert_eq!(node.ask(get("/v1.0/healthz")).await.status, 204);
}

/// Invariant: a host that leaves gracefully deactivates its actors, which ends their timers.
#[tokio::test]
async fn timer_ends_with_actor() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let app = host("one", &got).await;
    let node = sidecar(&net, &control, &store(folder.path()), "me", &app).await;
    until_placed(&node, "1").await;
    let timer = json!({"dueTime": "0s", "period": "50ms", "callback": "c"});
    let path = "/v1.0/actors/T/1/timers/t";
    assert_eq!(node.ask(post(path, timer.to_string())).await.status, 204);
    let fired = "PUT /actors/T/1/method/timer/t";
    eventually(async || count(&got, "one", fired) > 2).await;
    node.stop().await.unwrap();
    let got = got.lock().unwrap();
    let last = got.last().unwrap();
    assert_eq!(last.1, "DELETE /actors/T/1", "nothing comes after its end");
}

/// Invariant: the policies of an actor type apply to calls. Failed reminders and timers are not retried by
/// them, and do not open their circuit breakers for calls.
#[tokio::test]
async fn actor_policies_skip_timers_and_reminders() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control, got) = (Net::plain(), Control::start().await, Got::default());
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                  retries:\n      three: {policy: constant, duration: 10ms, maxRetries: 3}\n  targets:\n    actors:\n      \
                  T: {retry: three}\n";
    let app = App::start({
        let got = Arc::clone(&got);
        move |request: Request<Incoming>| {
            let got = Arc::clone(&got);
            async move {
                let path = request.uri().path().to_owned();
                if path == "/dapr/config" {
                    return app::text(200, r#"{"entities":["T"]}"#);
                }
                let fails = path.contains("/remind/") || path.contains("/timer/") || path.ends_with("/fails");
                got.lock().unwrap().push(("one".to_owned(), path, String::new()));
                app::text(if fails { 500 } else { 200 }, "")
            }
        }
    })
    .await;
    let plan = net
        .sidecar("me")
        .app(app.port)
        .resource(&store(folder.path()))
        .resource(policy);
    let node = control.with_both(plan).start().await;
    until_placed(&node, "1").await;
    let times = |path: &str| count(&got, "one", path);

    let due = async |path: &str, body: Value, fired: &str| {
        let path = format!("/v1.0/actors/T/1/{path}");
        assert_eq!(node.ask(post(&path, body.to_string())).await.status, 204);
        eventually(async || times(fired) > 0).await;
        // The scheduler retries after a second.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(times(fired), 1, "{fired}");
    };
    let timer = json!({"dueTime": "0s", "callback": "c"});
    due("timers/t", timer, "/actors/T/1/method/timer/t").await;
    due(
        "reminders/r",
        json!({"dueTime": "0s"}),
        "/actors/T/1/method/remind/r",
    )
    .await;
    let failed = node.ask(post("/v1.0/actors/T/1/method/fails", "")).await;
    assert_eq!(failed.status, 500, "{}", failed.text());
    assert_eq!(times("/actors/T/1/method/fails"), 4, "a call is tried again");
}

/// Invariant: reminders that Dapr stored in the state store before 1.16 are reported in every format.
#[tokio::test]
async fn logs_reminders_of_old_format() {
    let folder = tempfile::tempdir().unwrap();
    let (net, control) = (Net::plain(), Control::start().await);
    let app = App::start(|request: Request<Incoming>| async move {
        match request.uri().path() {
            "/dapr/config" => app::text(200, r#"{"entities":["List","Protobuf","Parts","Empty","None"]}"#),
            _ => app::text(404, ""),
        }
    })
    .await;
    let plan = || control.with_both(net.sidecar("me").app(app.port).resource(&store(folder.path())));
    // Creates the table.
    plan().start().await.stop().await.unwrap();
    let list = r#"[{"actorID":"1","actorType":"T","name":"wake","period":"1h","dueTime":"0s"}]"#;
    let record = r#"{"id":"e0e8","actorRemindersMetadata":{"partitionCount":3}}"#;
    let database = rusqlite::Connection::open(folder.path().join("state.db")).unwrap();
    for (key, value) in [
        ("actors||List", list),
        // A list with one element, after "\0pb".
        ("actors||Protobuf", "AHBiCgYKAVQSATE="),
        ("actors||Parts||metadata", record),
        ("actors||Parts||e0e8||reminders||1", "[]"),
        ("actors||Parts||e0e8||reminders||3", list),
        ("actors||Empty", "[]"),
        ("actors||Empty||metadata", record),
    ] {
        let is_binary = key == "actors||Protobuf";
        let sql = "INSERT INTO state (key, value, is_binary, etag) VALUES (?1, ?2, ?3, 'e')";
        database.execute(sql, (key, value, is_binary)).unwrap();
    }
    let process = plan().spawn().await;
    let named = |kind: &str, key: &str| {
        format!("the state store store has reminders of the actor type {kind} under the key {key:?}")
    };
    for (kind, key) in [
        ("List", "actors||List"),
        ("Protobuf", "actors||Protobuf"),
        ("Parts", "actors||Parts||e0e8||reminders||3"),
    ] {
        // Quotes may be escaped.
        let text = named(kind, key);
        eventually(async || process.log().replace('\\', "").contains(&text)).await;
    }
    for kind in ["Empty", "None"] {
        let text = format!("has reminders of the actor type {kind}");
        assert!(!process.log().contains(&text), "{kind}");
    }
}
