//! The Configuration API over both protocols: reads, subscriptions over streams and to the app, and errors.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt;
use outrigger_wire::runtime::v1::{
    GetConfigurationRequest, GetConfigurationResponse, SubscribeConfigurationRequest,
    SubscribeConfigurationResponse, UnsubscribeConfigurationRequest, UnsubscribeConfigurationResponse,
};
use prost::Message;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::Code;

use crate::common::app::text;
use crate::common::grpc::{self, Outcome};
use crate::common::net::Plan;
use crate::common::{App, Net, Node, TIMEOUT, get, within};

const DAPR: &str = "/dapr.proto.runtime.v1.Dapr";

/// A store that any client may write.
struct Store {
    file: PathBuf,
    _folder: TempDir,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            file: folder.path().join("configuration.db"),
            _folder: folder,
        }
    }

    fn resource(&self) -> String {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: conf\nspec:\n  \
             type: configuration.sqlite\n  version: v1\n  metadata:\n  - name: connectionString\n    \
             value: {}\n  - name: pollInterval\n    value: 20ms\n",
            self.file.display()
        )
    }

    fn write(&self, key: &str, value: &str) {
        let database = rusqlite::Connection::open(&self.file).unwrap();
        database.busy_timeout(TIMEOUT).unwrap();
        let sql = "INSERT OR REPLACE INTO configuration VALUES (?1, ?2, '7', '{\"by\":\"test\"}')";
        database.execute(sql, [key, value]).unwrap();
    }

    /// Like `write`, if the store has created its table already.
    fn try_write(&self, key: &str, value: &str) {
        let database = rusqlite::Connection::open(&self.file).unwrap();
        database.busy_timeout(TIMEOUT).unwrap();
        let sql = "INSERT OR REPLACE INTO configuration VALUES (?1, ?2, '7', '{\"by\":\"test\"}')";
        let _later = database.execute(sql, [key, value]);
    }

    fn remove(&self, key: &str) {
        let database = rusqlite::Connection::open(&self.file).unwrap();
        database.busy_timeout(TIMEOUT).unwrap();
        database
            .execute("DELETE FROM configuration WHERE key = ?1", [key])
            .unwrap();
    }

    async fn beside(&self, plan: Plan<'_>) -> Node {
        plan.resource(&self.resource()).start().await
    }
}

/// An app that records updates: path and body.
async fn listening_app(status: u16) -> (App, mpsc::UnboundedReceiver<(String, Value)>) {
    let (sender, updates) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let sender = sender.clone();
        async move {
            let path = request.uri().path().to_owned();
            if !path.starts_with("/configuration/") {
                return text(404, "");
            }
            assert_eq!(request.headers()["content-type"], "application/json");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            sender
                .send((path, serde_json::from_slice(&body).unwrap()))
                .unwrap();
            text(status, "")
        }
    })
    .await;
    (app, updates)
}

async fn call(node: &Node, method: &str, message: &impl Message) -> Outcome {
    grpc::unary(node.ports.grpc, &format!("{DAPR}/{method}"), &[], message).await
}

