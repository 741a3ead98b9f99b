//! Spans of publishing and delivery: one trace from publisher to subscriber, over any protocol.

use outrigger_wire::runtime::v1::subscribe_topic_events_request_alpha1::SubscribeTopicEventsRequestType as Said;
use outrigger_wire::runtime::v1::subscribe_topic_events_response_alpha1::SubscribeTopicEventsResponseType as Received;
use outrigger_wire::runtime::v1::{
    SubscribeTopicEventsRequestAlpha1, SubscribeTopicEventsRequestInitialAlpha1,
    SubscribeTopicEventsRequestProcessedAlpha1, SubscribeTopicEventsResponseAlpha1, TopicEventBulkRequest,
    TopicEventBulkResponse, TopicEventBulkResponseEntry, TopicEventResponse,
};
use serde_json::json;

use super::*;
use crate::common::{Node, Plan, fed};

const MEMORY: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: \
                      pubsub.in-memory\n  version: v1\n";
const BULK: &str = "  bulkSubscribe: {enabled: true, maxMessagesCount: 2, maxAwaitDurationMs: 60000}\n";
/// The app answers events with this payload with a failure.
const BAD: &str = "bad";
const RETRY: i32 = 1;

pub(super) fn sampled(otel: &App) -> String {
    format!(
        "  tracing:\n    samplingRate: \"1\"\n    otel:\n      endpointAddress: 127.0.0.1:{}\n      isSecure: false\n      \
         protocol: grpc",
        otel.port
    )
}

fn sqlite(folder: &tempfile::TempDir) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: pubsub.sqlite\n  version: \
         v1\n  metadata:\n  - name: connectionString\n    value: '{}'\n",
        folder.path().join("broker.db").display()
    )
}

/// A subscription of `a` to the route `/a`.
fn subscribing<'n>(net: &'n Net, app: &App, otel: &App) -> Plan<'n> {
    subscribing_on(MEMORY, net, app, otel, "")
}

/// The same on another broker; `rest` continues the subscription.
fn subscribing_on<'n>(broker: &str, net: &'n Net, app: &App, otel: &App, rest: &str) -> Plan<'n> {
    let subscription = format!(
        "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-a\nspec:\n  pubsubname: broker\n  topic: \
         a\n  routes: {{default: /a}}\n{rest}"
    );
    let plan = net.sidecar("me").app(app.port).spec(&sampled(otel));
    plan.resource(broker).resource(&subscription)
}

/// The trace and the publishing span of a publisher.
fn parent(number: u8) -> (String, String) {
    (
        format!("{number:02x}").repeat(16),
        format!("{number:02x}").repeat(8),
    )
}

/// Publishes within the trace `number`.
async fn publish(node: &Node, number: u8, data: &str) {
    let (trace, span) = parent(number);
    let header = format!("traceparent: 00-{trace}-{span}-01");
    let path = "/v1.0/publish/broker/a";
    let answer = node.ask(request("POST", path, &[&header], data.to_owned())).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
}

struct Spans(Arc<Mutex<Vec<Collected>>>);

impl Spans {
    fn find(&self, wanted: impl Fn(&Span) -> bool) -> Option<Span> {
        let all = self.0.lock().unwrap();
        all.iter().map(|one| &one.span).find(|span| wanted(span)).cloned()
    }

    /// Waits for the delivery span in the trace `number`, a child of the publishing span.
    async fn delivery(&self, number: u8) -> Span {
        let (trace, published_by) = parent(number);
        let in_trace = |span: &Span| hex(&span.trace_id) == trace;
        let delivery = || self.find(|span| in_trace(span) && span.name == "pubsub/a");
        let publishing = || self.find(|span| in_trace(span) && hex(&span.parent_span_id) == published_by);
        eventually(async || delivery().is_some() && publishing().is_some()).await;
        let (delivery, publishing) = (delivery().unwrap(), publishing().unwrap());
        assert_eq!(
            delivery.parent_span_id, publishing.span_id,
            "{publishing:#?} {delivery:#?}"
        );
        assert_eq!(delivery.kind(), SpanKind::Client);
        delivery
    }
}

fn failed(span: &Span) -> bool {
    let status = span.status.as_ref();
    status.is_some_and(|status| status.code() == StatusCode::Error)
}

fn attribute<'s>(span: &'s Span, key: &str) -> Option<&'s str> {
    let value = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match value.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// The parent spans sent to the app, request by request.
fn parents(app: &App, target: &str) -> Vec<(String, String)> {
    let seen = app.seen().into_iter().filter(|seen| seen.target == target);
    seen.map(|seen| {
        let (trace, span, _) = context(seen.header("traceparent").unwrap());
        (trace, span)
    })
    .collect()
}

fn ids(span: &Span) -> (String, String) {
    (hex(&span.trace_id), hex(&span.span_id))
}

