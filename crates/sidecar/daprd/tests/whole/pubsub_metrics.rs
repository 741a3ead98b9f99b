//! Counters and latencies of publishing and delivery.

use std::time::{Duration, UNIX_EPOCH};

use http_body_util::BodyExt;
use outrigger_wire::runtime::v1::topic_event_response::TopicEventResponseStatus;
use serde_json::json;

use crate::common::{App, Net, Node, app, eventually, post, request};

const MEMORY: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: \
                      pubsub.in-memory\n  version: v1\n";

fn subscription(topic: &str, rest: &str) -> String {
    format!(
        "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-{topic}\nspec:\n  pubsubname: broker\n  \
         topic: {topic}\n  routes: {{default: /{topic}}}\n{rest}"
    )
}

async fn publish(node: &Node, path: &str, headers: &[&str], body: String) -> u16 {
    node.ask(request("POST", path, headers, body))
        .await
        .status
        .as_u16()
}

/// Waits until there are `count` measurements.
async fn timed(node: &Node, family: &str, labels: &[&str], count: f64) {
    node.counts(&format!("dapr_component_pubsub_{family}_count"), labels, count)
        .await;
    let sum = node
        .metric(&format!("dapr_component_pubsub_{family}_sum"), labels)
        .await;
    assert!(sum.is_some_and(|sum| sum >= 0.0), "{family} {labels:?}: {sum:?}");
}

#[tokio::test]
async fn measures_publishing_by_outcome() {
    let net = Net::plain();
    let scoped = format!("{MEMORY}  metadata:\n  - name: protectedTopics\n    value: closed\n");
    let node = net.sidecar("me").resource(&scoped).start().await;
    let entry = |id| json!({"entryId": id, "event": "x", "contentType": "text/plain"});
    let bulk = json!([entry("1"), entry("2")]).to_string();
    for (topic, single, of_bulk, success) in [("a", 204, 204, "true"), ("closed", 403, 403, "false")] {
        let labels = [
            "component=\"broker\"",
            &format!("topic=\"{topic}\""),
            &format!("success=\"{success}\""),
        ];
        for _ in 0..2 {
            let path = format!("/v1.0/publish/broker/{topic}");
            assert_eq!(publish(&node, &path, &[], "x".to_owned()).await, single);
        }
        let path = format!("/v1.0/publish/bulk/broker/{topic}");
        assert_eq!(publish(&node, &path, &[], bulk.clone()).await, of_bulk);
        timed(&node, "egress_latencies", &labels, 2.0).await;
        timed(&node, "egress_bulk_latencies", &labels, 1.0).await;
        node.counts("dapr_component_pubsub_egress_count", &labels, 2.0)
            .await;
        node.counts("dapr_component_pubsub_egress_bulk_count", &labels, 1.0)
            .await;
    }
}

#[tokio::test]
async fn measures_deliveries_and_lag() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        app::text(
            match request.uri().path() {
                "/dapr/subscribe" => 404,
                "/bad" => 500,
                "/stuck" => std::future::pending().await,
                _ => 200,
            },
            "",
        )
    })
    .await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .resource(MEMORY)
        .resource(&subscription("good", ""))
        .resource(&subscription("bad", ""))
        .resource(&subscription("stuck", ""))
        .start()
        .await;
    let published = "2001-09-09T01:46:40Z";
    let since = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let event =
        json!({"id": "1", "type": "t", "source": "s", "specversion": "1.0", "data": 1, "time": published});
    let headers = ["content-type: application/cloudevents+json"];
    for (topic, status) in [("good", "success"), ("bad", "retry")] {
        let path = format!("/v1.0/publish/broker/{topic}");
        assert_eq!(publish(&node, &path, &headers, event.to_string()).await, 204);
        let labels = [
            "component=\"broker\"",
            &format!("topic=\"{topic}\""),
            &format!("process_status=\"{status}\""),
        ];
        timed(&node, "ingress_latencies", &labels, 1.0).await;
        let lag = async || {
            node.metric("dapr_component_pubsub_ingress_lag", &labels[..2])
                .await
        };
        eventually(async || lag().await == Some(0.0)).await;
    }
    // It grows while the app does not answer.
    let path = "/v1.0/publish/broker/stuck";
    assert_eq!(publish(&node, path, &headers, event.to_string()).await, 204);
    let labels = ["component=\"broker\"", "topic=\"stuck\""];
    let lag = async || node.metric("dapr_component_pubsub_ingress_lag", &labels).await;
    eventually(async || lag().await > Some(0.0)).await;
    let first = lag().await;
    let now = since.elapsed().unwrap().as_secs_f64() * 1000.0;
    assert!(
        first.is_some_and(|lag| (now - 100_000.0..=now).contains(&lag)),
        "{first:?} ms of {now}"
    );
    eventually(async || lag().await > first).await;
}

#[tokio::test]
async fn measures_bulks_by_outcome() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let is_bulk = request.uri().path() == "/bulk";
        let body = request.into_body().collect().await.unwrap().to_bytes();
        if !is_bulk {
            return app::text(404, "");
        }
        let bulk: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let statuses = bulk["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| json!({"entryId": entry["entryId"], "status": entry["event"]["data"]}));
        let statuses: Vec<_> = statuses.collect();
        app::text(200, &json!({ "statuses": statuses }).to_string())
    })
    .await;
    let rest = "  bulkSubscribe: {enabled: true, maxMessagesCount: 2, maxAwaitDurationMs: 100}\n";
    let node = net
        .sidecar("me")
        .app(app.port)
        .resource(MEMORY)
        .resource(&subscription("bulk", rest))
        .start()
        .await;
    for data in [
        TopicEventResponseStatus::Success.as_str_name(),
        TopicEventResponseStatus::Drop.as_str_name(),
    ] {
        let answer = node.ask(post("/v1.0/publish/broker/bulk", data)).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
    eventually(async || app.seen().iter().any(|seen| seen.target == "/bulk")).await;
    for status in ["success", "drop"] {
        // Dapr's label value is this word, not the component.
        let labels = [
            "component=\"pubsubName\"",
            "topic=\"bulk\"",
            &format!("process_status=\"{status}\""),
        ];
        timed(&node, "ingress_bulk_latencies", &labels, 1.0).await;
        for family in ["ingress_bulk_count", "ingress_bulk_event_count"] {
            node.counts(&format!("dapr_component_pubsub_{family}"), &labels, 1.0)
                .await;
        }
    }
}
