//! Subscriptions: delivery of messages to the app, and their acknowledgement.

mod faults;
mod streams;
mod unusable_responses;

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1::subscribe_topic_events_request_alpha1::SubscribeTopicEventsRequestType as Said;
use outrigger_wire::runtime::v1::subscribe_topic_events_response_alpha1::SubscribeTopicEventsResponseType as Received;
use outrigger_wire::runtime::v1::topic_event_response::TopicEventResponseStatus as Status;
use outrigger_wire::runtime::v1::{
    SubscribeTopicEventsRequestAlpha1, SubscribeTopicEventsRequestInitialAlpha1,
    SubscribeTopicEventsRequestProcessedAlpha1, SubscribeTopicEventsResponseAlpha1, TopicEventRequest,
    TopicEventResponse,
};
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::common::worker::{self, ACTOR_STORE};
use crate::common::{App, Net, Node, Placement, Plan, app, eventually, fed, get, grpc, post, request};

const STREAM: &str = "/dapr.proto.runtime.v1.Dapr/SubscribeTopicEventsAlpha1";
const MEMORY: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: \
                      pubsub.in-memory\n  version: v1\n";

/// Three attempts per message.
const RETRY: &str = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: retry\nspec:\n  policies:\n    \
                     retries:\n      few: {policy: constant, duration: 10ms, maxRetries: 2}\n  targets:\n    \
                     components:\n      broker: {inbound: {retry: few}}\n";

/// A broker that outlives its sidecar, with a long lease, so that none expires on a slow machine.
fn sqlite(file: &std::path::Path) -> String {
    sqlite_leasing(file, "5m")
}

/// Like `sqlite`; messages of a lost sidecar are redelivered after `lease`.
fn sqlite_leasing(file: &std::path::Path, lease: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: pubsub.sqlite\n  \
         version: v1\n  metadata:\n  - name: connectionString\n    value: '{}'\n  - name: redeliverInterval\n    value: \
         200ms\n  - name: visibilityTimeout\n    value: {lease}\n",
        file.display()
    )
}

/// A subscription to `topic`; `rest` continues its spec.
fn subscription(topic: &str, rest: &str) -> String {
    format!(
        "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-{topic}\nspec:\n  pubsubname: broker\n  \
         topic: {topic}\n{rest}"
    )
}

fn to(topic: &str, path: &str) -> String {
    subscription(topic, &format!("  routes: {{default: {path}}}\n"))
}

/// The requests of an app: path, and body as JSON.
type Got = Arc<Mutex<Vec<(String, Value)>>>;

/// The payloads received at `path` in order.
fn payloads(got: &Got, path: &str) -> Vec<Value> {
    let got = got.lock().unwrap();
    let at = got.iter().filter(|(target, _)| target == path);
    at.map(|(_, event)| event["data"].clone()).collect()
}

/// An app that records its requests and answers with `answer`.
async fn keeping(answer: impl Fn(&str, &Value) -> Response<Body> + Send + Sync + 'static) -> (App, Got) {
    let got = Got::default();
    let kept = Arc::clone(&got);
    let answer = Arc::new(answer);
    let app = App::start(move |request: Request<Incoming>| {
        let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
        async move {
            let is_get = request.method() == Method::GET;
            let target = request.uri().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let event = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let response = answer(&target, &event);
            if !is_get {
                kept.lock().unwrap().push((target, event));
            }
            response
        }
    })
    .await;
    (app, got)
}

async fn publish(node: &Node, topic: &str, data: &Value) {
    let path = format!("/v1.0/publish/broker/{topic}");
    let headers = ["content-type: application/json"];
    let answer = node.ask(request("POST", &path, &headers, data.to_string())).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

fn plan<'n>(net: &'n Net, app: &App) -> Plan<'n> {
    net.sidecar("me").app(app.port)
}

