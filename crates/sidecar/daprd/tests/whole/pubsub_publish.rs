//! Publishing over both protocols: refused requests, and the messages that subscribers receive.

mod traces;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use outrigger_wire::runtime::v1::{BulkPublishRequest, BulkPublishRequestEntry, PublishEventRequest};
use serde_json::{Value, json};
use tonic::Code;

use crate::common::{App, Net, Node, app, eventually, grpc, post, request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const DAPR: &str = "/dapr.proto.runtime.v1.Dapr";
const MEMORY: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: \
                      pubsub.in-memory\n  version: v1\n";

fn sqlite(file: &Path) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: pubsub.sqlite\n  \
         version: v1\n  metadata:\n  - name: connectionString\n    value: '{}'\n",
        file.display()
    )
}

/// A subscription of `a` to the route `/a`; `metadata` is a flow mapping.
fn subscription(metadata: &str) -> String {
    format!(
        "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-a\nspec:\n  pubsubname: broker\n  topic: \
         a\n  routes: {{default: /a}}\n  metadata: {metadata}\n"
    )
}

type Got = Arc<Mutex<Vec<Value>>>;

/// An app that records its events.
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

async fn subscriber(net: &Net, app: &App) -> Node {
    let plan = net.sidecar("me").app(app.port).resource(MEMORY);
    plan.resource(&subscription("{}")).start().await
}

/// The event after `count` others.
async fn event(got: &Got, count: usize) -> Value {
    eventually(async || got.lock().unwrap().len() > count).await;
    got.lock().unwrap()[count].clone()
}