fn subscribe_request(keys: &[&str]) -> SubscribeConfigurationRequest {
    SubscribeConfigurationRequest {
        store_name: "conf".into(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..SubscribeConfigurationRequest::default()
    }
}

async fn stream(node: &Node, method: &str, keys: &[&str]) -> hyper::body::Incoming {
    let body = grpc::framed(&subscribe_request(keys).encode_to_vec());
    let path = format!("{DAPR}/{method}");
    grpc::start(node.ports.grpc, &path, &[], body.into())
        .await
        .into_body()
}

async fn next(stream: &mut hyper::body::Incoming) -> SubscribeConfigurationResponse {
    let message = grpc::next(stream).await.expect("the stream continues");
    SubscribeConfigurationResponse::decode(message).unwrap()
}

/// Waits for the successful end of a stream.
async fn ended(mut stream: hyper::body::Incoming) {
    let frame = within(stream.frame()).await.expect("trailers").unwrap();
    let trailers = frame.into_trailers().expect("nothing but the end");
    assert_eq!(trailers["grpc-status"], "0");
}

async fn unsubscribe(node: &Node, id: &str) -> UnsubscribeConfigurationResponse {
    let request = UnsubscribeConfigurationRequest {
        store_name: "conf".into(),
        id: id.to_owned(),
    };
    call(node, "UnsubscribeConfiguration", &request).await.message()
}

#[tokio::test]
async fn reads_values_over_both_apis() {
    let (net, store) = (Net::plain(), Store::new());
    let node = store.beside(net.sidecar("me")).await;
    let path = "/v1.0/configuration/conf";
    assert_eq!(node.ask(get(path)).await.status, 204);
    for key in ["a", "b", "c"] {
        store.write(key, &format!("value of {key}"));
    }
    let item = json!({"value": "value of a", "version": "7", "metadata": {"by": "test"}});
    for prefix in ["/v1.0", "/v1.0-alpha1"] {
        let path = format!("{prefix}/configuration/conf?key=a&key=none");
        let answer = node.ask(get(&path)).await;
        assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"a": item})));
    }
    let all = node.ask(get(path)).await.json();
    assert_eq!(all.as_object().unwrap().len(), 3);
    let request = GetConfigurationRequest {
        store_name: "conf".into(),
        keys: vec!["a".into(), "c".into()],
        ..GetConfigurationRequest::default()
    };
    for method in ["GetConfiguration", "GetConfigurationAlpha1"] {
        let found: GetConfigurationResponse = call(&node, method, &request).await.message();
        assert_eq!(found.items.len(), 2);
        let item = &found.items["c"];
        assert_eq!((item.value.as_str(), item.version.as_str()), ("value of c", "7"));
        assert_eq!(item.metadata["by"], "test");
    }
    let labels = ["component=\"conf\"", "operation=\"get\"", "success=\"true\""];
    node.counts("dapr_component_configuration_count", &labels, 6.0)
        .await;
}

#[tokio::test]
async fn streams_changes_until_end() {
    let (net, store) = (Net::plain(), Store::new());
    let node = store.beside(net.sidecar("me")).await;
    store.write("a", "old");
    for method in ["SubscribeConfiguration", "SubscribeConfigurationAlpha1"] {
        let mut changes = stream(&node, method, &["a", "b"]).await;
        let first = next(&mut changes).await;
        assert!(!first.id.is_empty() && first.items.is_empty(), "{first:?}");
        store.write("other", "nobody asked");
        store.write("a", "new");
        let change = next(&mut changes).await;
        assert_eq!((&change.id, change.items.len()), (&first.id, 1));
        assert_eq!(change.items["a"].value, "new");
        store.remove("a");
        let change = next(&mut changes).await;
        assert_eq!(change.items["a"], Default::default(), "it was removed");

        let answer = unsubscribe(&node, &first.id).await;
        assert_eq!((answer.ok, answer.message.as_str()), (true, ""));
        ended(changes).await;
        let answer = unsubscribe(&node, &first.id).await;
        let expected = format!(
            "failed to unsubscribe to configuration request {}: subscription does not exist",
            first.id
        );
        assert_eq!((answer.ok, answer.message), (false, expected));
    }
    // A client that disconnects ends it too.
    let mut changes = stream(&node, "SubscribeConfiguration", &[]).await;
    next(&mut changes).await;
    drop(changes);
    let labels = ["operation=\"unsubscribe\"", "success=\"true\""];
    node.counts("dapr_component_configuration_count", &labels, 3.0)
        .await;
}

#[tokio::test]
async fn shutdown_ends_streams_cleanly() {
    let (net, store) = (Net::plain(), Store::new());
    let node = store.beside(net.sidecar("me")).await;
    let mut changes = stream(&node, "SubscribeConfiguration", &[]).await;
    next(&mut changes).await;
    node.shutdown.begin();
    ended(changes).await;
    node.ended().await.unwrap();
}