#[tokio::test]
async fn routes_events_and_dead_letters() {
    let (app, got) = keeping(|target, event| match target {
        "/dapr/subscribe" => app::text(
            200,
            r#"[{"pubsubname":"broker","topic":"own","route":"/own"},{"pubsubname":"broker","topic":"dead","route":"/dead"}]"#,
        ),
        "/large" if event["data"]["total"] == 1000 => app::text(200, r#"{"status":"DROP"}"#),
        "/small" if event["data"]["total"] == 7 => app::text(500, "no"),
        _ => app::text(200, ""),
    })
    .await;
    let rules = "  deadLetterTopic: dead\n  routes:\n    rules:\n    - match: event.data.total > 100\n      path: \
                 /large\n    - match: event.data.total > 0\n      path: /small\n";
    let net = Net::plain();
    let node = plan(&net, &app)
        .resource(MEMORY)
        .resource(RETRY)
        .resource(&subscription("orders", rules))
        .start()
        .await;
    for total in [500, 7, 5, 1000, 0] {
        publish(&node, "orders", &json!({ "total": total })).await;
    }
    publish(&node, "own", &json!("mine")).await;
    let total = |path: &str| -> Vec<_> {
        let all = payloads(&got, path).into_iter();
        all.filter_map(|data| data["total"].as_i64()).collect()
    };
    eventually(async || total("/dead").len() == 3).await;
    let mut dead = total("/dead");
    dead.sort_unstable();
    assert_eq!(dead, [0, 7, 1000], "no route, no success, not wanted");
    assert_eq!(total("/large"), [500, 1000]);
    let mut small = total("/small");
    small.sort_unstable();
    assert_eq!(small, [5, 7, 7, 7], "three attempts");
    eventually(async || payloads(&got, "/own") == [json!("mine")]).await;
    let orders = ["component=\"broker\"", "topic=\"orders\""];
    let counts = async |name: &str, label: &str, value| {
        let name = format!("dapr_component_pubsub_{name}_count");
        node.counts(&name, &[&orders[..], &[label]].concat(), value).await;
    };
    counts("ingress", "process_status=\"success\"", 2.0).await;
    counts("ingress", "process_status=\"retry\"", 3.0).await;
    counts("dead_letter", "success=\"true\"", 3.0).await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let all = metadata["subscriptions"].as_array().unwrap();
    assert_eq!(all[0]["type"], "DECLARATIVE");
    assert_eq!(
        all[0]["rules"][1],
        json!({"match": "event.data.total > 0", "path": "/small"})
    );
    assert_eq!(
        (&all[1]["type"], &all[1]["topic"]),
        (&json!("PROGRAMMATIC"), &json!("own"))
    );
}

/// As in Dapr, so that both use the same topics.
#[tokio::test]
async fn empty_namespace_uses_default_topics() {
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let folder = tempfile::tempdir().unwrap();
    let broker = sqlite(&folder.path().join("broker.db"));
    let scoped = broker.replace("name: broker\n", "name: scoped\n");
    let node = plan(&net, &app)
        .resource(&broker)
        .resource(&format!(
            "{scoped}  - name: consumerID\n    value: '{{namespace}}'\n"
        ))
        .resource(&to("defaultorders", "/orders"))
        .start()
        .await;
    let answer = node.ask(post("/v1.0/publish/scoped/orders", "mine")).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    eventually(async || payloads(&got, "/orders").len() == 1).await;
}

/// Invariant: a message is acknowledged only when the app has handled it. If the sidecar is killed before,
/// another one gets the message.
#[tokio::test]
async fn redelivers_message_after_sidecar_kill() {
    let folder = tempfile::tempdir().unwrap();
    // Messages leased to the killed sidecar are soon redelivered.
    let broker = sqlite_leasing(&folder.path().join("broker.db"), "1s");
    let open = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&open);
    let stuck = App::start(move |request| {
        let waiting = Arc::clone(&waiting);
        async move {
            if request.method() == Method::POST {
                waiting.acquire().await.unwrap().forget();
            }
            app::text(404, "")
        }
    })
    .await;
    let net = Net::plain();
    let first = plan(&net, &stuck)
        .resource(&broker)
        .resource(&to("orders", "/orders"))
        .start()
        .await;
    for number in 0..5 {
        publish(&first, "orders", &json!(number)).await;
    }
    eventually(async || {
        stuck
            .seen()
            .iter()
            .filter(|seen| seen.target == "/orders")
            .count()
            > 0
    })
    .await;
    drop(first);
    drop(stuck);
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let second = plan(&net, &app)
        .resource(&broker)
        .resource(&to("orders", "/orders"))
        .start()
        .await;
    eventually(async || {
        let mut all: Vec<_> = payloads(&got, "/orders")
            .iter()
            .filter_map(Value::as_i64)
            .collect();
        all.sort_unstable();
        all.dedup();
        all == [0, 1, 2, 3, 4]
    })
    .await;
    second.stop().await.unwrap();
}

