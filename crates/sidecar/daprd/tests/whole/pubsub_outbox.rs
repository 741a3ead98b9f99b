//! The transactional outbox: stored values are published, and nothing else is, whatever is killed.

mod kills;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use outrigger_wire::common::v1::StateItem;
use outrigger_wire::runtime::v1::{ExecuteStateTransactionRequest, TransactionalStateOperation};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::client::try_send;
use crate::common::{Answer, App, Net, Node, Plan, app, eventually, get, grpc, post, request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const COUNTED: &str = "dapr_component_outbox_event_count";
const TRANSACTION: &str = "/v1.0/state/store/transaction";

/// The component files, which outlive their sidecars.
struct Files {
    folder: TempDir,
    /// How long a broker waits for a sidecar that received a message.
    lease: &'static str,
}

impl Files {
    /// A long lease, so that none expires on a slow machine.
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            lease: "5m",
        }
    }

    /// A short lease, so that messages of a killed sidecar are soon redelivered.
    fn of_killed() -> Self {
        Self {
            lease: "1s",
            ..Self::new()
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }

    fn component(&self, name: &str, kind: &str, more: &str) -> String {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}.sqlite\n  \
             version: v1\n  metadata:\n  - name: connectionString\n    value: '{}'\n{more}",
            self.path(name).display()
        )
    }

    /// A broker that soon redelivers returned messages.
    fn broker(&self, name: &str) -> String {
        let again = property("visibilityTimeout", self.lease) + &property("redeliverInterval", "200ms");
        self.component(name, "pubsub", &again)
    }

    /// A store that publishes to `orders`.
    fn store(&self, more: &str) -> String {
        let outbox = property("outboxPublishPubsub", "broker") + &property("outboxPublishTopic", "orders");
        self.component(
            "store",
            "state",
            &(outbox + &property("busyTimeout", "30s") + more),
        )
    }

    fn open(&self, name: &str) -> Connection {
        let connection = Connection::open(self.path(name)).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection
    }

    /// Number of unsettled messages of a broker.
    fn unsettled(&self, name: &str) -> i64 {
        let count = "SELECT count(*) FROM pubsub_deliveries";
        self.open(name).query_row(count, [], |row| row.get(0)).unwrap()
    }

    /// The keys in the store with this prefix.
    fn keys(&self, begin: &str) -> Vec<String> {
        let store = self.open("store");
        let mut keys = store
            .prepare("SELECT key FROM state WHERE key LIKE ?1 || '%' ORDER BY key")
            .unwrap();
        let keys = keys.query_map([begin], |row| row.get(0)).unwrap();
        keys.map(Result::unwrap).collect()
    }

    fn markers(&self) -> Vec<String> {
        self.keys("outbox-")
    }

    /// Locks a file against other writers until dropped.
    fn lock(&self, name: &str) -> Lock {
        let connection = self.open(name);
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Lock(connection)
    }
}

struct Lock(Connection);

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

fn property(name: &str, value: &str) -> String {
    format!("  - name: {name}\n    value: '{value}'\n")
}

fn subscription(pubsub: &str, topic: &str) -> String {
    format!(
        "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-{topic}\nspec:\n  pubsubname: {pubsub}\n  \
         topic: {topic}\n  routes: {{default: /{topic}}}\n"
    )
}

/// The events received by an app at `/orders`.
type Got = Arc<Mutex<Vec<Value>>>;

async fn keeping() -> (App, Got) {
    let got = Got::default();
    let kept = Arc::clone(&got);
    let app = App::start(move |request| {
        let kept = Arc::clone(&kept);
        async move {
            if request.method() != Method::POST {
                return app::text(404, "");
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            app::text(200, "")
        }
    })
    .await;
    (app, got)
}

fn payloads(got: &Got) -> Vec<Value> {
    let got = got.lock().unwrap();
    got.iter().map(|event| event["data"].clone()).collect()
}

/// With the store, its broker, and an app that subscribes to the events.
fn plan<'n>(net: &'n Net, app: &App, files: &Files, more: &str) -> Plan<'n> {
    net.sidecar("me")
        .app(app.port)
        .resource(&files.broker("broker"))
        .resource(&files.store(more))
        .resource(&subscription("broker", "orders"))
}

fn upsert(key: &str, value: &Value) -> Value {
    json!({"operation": "upsert", "request": {"key": key, "value": value}})
}

fn body(operations: &[Value]) -> String {
    json!({ "operations": operations }).to_string()
}

async fn transact(node: &Node, operations: &[Value]) -> Answer {
    node.ask(post(TRANSACTION, body(operations))).await
}