#[tokio::test]
async fn notifies_app_until_unsubscribe() {
    let (net, store) = (Net::plain(), Store::new());
    let (app, mut updates) = listening_app(200).await;
    let node = store.beside(net.sidecar("me").app(app.port)).await;
    let answer = node
        .ask(get("/v1.0/configuration/conf/subscribe?key=a&key=b%2Fc"))
        .await;
    assert_eq!(answer.status, 200);
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    store.write("a", "1");
    let (path, body) = within(updates.recv()).await.unwrap();
    assert_eq!(path, "/configuration/conf/a");
    let item = json!({"value": "1", "version": "7", "metadata": {"by": "test"}});
    assert_eq!(body, json!({"id": id, "items": {"a": item}}));
    store.write("b/c", "2");
    let (path, _) = within(updates.recv()).await.unwrap();
    assert_eq!(path, "/configuration/conf/b/c");

    let end = format!("/v1.0-alpha1/configuration/conf/{id}/unsubscribe");
    let answer = node.ask(get(&end)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()),
        (200, json!({"ok": true}))
    );
    // Only later subscribers get it.
    let next = node.ask(get("/v1.0/configuration/conf/subscribe?key=a")).await;
    let next = next.json()["id"].as_str().unwrap().to_owned();
    for value in ["3", "4"] {
        store.write("a", value);
        let (_, body) = within(updates.recv()).await.unwrap();
        assert_eq!(
            (&body["id"], &body["items"]["a"]["value"]),
            (&json!(next), &json!(value))
        );
    }
    let answer = node.ask(get(&end)).await;
    assert_eq!(answer.status, 500);
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    let expected = format!("failed to unsubscribe to configuration request {id}: ");
    assert!(message.starts_with(&expected), "{message}");
}

#[tokio::test]
async fn subscriptions_move_to_replaced_store() {
    let (net, store, other) = (Net::plain(), Store::new(), Store::new());
    let (app, mut updates) = listening_app(200).await;
    let feature = "  features:\n  - name: HotReload\n    enabled: true\n";
    let plan = net.sidecar("me").app(app.port).spec(feature);
    let node = store.beside(plan).await;
    let answer = node.ask(get("/v1.0/configuration/conf/subscribe?key=a")).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let mut stream = stream(&node, "SubscribeConfiguration", &["a"]).await;
    let streamed = next(&mut stream).await.id;
    store.write("a", "before");
    assert_eq!(
        within(updates.recv()).await.unwrap().1["items"]["a"]["value"],
        "before"
    );
    assert_eq!(next(&mut stream).await.items["a"].value, "before");

    std::fs::write(node.resources().join("0.yaml"), other.resource()).unwrap();
    // The new store has new values, and each subscription gets changes from its move on.
    let mut number = 0;
    let (mut body, mut change) = (None::<Value>, None::<SubscribeConfigurationResponse>);
    while body.is_none() || change.is_none() {
        number += 1;
        if other.file.exists() {
            other.try_write("a", &number.to_string());
        }
        tokio::select! {
            Some((_, update)) = updates.recv() => body = Some(update),
            next = next(&mut stream) => change = Some(next),
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                assert!(number < 600, "nothing is heard: {body:?} {change:?}");
            }
        }
    }
    assert_eq!(body.unwrap()["id"], json!(id), "it keeps its id");
    let change = change.unwrap();
    assert_eq!((&change.id, change.items.len()), (&streamed, 1));

    let end = format!("/v1.0/configuration/conf/{id}/unsubscribe");
    assert_eq!(node.ask(get(&end)).await.json(), json!({"ok": true}));
    let late = ["too late", "later still"];
    for value in late {
        other.write("a", value);
        while next(&mut stream).await.items["a"].value != value {}
    }
    // Updates in flight at the time of the unsubscription may have arrived.
    while let Ok((_, body)) = updates.try_recv() {
        let value = body["items"]["a"]["value"].as_str().unwrap();
        assert!(!late.contains(&value), "it unsubscribed");
    }

    // Without a store the subscription cannot continue.
    std::fs::remove_file(node.resources().join("0.yaml")).unwrap();
    ended(stream).await;
    node.stop().await.unwrap();
}