/// Invariant: an app that exits while it handles a message gets it again; other messages are not delayed.
#[tokio::test]
async fn redelivers_failed_message() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Arc::new(Mutex::new(2));
    let left = Arc::clone(&refused);
    let (app, got) = keeping(move |target, event| {
        let mut left = left.lock().unwrap();
        if target == "/orders" && event["data"] == "poison" && *left > 0 {
            *left -= 1;
            return app::text(503, "");
        }
        app::text(200, "")
    })
    .await;
    let net = Net::plain();
    let node = plan(&net, &app)
        .resource(&sqlite(&folder.path().join("broker.db")))
        .resource(&to("orders", "/orders"))
        .start()
        .await;
    for data in ["first", "poison", "last"] {
        publish(&node, "orders", &json!(data)).await;
    }
    eventually(async || {
        let all = payloads(&got, "/orders");
        let count = |wanted: &str| all.iter().filter(|data| *data == wanted).count();
        (count("first"), count("last"), count("poison")) == (1, 1, 3)
    })
    .await;
}

/// Invariant: a shutdown waits for messages in progress and takes no new ones.
#[tokio::test]
async fn shutdown_waits_for_messages_in_progress() {
    let open = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&open);
    let app = App::start(move |request| {
        let waiting = Arc::clone(&waiting);
        async move {
            if request.method() == Method::POST {
                waiting.acquire().await.unwrap().forget();
            }
            app::text(200, "")
        }
    })
    .await;
    let posts = || {
        app.seen()
            .iter()
            .filter(|seen| seen.method == Method::POST)
            .count()
    };
    let (net, placement) = (Net::plain(), Placement::start().await);
    let node = plan(&net, &app)
        .flag(&placement.flag())
        .resource(ACTOR_STORE)
        .resource(MEMORY)
        .resource(&to("orders", "/orders"))
        .start()
        .await;
    let mut work = worker::stream(&node).await;
    for number in 0..3 {
        publish(&node, "orders", &json!(number)).await;
    }
    eventually(async || posts() == 1).await;
    node.shutdown.begin();
    assert_eq!(grpc::next(&mut work).await, None, "no more events are read");
    assert!(!node.is_over(), "the app has not answered");
    open.add_permits(3);
    node.ended().await.unwrap();
    assert_eq!(posts(), 1, "the others were never begun");
}

#[tokio::test]
async fn bulk_entries_have_separate_statuses() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Arc::new(Mutex::new(true));
    let (app, got) = keeping(move |target, event| {
        if target != "/bulk" {
            return app::text(200, "");
        }
        let mut refused = refused.lock().unwrap();
        let entries = event["entries"].as_array().unwrap();
        let statuses: Vec<_> = entries
            .iter()
            .map(|entry| {
                let retry = entry["event"]["data"] == 1 && *refused;
                let drop = entry["event"]["data"] == 2;
                let status = if retry {
                    *refused = false;
                    "RETRY"
                } else if drop {
                    "DROP"
                } else {
                    "SUCCESS"
                };
                json!({"entryId": entry["entryId"], "status": status})
            })
            .collect();
        app::text(200, &json!({ "statuses": statuses }).to_string())
    })
    .await;
    let net = Net::plain();
    let bulk = "  deadLetterTopic: dead\n  routes: {default: /bulk}\n  bulkSubscribe: {enabled: true, maxMessagesCount: \
                3, maxAwaitDurationMs: 50}\n";
    let node = plan(&net, &app)
        .resource(&sqlite(&folder.path().join("broker.db")))
        .resource(RETRY)
        .resource(&subscription("orders", bulk))
        .resource(&to("dead", "/dead"))
        .start()
        .await;
    for number in 0..3 {
        publish(&node, "orders", &json!(number)).await;
    }
    let seen = |number: i64| {
        let got = got.lock().unwrap();
        let entries = got
            .iter()
            .filter_map(|(_, bulk)| bulk["entries"].as_array())
            .flatten();
        entries.filter(|entry| entry["event"]["data"] == number).count()
    };
    eventually(async || payloads(&got, "/dead") == [json!(2)] && seen(1) == 2).await;
    assert_eq!((seen(0), seen(2)), (1, 1), "only what failed is tried again");
}