#[tokio::test]
async fn http_app_continues_delivery_trace() {
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let app = App::start(|request| async move {
        let is_event = request.uri().path() == "/a";
        let body = request.into_body().collect().await.unwrap().to_bytes();
        if !is_event {
            return app::text(404, "");
        }
        let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
        match event["data"].as_str().unwrap() {
            BAD => app::text(500, ""),
            "again" => app::text(200, r#"{"status":"RETRY"}"#),
            _ => app::text(200, ""),
        }
    })
    .await;
    let (node, spans) = (subscribing(&net, &app, &otel).start().await, Spans(spans));
    for (number, data, status, is_failure) in [
        (1, "good", "200", false),
        (2, BAD, "500", true),
        (3, "again", "200", true),
    ] {
        publish(&node, number, data).await;
        let delivery = spans.delivery(number).await;
        assert_eq!(attribute(&delivery, "dapr.status_code"), Some(status), "{data}");
        assert_eq!(failed(&delivery), is_failure, "{data}: {delivery:?}");
        assert_eq!(parents(&app, "/a").last(), Some(&ids(&delivery)), "{data}");
    }
}

#[tokio::test]
async fn grpc_app_continues_delivery_trace() {
    const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnTopicEvent";
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let app = App::start(|request| async move {
        if request.uri().path() != ON_EVENT {
            return grpc::response(&[], &[b""], &[("grpc-status", "0")]);
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let message = grpc::messages(body).remove(0);
        let event = outrigger_wire::runtime::v1::TopicEventRequest::decode(message).unwrap();
        let status = if event.data == BAD { RETRY } else { 0 };
        grpc::ok(&TopicEventResponse { status })
    })
    .await;
    let plan = subscribing(&net, &app, &otel).flag("--app-protocol=grpc");
    let (node, spans) = (plan.start().await, Spans(spans));
    for (number, data, is_failure) in [(1, "good", false), (2, BAD, true)] {
        publish(&node, number, data).await;
        let delivery = spans.delivery(number).await;
        assert_eq!(failed(&delivery), is_failure, "{data}: {delivery:?}");
        assert_eq!(parents(&app, ON_EVENT).last(), Some(&ids(&delivery)), "{data}");
    }
}

fn said(said: Said) -> bytes::Bytes {
    let message = SubscribeTopicEventsRequestAlpha1 {
        subscribe_topic_events_request_type: Some(said),
    };
    grpc::framed(&message.encode_to_vec())
}

#[tokio::test]
async fn stream_has_span_per_delivery() {
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let plan = net.sidecar("me").resource(MEMORY).spec(&sampled(&otel));
    let (node, spans) = (plan.start().await, Spans(spans));
    let (tell, body) = fed();
    let initial = SubscribeTopicEventsRequestInitialAlpha1 {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        ..SubscribeTopicEventsRequestInitialAlpha1::default()
    };
    tell.send(Ok(said(Said::InitialRequest(initial)))).await.unwrap();
    let path = "/dapr.proto.runtime.v1.Dapr/SubscribeTopicEventsAlpha1";
    let mut stream = grpc::start(node.ports.grpc, path, &[], body).await.into_body();
    grpc::next(&mut stream).await.unwrap();
    for (number, status, is_failure) in [(1, 0, false), (2, RETRY, true)] {
        publish(&node, number, "x").await;
        let request =
            SubscribeTopicEventsResponseAlpha1::decode(grpc::next(&mut stream).await.unwrap()).unwrap();
        let Some(Received::EventMessage(event)) = request.subscribe_topic_events_response_type else {
            panic!("{request:?}");
        };
        let answer = SubscribeTopicEventsRequestProcessedAlpha1 {
            id: event.id,
            status: Some(TopicEventResponse { status }),
        };
        tell.send(Ok(said(Said::EventProcessed(answer)))).await.unwrap();
        let delivery = spans.delivery(number).await;
        assert_eq!(failed(&delivery), is_failure, "{delivery:?}");
    }
}

/// Each event of a bulk continues its own trace; the single request to the app has that of the first event.
#[tokio::test]
async fn bulk_has_span_per_event_over_http() {
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let app = App::start(|request| async move {
        let is_bulk = request.uri().path() == "/a";
        let body = request.into_body().collect().await.unwrap().to_bytes();
        if !is_bulk {
            return app::text(404, "");
        }
        let bulk: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let entries = bulk["entries"].as_array().unwrap();
        let statuses: Vec<_> = entries
            .iter()
            .map(|entry| {
                let is_bad = entry["event"]["data"] == BAD;
                json!({"entryId": entry["entryId"], "status": if is_bad { "RETRY" } else { "SUCCESS" }})
            })
            .collect();
        app::text(200, &json!({ "statuses": statuses }).to_string())
    })
    .await;
    // In memory there is one message at a time.
    let folder = tempfile::tempdir().unwrap();
    let plan = subscribing_on(&sqlite(&folder), &net, &app, &otel, BULK);
    let (node, spans) = (plan.start().await, Spans(spans));
    publish(&node, 1, "good").await;
    publish(&node, 2, BAD).await;
    let (good, bad) = (spans.delivery(1).await, spans.delivery(2).await);
    assert_eq!(
        parents(&app, "/a"),
        [ids(&good)],
        "one call, in the trace of the first"
    );
    assert_eq!((failed(&good), failed(&bad)), (false, true), "{bad:?}");
    for span in [&good, &bad] {
        assert_eq!(attribute(span, "dapr.status_code"), Some("200"));
    }
}

#[tokio::test]
async fn bulk_has_span_per_event_over_grpc() {
    const ON_BULK: &str = "/dapr.proto.runtime.v1.AppCallback/OnBulkTopicEvent";
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let app = App::start(|request| async move {
        if request.uri().path() != ON_BULK {
            return grpc::response(&[], &[b""], &[("grpc-status", "0")]);
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let bulk = TopicEventBulkRequest::decode(grpc::messages(body).remove(0)).unwrap();
        let statuses = bulk.entries.into_iter().zip([0, RETRY]);
        let statuses = statuses.map(|(entry, status)| TopicEventBulkResponseEntry {
            entry_id: entry.entry_id,
            status,
        });
        grpc::ok(&TopicEventBulkResponse {
            statuses: statuses.collect(),
        })
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let plan = subscribing_on(&sqlite(&folder), &net, &app, &otel, BULK).flag("--app-protocol=grpc");
    let (node, spans) = (plan.start().await, Spans(spans));
    publish(&node, 1, "x").await;
    publish(&node, 2, "x").await;
    let (first, second) = (spans.delivery(1).await, spans.delivery(2).await);
    assert_eq!(parents(&app, ON_BULK), [ids(&first)]);
    assert_eq!((failed(&first), failed(&second)), (false, true), "{second:?}");
}

/// The entries of a published bulk have separate spans, each the parent of its delivery.
#[tokio::test]
async fn bulk_entries_are_parents_of_deliveries() {
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let app = App::start(|_| async { app::text(200, "") }).await;
    let (node, spans) = (subscribing(&net, &app, &otel).start().await, Spans(spans));
    let entry = |id| json!({"entryId": id, "event": id, "contentType": "text/plain"});
    let bulk = json!([entry("1"), entry("2")]).to_string();
    let sent = request("POST", "/v1.0/publish/bulk/broker/a", &[PARENT], bulk);
    assert_eq!(node.ask(sent).await.status, 204);
    let in_trace = |wanted: &dyn Fn(&Span) -> bool| -> Vec<Span> {
        let all = spans.0.lock().unwrap();
        let all = all.iter().map(|one| &one.span);
        all.filter(|span| hex(&span.trace_id) == TRACE && wanted(span))
            .cloned()
            .collect()
    };
    let published = || in_trace(&|span| span.kind() == SpanKind::Producer);
    let delivered = || in_trace(&|span| span.name == "pubsub/a");
    eventually(async || published().len() == 2 && delivered().len() == 2).await;
    let mut published: Vec<_> = published().into_iter().map(|span| span.span_id).collect();
    let mut parents: Vec<_> = delivered().into_iter().map(|span| span.parent_span_id).collect();
    published.sort_unstable();
    parents.sort_unstable();
    assert_eq!(parents, published);
}

/// An event of a publisher without tracing begins a new trace.
#[tokio::test]
async fn event_without_trace_begins_one() {
    let (net, (otel, spans)) = (Net::plain(), collector().await);
    let folder = tempfile::tempdir().unwrap();
    let shared = sqlite(&folder);
    let app = App::start(|_| async { app::text(200, "") }).await;
    let subscription = "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-a\nspec:\n  pubsubname: \
                        broker\n  topic: a\n  routes: {default: /a}\n";
    let plan = net.sidecar("me").app(app.port).spec(&sampled(&otel));
    let _node = plan.resource(&shared).resource(subscription).start().await;
    let writer = net.sidecar("writer").resource(&shared);
    let writer = writer.spec("  tracing:\n    samplingRate: \"0\"").start().await;
    let event = json!({"id": "1", "type": "t", "source": "s", "specversion": "1.0", "data": 1}).to_string();
    let path = "/v1.0/publish/broker/a?metadata.rawPayload=true";
    assert_eq!(writer.ask(post(path, event)).await.status, 204);
    let spans = Spans(spans);
    let delivery = || spans.find(|span| span.name == "pubsub/a");
    eventually(async || delivery().is_some()).await;
    let delivery = delivery().unwrap();
    assert!(delivery.parent_span_id.is_empty(), "{delivery:?}");
    assert_eq!(parents(&app, "/a"), [ids(&delivery)]);
}