#[tokio::test]
async fn retries_refused_updates_by_policy() {
    let (net, store) = (Net::plain(), Store::new());
    let (app, mut updates) = listening_app(500).await;
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                  retries:\n      thrice:\n        policy: constant\n        duration: 1ms\n        maxRetries: 2\n  \
                  targets:\n    components:\n      conf:\n        inbound:\n          retry: thrice\n";
    let plan = net.sidecar("me").app(app.port).resource(policy);
    let node = store.beside(plan).await;
    let answer = node.ask(get("/v1.0/configuration/conf/subscribe")).await;
    assert_eq!(answer.status, 200);
    store.write("a", "1");
    for _ in 0..3 {
        assert_eq!(within(updates.recv()).await.unwrap().0, "/configuration/conf/a");
    }
    // Three attempts suffice, and the failed change does not end the subscription.
    store.write("b", "2");
    for _ in 0..3 {
        assert_eq!(within(updates.recv()).await.unwrap().0, "/configuration/conf/b");
    }
    node.stop().await.unwrap();
}

#[tokio::test]
async fn invalid_calls_have_contract_codes() {
    let (net, store) = (Net::plain(), Store::new());
    let bare = net.sidecar("bare").start().await;
    let node = store.beside(net.sidecar("me")).await;
    for end in ["", "/subscribe", "/7/unsubscribe"] {
        let path = format!("/v1.0/configuration/conf{end}");
        let message = bare
            .ask(get(&path))
            .await
            .error(500, "ERR_CONFIGURATION_STORE_NOT_CONFIGURED");
        assert_eq!(message, "configuration stores not configured");
        let path = format!("/v1.0/configuration/other{end}");
        let message = node
            .ask(get(&path))
            .await
            .error(400, "ERR_CONFIGURATION_STORE_NOT_FOUND");
        assert_eq!(message, "configuration store other not found");
    }
    let message = node
        .ask(get("/v1.0/configuration/conf/subscribe"))
        .await
        .error(500, "ERR_APP_CHANNEL_NIL");
    assert_eq!(
        message,
        "app channel is not initialized. cannot subscribe to configuration updates"
    );
    let request = GetConfigurationRequest {
        store_name: "other".into(),
        ..GetConfigurationRequest::default()
    };
    let outcome = call(&node, "GetConfiguration", &request).await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
    assert_eq!(outcome.error_info().reason, "ERR_CONFIGURATION_STORE_NOT_FOUND");
    let outcome = call(&bare, "SubscribeConfiguration", &subscribe_request(&[])).await;
    assert_eq!(outcome.status.code(), Code::FailedPrecondition);
    assert_eq!(
        outcome.error_info().reason,
        "ERR_CONFIGURATION_STORE_NOT_CONFIGURED"
    );

    // A failing store.
    let database = rusqlite::Connection::open(&store.file).unwrap();
    database.busy_timeout(TIMEOUT).unwrap();
    database.execute_batch("DROP TABLE configuration").unwrap();
    let message = node
        .ask(get("/v1.0/configuration/conf?key=a&key=b"))
        .await
        .error(500, "ERR_CONFIGURATION_GET");
    assert!(
        message.starts_with("failed to get [a b] from Configuration store conf: "),
        "{message}"
    );
    let outcome = call(&node, "SubscribeConfiguration", &subscribe_request(&["b", "a"])).await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
    assert_eq!(outcome.error_info().reason, "ERR_CONFIGURATION_SUBSCRIBE");
    let text = outcome.status.message();
    assert!(
        text.starts_with("failed to subscribe [a b] from Configuration store conf: "),
        "{text}"
    );
    let labels = ["operation=\"subscribe\"", "success=\"false\""];
    node.counts("dapr_component_configuration_count", &labels, 1.0)
        .await;
}