async fn publish(node: &Node, query: &str, headers: &[&str], body: &str) {
    let path = format!("/v1.0/publish/broker/a{query}");
    let answer = node.ask(request("POST", &path, headers, body.to_owned())).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

#[tokio::test]
async fn refused_publishes_have_contract_codes() {
    let net = Net::plain();
    let scoped = format!("{MEMORY}  metadata:\n  - name: publishingScopes\n    value: me=a\n");
    let node = net.sidecar("me").resource(&scoped).start().await;
    let event = "content-type: application/cloudevents+json";
    for (path, header, body, status, code, reason, message) in [
        (
            "none/a",
            "x: y",
            "x",
            404,
            "ERR_PUBSUB_NOT_FOUND",
            "NOT_FOUND",
            "pubsub none is not found",
        ),
        (
            "bulk/broker/",
            "x: y",
            "[]",
            404,
            "ERR_PUBSUB_NOT_FOUND",
            "NOT_FOUND",
            "pubsub bulk is not found",
        ),
        (
            "broker/b",
            "x: y",
            "x",
            403,
            "ERR_PUBSUB_FORBIDDEN",
            "FORBIDDEN",
            "topic b is not allowed for app id me",
        ),
        (
            "broker/a?metadata.rawPayload=perhaps",
            "x: y",
            "x",
            400,
            "ERR_PUBSUB_REQUEST_METADATA",
            "METADATA_DESERIALIZATION",
            "failed deserializing metadata. Error: rawPayload value must be a valid boolean: actual is 'perhaps'",
        ),
        (
            "broker/a",
            event,
            "[]",
            500,
            "ERR_PUBSUB_CLOUD_EVENTS_SER",
            "CLOUD_EVENT_CREATION",
            "cannot create cloudevent",
        ),
    ] {
        let sent = request(
            "POST",
            &format!("/v1.0/publish/{path}"),
            &[header],
            body.to_owned(),
        );
        let answer = node.ask(sent).await;
        assert_eq!(answer.error(status, code), message, "{path}");
        let details = answer.json()["details"].clone();
        let info = details
            .as_array()
            .unwrap()
            .iter()
            .find(|detail| detail["reason"].is_string());
        let info = info.unwrap();
        assert_eq!(info["reason"], format!("DAPR_PUBSUB_{reason}"), "{path}");
        if reason == "NOT_FOUND" {
            assert_eq!(info["metadata"], serde_json::json!({}), "that of the request");
        }
    }
    for (pubsub, topic, code, message) in [
        (
            "broker",
            "b",
            Code::PermissionDenied,
            "topic b is not allowed for app id me",
        ),
        (
            "broker",
            "",
            Code::InvalidArgument,
            "topic is empty in pubsub broker",
        ),
        ("", "a", Code::InvalidArgument, "pubsub name is empty"),
        ("none", "a", Code::InvalidArgument, "pubsub none is not found"),
    ] {
        let refused = PublishEventRequest {
            pubsub_name: pubsub.to_owned(),
            topic: topic.to_owned(),
            ..PublishEventRequest::default()
        };
        let outcome = grpc::unary(node.ports.grpc, &format!("{DAPR}/PublishEvent"), &[], &refused).await;
        let status = (outcome.status.code(), outcome.status.message());
        assert_eq!(status, (code, message), "{pubsub}/{topic}");
    }
}

#[tokio::test]
async fn refuses_malformed_bulks() {
    let net = Net::plain();
    let node = net.sidecar("me").resource(MEMORY).start().await;
    for (body, reason) in [
        ("{}", "UNMARSHAL_EVENTS"),
        ("[", "UNMARSHAL_EVENTS"),
        (
            r#"[{"entryId":"1","event":1,"contentType":"text/plain"}]"#,
            "MARSHAL_ENVELOPE",
        ),
        (
            r#"[{"entryId":"1","event":"%","contentType":"application/octet-stream"}]"#,
            "MARSHAL_ENVELOPE",
        ),
        (
            r#"[{"entryId":"1","event":"x","contentType":""}]"#,
            "MARSHAL_ENVELOPE",
        ),
        (r#"[{"event":"x","contentType":"text/plain"}]"#, "MARSHAL_EVENTS"),
        (
            r#"[{"entryId":"1","event":"x","contentType":"text/plain"},{"entryId":"1","event":"y","contentType":"text/plain"}]"#,
            "MARSHAL_EVENTS",
        ),
    ] {
        let answer = node.ask(post("/v1.0/publish/bulk/broker/a", body)).await;
        answer.error(400, "ERR_PUBSUB_EVENTS_SER");
        let details = answer.json()["details"].clone();
        let info = details
            .as_array()
            .unwrap()
            .iter()
            .find(|detail| detail["reason"].is_string());
        assert_eq!(info.unwrap()["reason"], format!("DAPR_PUBSUB_{reason}"), "{body}");
    }
}

#[tokio::test]
async fn limits_shared_bulk_metadata() {
    let net = Net::plain();
    let node = net.sidecar("me").resource(MEMORY).start().await;
    let entry = |id: usize| json!({"entryId": id.to_string(), "event": "", "contentType": "text/plain", "metadata": {}});
    let path = format!("/v1.0/publish/bulk/broker/a?metadata.a={}", "x".repeat(3000));
    let entries = (0..25_000).map(entry).collect::<Value>().to_string();
    let message = node
        .ask(post(&path, entries))
        .await
        .error(400, "ERR_PUBSUB_REQUEST_METADATA");
    let words = "the metadata of the request have 3001 bytes, which for 25000 items is more";
    assert!(message.starts_with(words), "{message}");
    let entry = |id: usize| BulkPublishRequestEntry {
        entry_id: id.to_string(),
        metadata: [(String::new(), String::new())].into(),
        ..BulkPublishRequestEntry::default()
    };
    let bulk = BulkPublishRequest {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        entries: (0..1000).map(entry).collect(),
        metadata: [("a".to_owned(), "x".repeat(100_000))].into(),
    };
    let method = format!("{DAPR}/BulkPublishEvent");
    let outcome = grpc::unary(node.ports.grpc, &method, &[], &bulk).await;
    assert_eq!(outcome.status.code(), Code::ResourceExhausted);
    assert!(
        outcome.status.message().contains("for 1000 items is more"),
        "{:?}",
        outcome.status
    );
}

#[tokio::test]
async fn wraps_payload_in_customizable_envelope() {
    let net = Net::plain();
    let (app, got) = keeping().await;
    let node = subscriber(&net, &app).await;
    publish(&node, "", &[], "plain").await;
    let plain = event(&got, 0).await;
    assert_eq!(plain["data"], "plain");
    assert_eq!(
        (
            &plain["source"],
            &plain["type"],
            &plain["datacontenttype"],
            &plain["specversion"]
        ),
        (
            &json!("me"),
            &json!("com.dapr.event.sent"),
            &json!("text/plain"),
            &json!("1.0")
        )
    );
    assert_eq!(
        (&plain["topic"], &plain["pubsubname"]),
        (&json!("a"), &json!("broker"))
    );
    let own = "?metadata.cloudevent.id=mine&metadata.cloudevent.source=there&metadata.CloudEvent.type=kind&metadata.\
               cloudevent.subject=it";
    publish(&node, own, &["content-type: application/json"], r#"{"n":1}"#).await;
    let own = event(&got, 1).await;
    assert_eq!(
        (
            &own["id"],
            &own["source"],
            &own["type"],
            &own["subject"],
            &own["data"]
        ),
        (
            &json!("mine"),
            &json!("there"),
            &json!("kind"),
            &json!("it"),
            &json!({"n": 1})
        )
    );
    let complete = r#"{"id":"7","type":"whole","source":"s","specversion":"1.0","topic":"elsewhere","data":5,"more":[1]}"#;
    publish(
        &node,
        "",
        &["content-type: application/cloudevents+json"],
        complete,
    )
    .await;
    let whole = event(&got, 2).await;
    assert_eq!(
        (
            &whole["id"],
            &whole["type"],
            &whole["data"],
            &whole["more"],
            &whole["topic"]
        ),
        (&json!("7"), &json!("whole"), &json!(5), &json!([1]), &json!("a"))
    );
    publish(&node, "", &["content-type: application/octet-stream"], "bytes").await;
    assert_eq!(event(&got, 3).await["data_base64"], "Ynl0ZXM=");
    let published = PublishEventRequest {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        data: r#"{"n":2}"#.into(),
        data_content_type: "application/json".to_owned(),
        metadata: [("cloudevent.type".to_owned(), "grpc".to_owned())].into(),
    };
    let method = format!("{DAPR}/PublishEvent");
    grpc::unary(node.ports.grpc, &method, &[], &published)
        .await
        .message::<()>();
    let over_grpc = event(&got, 4).await;
    assert_eq!(
        (&over_grpc["data"], &over_grpc["type"]),
        (&json!({"n": 2}), &json!("grpc"))
    );
    let labels = ["component=\"broker\"", "topic=\"a\"", "success=\"true\""];
    node.counts("dapr_component_pubsub_egress_count", &labels, 5.0)
        .await;
}

#[tokio::test]
async fn passes_raw_payload_unchanged() {
    let net = Net::plain();
    let (app, got) = keeping().await;
    let plan = net.sidecar("me").app(app.port).resource(MEMORY);
    let node = plan.resource(&subscription("{rawPayload: 'true'}")).start().await;
    publish(&node, "?metadata.rawPayload=true", &[PARENT], "no envelope").await;
    let raw = event(&got, 0).await;
    assert_eq!(raw["data_base64"], "bm8gZW52ZWxvcGU=");
    assert_eq!(raw["datacontenttype"], "application/octet-stream");
    assert!(raw["traceid"].as_str().unwrap().contains(TRACE), "{raw}");
    assert!(
        app.last().header("traceparent").unwrap().contains(TRACE),
        "the trace continues"
    );
}

#[tokio::test]
async fn bulk_lists_failures_and_publishes_rest() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let (app, got) = keeping().await;
    let plan = net.sidecar("me").app(app.port);
    let node = plan
        .resource(&sqlite(&folder.path().join("broker.db")))
        .resource(&subscription("{}"))
        .start()
        .await;
    let entry = |id: &str, ttl: &str| json!({"entryId": id, "event": id, "contentType": "text/plain", "metadata": {"ttlInSeconds": ttl}});
    let entries = json!([entry("good", "60"), entry("bad", "soon"), entry("better", "60")]);
    let answer = node
        .ask(post("/v1.0/publish/bulk/broker/a", entries.to_string()))
        .await;
    assert_eq!(answer.status, 500, "{}", answer.text());
    let parsed = answer.json();
    assert_eq!(parsed["errorCode"], "ERR_PUBSUB_PUBLISH_MESSAGE");
    let failed = parsed["failedEntries"].as_array().unwrap();
    assert_eq!(
        (failed.len(), &failed[0]["entryId"]),
        (1, &json!("bad")),
        "{parsed}"
    );
    assert!(failed[0]["error"].as_str().unwrap().contains("soon"), "{parsed}");
    assert_eq!(answer.header("metadata.responsedata"), Some(answer.text()));
    let entry = |id: &str, ttl: &str| BulkPublishRequestEntry {
        entry_id: id.to_owned(),
        event: id.to_owned().into(),
        content_type: "text/plain".to_owned(),
        metadata: [("ttlInSeconds".to_owned(), ttl.to_owned())].into(),
    };
    let bulk = BulkPublishRequest {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        entries: vec![entry("worse", "-1"), entry("best", "60")],
        ..BulkPublishRequest::default()
    };
    let method = format!("{DAPR}/BulkPublishEvent");
    let outcome = grpc::unary(node.ports.grpc, &method, &[], &bulk).await;
    assert_eq!(outcome.status.code(), Code::Internal);
    assert!(outcome.status.message().contains("worse"), "{:?}", outcome.status);
    let came = || {
        let got = got.lock().unwrap();
        let mut all: Vec<_> = got
            .iter()
            .map(|event| event["data"].as_str().unwrap().to_owned())
            .collect();
        all.sort_unstable();
        all
    };
    eventually(async || came() == ["best", "better", "good"]).await;
}

/// Expired messages are not delivered, whether the broker supports TTLs or the sidecar checks them.
#[tokio::test]
async fn expired_messages_are_not_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let broker = sqlite(&file);
    let net = Net::plain();
    let (app, got) = keeping().await;
    let plan = || {
        let plan = net.sidecar("me").app(app.port);
        plan.resource(&broker).resource(&subscription("{}"))
    };
    // The consumer group exists from the first subscription on.
    plan().start().await.stop().await.unwrap();
    let writer = net.sidecar("writer").resource(&broker).start().await;
    publish(&writer, "?metadata.ttlInSeconds=1", &[], "late").await;
    publish(&writer, "?metadata.ttlInSeconds=60", &[], "in time").await;
    let messages = rusqlite::Connection::open(&file).unwrap();
    messages.busy_timeout(Duration::from_secs(10)).unwrap();
    let in_time = "SELECT count(*) FROM pubsub_deliveries WHERE expires_ms > unixepoch('subsec') * 1000";
    eventually(async || {
        messages
            .query_row(in_time, [], |row| row.get::<_, i64>(0))
            .unwrap()
            == 1
    })
    .await;
    let _reader = plan().start().await;
    assert_eq!(event(&got, 0).await["data"], "in time");
    let expired = r#"{"id":"1","type":"t","source":"s","specversion":"1.0","data":1,"expiration":"2001-01-01T00:00:00Z"}"#;
    let headers = ["content-type: application/cloudevents+json"];
    publish(&writer, "", &headers, expired).await;
    publish(&writer, "", &[], "last").await;
    assert_eq!(event(&got, 1).await["data"], "last");
}

/// Whatever the broker's limit: a message above the sidecar's limit is refused with that limit in the error,
/// and no other message is lost.
#[tokio::test]
async fn refuses_only_oversized_message() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let (app, got) = keeping().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag("--max-body-size=4Ki")
        .resource(&sqlite(&folder.path().join("broker.db")))
        .resource(&subscription("{}"))
        .start()
        .await;
    publish(&node, "", &[], "before").await;
    let large = "x".repeat(5000);
    let entry = json!([{"entryId": "1", "event": large, "contentType": "text/plain"}]).to_string();
    for (path, body) in [
        ("/v1.0/publish/broker/a", large.clone()),
        ("/v1.0/publish/bulk/broker/a", entry),
    ] {
        let answer = node.ask(post(path, body)).await;
        let message = answer.error(500, "ERR_PUBSUB_PUBLISH_MESSAGE");
        assert!(message.contains("more than 4096 bytes"), "{path}: {message}");
    }
    let event = PublishEventRequest {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        data: large.into(),
        ..PublishEventRequest::default()
    };
    let outcome = grpc::unary(node.ports.grpc, &format!("{DAPR}/PublishEvent"), &[], &event).await;
    assert_eq!(
        outcome.status.code(),
        Code::ResourceExhausted,
        "{:?}",
        outcome.status
    );
    assert!(outcome.status.message().contains("4096"), "{:?}", outcome.status);
    publish(&node, "", &[], "after").await;
    event_texts(&got, &["before", "after"]).await;
}

/// Waits until exactly these payloads have arrived.
async fn event_texts(got: &Got, wanted: &[&str]) {
    let came = || {
        let got = got.lock().unwrap();
        got.iter().map(|event| event["data"].clone()).collect::<Vec<_>>()
    };
    eventually(async || came().len() >= wanted.len()).await;
    let mut came = came();
    came.sort_by_key(|data| wanted.iter().position(|one| data == one));
    assert_eq!(came, wanted);
}