#[tokio::test]
async fn bulk_entries_have_separate_metadata() {
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let bulk = "  routes: {default: /bulk}\n  bulkSubscribe: {enabled: true, maxAwaitDurationMs: 50}\n";
    let node = plan(&net, &app)
        .resource(MEMORY)
        .resource(&subscription("orders", bulk))
        .start()
        .await;
    for query in ["", "?metadata.colour=red"] {
        let answer = node.ask(post(&format!("/v1.0/publish/broker/orders{query}"), "x"));
        assert_eq!(answer.await.status, 204);
    }
    let metadata = || -> Vec<_> {
        let got = got.lock().unwrap();
        let entries = got.iter().filter_map(|(_, bulk)| bulk["entries"].as_array());
        entries.flatten().map(|entry| entry["metadata"].clone()).collect()
    };
    eventually(async || metadata().len() == 2).await;
    assert_eq!(metadata(), [Value::Null, json!({"colour": "red"})]);
}

#[tokio::test]
async fn reloads_subscriptions() {
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let node = plan(&net, &app)
        .spec("  features:\n  - name: HotReload\n    enabled: true\n")
        .resource(MEMORY)
        .resource(&to("a", "/first"))
        .start()
        .await;
    publish(&node, "a", &json!(1)).await;
    eventually(async || payloads(&got, "/first") == [json!(1)]).await;
    std::fs::write(node.resources().join("1.yaml"), to("a", "/second")).unwrap();
    eventually(async || {
        publish(&node, "a", &json!(2)).await;
        !payloads(&got, "/second").is_empty()
    })
    .await;
    std::fs::remove_file(node.resources().join("1.yaml")).unwrap();
    eventually(async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["subscriptions"].is_null()
    })
    .await;
}

#[tokio::test]
async fn malformed_rule_fails_start() {
    let (app, _got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let rules = "  routes:\n    rules:\n    - match: event.type ==\n      path: /a\n";
    let plan = plan(&net, &app)
        .resource(MEMORY)
        .resource(&subscription("a", rules));
    let error = plan.try_launch().await.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("1.yaml:10: subscription to-a: routing rule 1"),
        "{error}"
    );
}

fn said(said: Said) -> bytes::Bytes {
    let message = SubscribeTopicEventsRequestAlpha1 {
        subscribe_topic_events_request_type: Some(said),
    };
    grpc::framed(&message.encode_to_vec())
}

fn processed(event: &TopicEventRequest, status: Status) -> bytes::Bytes {
    said(Said::EventProcessed(SubscribeTopicEventsRequestProcessedAlpha1 {
        id: event.id.clone(),
        status: Some(TopicEventResponse {
            status: status.into(),
        }),
    }))
}

async fn next_event(body: &mut Incoming) -> TopicEventRequest {
    let message = grpc::next(body).await.unwrap();
    match SubscribeTopicEventsResponseAlpha1::decode(message)
        .unwrap()
        .subscribe_topic_events_response_type
    {
        Some(Received::EventMessage(event)) => event,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn streams_events_until_closed() {
    let net = Net::plain();
    let node = net.sidecar("me").resource(MEMORY).resource(RETRY).start().await;
    let (tell, body) = fed();
    let initial = Said::InitialRequest(SubscribeTopicEventsRequestInitialAlpha1 {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        ..SubscribeTopicEventsRequestInitialAlpha1::default()
    });
    tell.send(Ok(said(initial))).await.unwrap();
    let mut stream = grpc::start(node.ports.grpc, STREAM, &[], body).await.into_body();
    let first = grpc::next(&mut stream).await.unwrap();
    let first = SubscribeTopicEventsResponseAlpha1::decode(first).unwrap();
    assert!(matches!(
        first.subscribe_topic_events_response_type,
        Some(Received::InitialResponse(_))
    ));
    publish(&node, "a", &json!({"n": 1})).await;
    let event = next_event(&mut stream).await;
    assert_eq!(
        (event.topic.as_str(), event.path.as_str(), event.data.as_ref()),
        ("a", "/", &br#"{"n":1}"#[..])
    );
    tell.send(Ok(processed(&event, Status::Retry))).await.unwrap();
    let again = next_event(&mut stream).await;
    assert_eq!(again.id, event.id);
    tell.send(Ok(processed(&again, Status::Success))).await.unwrap();
    let subscriptions = async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["subscriptions"].clone()
    };
    assert_eq!(subscriptions().await[0]["type"], "STREAMING");
    drop((tell, stream));
    eventually(async || subscriptions().await.is_null()).await;
    let answer = node.ask(post("/v1.0/publish/broker/a", "{}")).await;
    assert_eq!(answer.status, 204, "no host is left");
}