#[tokio::test]
async fn publishes_stored_value_once() {
    let (files, net) = (Files::new(), Net::plain());
    let (app, got) = keeping().await;
    let node = plan(&net, &app, &files, "").start().await;
    let operations = [
        json!({"operation": "upsert", "request": {"key": "a", "value": "first", "metadata": {
            "type": "order.created", "id": "mine", "data": "mine"}}}),
        json!({"operation": "upsert", "request": {"key": "b", "value": {"n": 1}, "contentType": "application/json"}}),
        json!({"operation": "upsert", "request": {"key": "b", "value": {"shown": true}, "contentType":
            "application/json", "metadata": {"outbox.projection": "true"}}}),
        json!({"operation": "delete", "request": {"key": "c"}}),
    ];
    let sent = request(
        "POST",
        TRANSACTION,
        &[PARENT, "tracestate: vendor=1"],
        body(&operations),
    );
    assert_eq!(node.ask(sent).await.status, 204);
    eventually(async || got.lock().unwrap().len() == 2).await;
    let mut events = got.lock().unwrap().clone();
    events.sort_by_key(|event| event["data"].is_object());
    let (first, second) = (&events[0], &events[1]);
    assert_eq!(
        (&first["data"], &second["data"]),
        (&json!("first"), &json!({"shown": true}))
    );
    assert_eq!(
        (&first["type"], &second["type"]),
        (&json!("order.created"), &json!("com.dapr.event.sent"))
    );
    assert_eq!(
        (&first["datacontenttype"], &second["datacontenttype"]),
        (&json!("text/plain"), &json!("application/json"))
    );
    for event in [first, second] {
        assert!(event["id"].as_str().unwrap().starts_with("outbox-"), "{event}");
        assert_eq!(
            (&event["topic"], &event["pubsubname"], &event["source"]),
            (&json!("orders"), &json!("broker"), &json!("me"))
        );
        assert_eq!(event["tracestate"], "vendor=1");
        assert!(event["traceid"].as_str().unwrap().contains(TRACE), "{event}");
    }
    let headers = app.last();
    assert!(
        headers.header("traceparent").unwrap().contains(TRACE),
        "the trace continues"
    );
    assert_eq!(node.ask(get("/v1.0/state/store/b")).await.text(), r#"{"n":1}"#);
    eventually(async || files.markers().is_empty() && files.unsettled("broker") == 0).await;
    assert_eq!(got.lock().unwrap().len(), 2);
    node.counts(COUNTED, &["component=\"broker\"", "outcome=\"published\""], 2.0)
        .await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(
        metadata["subscriptions"].as_array().unwrap().len(),
        1,
        "only the app's own"
    );
}

#[tokio::test]
async fn publishes_over_grpc_without_app() {
    let (files, net) = (Files::new(), Net::plain());
    let (app, got) = keeping().await;
    let _reader = net
        .sidecar("reader")
        .app(app.port)
        .resource(&files.broker("broker"))
        .resource(&subscription("broker", "orders"))
        .start()
        .await;
    let writer = net
        .sidecar("writer")
        .resource(&files.broker("broker"))
        .resource(&files.store(""))
        .start()
        .await;
    let item = |value: &'static str, metadata: &[(&str, &str)]| TransactionalStateOperation {
        operation_type: "upsert".to_owned(),
        request: Some(StateItem {
            key: "k".to_owned(),
            value: value.into(),
            metadata: metadata
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            ..StateItem::default()
        }),
    };
    let transaction = ExecuteStateTransactionRequest {
        store_name: "store".to_owned(),
        operations: vec![item("2", &[]), item("3", &[("outbox.projection", "true")])],
        ..ExecuteStateTransactionRequest::default()
    };
    let method = "/dapr.proto.runtime.v1.Dapr/ExecuteStateTransaction";
    let outcome = grpc::unary(writer.ports.grpc, method, &[], &transaction).await;
    outcome.message::<()>();
    eventually(async || payloads(&got) == [json!("3")]).await;
    assert_eq!(writer.ask(get("/v1.0/state/store/k")).await.text(), "2");
    let plain = post("/v1.0/state/store", r#"[{"key":"saved","value":1}]"#);
    assert_eq!(writer.ask(plain).await.status, 204);
    eventually(async || files.unsettled("broker") == 0).await;
    assert_eq!(payloads(&got), [json!("3")], "only transactions are published");
}

#[tokio::test]
async fn failed_transaction_publishes_nothing() {
    let (files, net) = (Files::new(), Net::plain());
    let (app, got) = keeping().await;
    let node = plan(&net, &app, &files, "").start().await;
    assert_eq!(transact(&node, &[upsert("k", &json!(1))]).await.status, 204);
    eventually(async || payloads(&got) == [json!("1")]).await;
    let stale = json!({"operation": "upsert", "request": {"key": "k", "value": 2, "etag": "wrong"}});
    transact(&node, &[stale])
        .await
        .error(500, "ERR_STATE_TRANSACTION");
    // Well before the wait for its marker would time out.
    let settled = eventually(async || files.unsettled("broker") == 0);
    tokio::time::timeout(Duration::from_secs(8), settled)
        .await
        .unwrap();
    assert_eq!(payloads(&got), [json!("1")]);
    for outcome in ["published", "dropped"] {
        let labels = ["component=\"broker\"", &format!("outcome=\"{outcome}\"")];
        node.counts(COUNTED, &labels, 1.0).await;
    }
}

#[tokio::test]
async fn unpublishable_value_is_not_stored() {
    let (files, net) = (Files::new(), Net::plain());
    let refusing = files.broker("broker") + &property("publishingScopes", "me=orders");
    for (broker, cause) in [
        (None, "pubsub broker is not found"),
        (
            Some(refusing),
            "topic defaultmeordersoutbox is not allowed for app id me",
        ),
    ] {
        let plan = net.sidecar("me").resource(&files.store(""));
        let node = match broker {
            Some(broker) => plan.resource(&broker).start().await,
            None => plan.start().await,
        };
        let answer = transact(&node, &[upsert("k", &json!(1))]).await;
        let message = answer.error(500, "ERR_PUBLISH_OUTBOX");
        assert!(
            message.starts_with("error while publishing outbox message: "),
            "{message}"
        );
        assert!(message.contains(cause), "{message}");
        assert!(!message.contains("error when publishing"), "{message}");
        let details = &answer.json()["details"];
        assert_eq!(details.as_array().unwrap().len(), 1, "{details}");
        assert_eq!(details[0]["reason"], "DAPR_PUBSUB_OUTBOX");
        assert_eq!(details[0]["metadata"]["appID"], "me");
        assert_eq!(
            node.ask(get("/v1.0/state/store/k")).await.status,
            204,
            "nothing is stored"
        );
        node.stop().await.unwrap();
    }
}

/// The error text is the cause alone.
#[tokio::test]
async fn names_unresponsive_broker() {
    let (files, net) = (Files::new(), Net::plain());
    let node = net
        .sidecar("me")
        .resource(&files.store(""))
        .resource(&files.broker("broker"))
        .start()
        .await;
    let first = transact(&node, &[upsert("a", &json!(1))]).await;
    assert_eq!(first.status, 204, "{}", first.text());
    let lock = files.lock("broker");
    let answer = transact(&node, &[upsert("b", &json!(1))]).await;
    drop(lock);
    let message = answer.error(500, "ERR_PUBLISH_OUTBOX");
    let cause = message
        .strip_prefix("error while publishing outbox message: ")
        .unwrap();
    assert!(
        !cause.contains("publishing") && cause.contains("holds the database"),
        "{message}"
    );
}

#[tokio::test]
async fn event_waits_for_its_transaction() {
    let (files, net) = (Files::new(), Net::plain());
    let (app, got) = keeping().await;
    let nodes = [
        plan(&net, &app, &files, "").start().await,
        plan(&net, &app, &files, "").start().await,
    ];
    let lock = files.lock("store");
    let (first, second) = ([upsert("a", &json!("a"))], [upsert("b", &json!("b"))]);
    let transactions = async { tokio::join!(transact(&nodes[0], &first), transact(&nodes[1], &second)) };
    let unlocking = async {
        eventually(async || files.unsettled("broker") == 2).await;
        // A message that is not an event is settled once it was examined, after all events before it.
        for node in &nodes {
            let path = "/v1.0/publish/broker/defaultmeordersoutbox?metadata.rawPayload=true";
            let sent = request("POST", path, &["content-type: text/plain"], "no event");
            assert_eq!(node.ask(sent).await.status, 204);
        }
        eventually(async || files.unsettled("broker") == 2).await;
        assert!(got.lock().unwrap().is_empty());
        drop(lock);
    };
    let ((first, second), ()) = tokio::join!(transactions, unlocking);
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (204, 204));
    eventually(async || files.unsettled("broker") == 0 && files.markers().is_empty()).await;
    let mut all = payloads(&got);
    all.sort_by_key(Value::to_string);
    assert_eq!(all, [json!("a"), json!("b")]);
}

#[tokio::test]
async fn ignores_foreign_keys() {
    let (files, net) = (Files::new(), Net::plain());
    let (app, got) = keeping().await;
    let node = plan(&net, &app, &files, "").start().await;
    let save = post("/v1.0/state/store", r#"[{"key":"secret","value":1}]"#);
    assert_eq!(node.ask(save).await.status, 204);
    let forged = r#"{"id":"me||secret","data":"x","datacontenttype":"text/plain"}"#;
    for (kind, event) in [
        ("application/cloudevents+json", forged),
        ("text/plain", "no event"),
    ] {
        let kind = format!("content-type: {kind}");
        let path = "/v1.0/publish/broker/defaultmeordersoutbox?metadata.rawPayload=true";
        let sent = request("POST", path, &[&kind], event.to_owned());
        assert_eq!(node.ask(sent).await.status, 204);
    }
    eventually(async || files.unsettled("broker") == 0).await;
    assert_eq!(node.ask(get("/v1.0/state/store/secret")).await.text(), "1");
    assert!(got.lock().unwrap().is_empty());
}
