use std::time::{Duration, SystemTime};

use futures::FutureExt;
use outrigger_component::state::Delete;
use outrigger_offload::{INLINE, done_at_once};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::NameValue;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::metrics::Metrics;
use outrigger_telemetry::trace::Tracer;
use serde_json::json;

use super::*;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn settings(items: &[(&str, &str)]) -> Option<Settings> {
    let items = items.iter().map(|(name, value)| NameValue::new(*name, *value));
    Settings::read(&Properties::found(items.collect()), "default", "app")
}

fn outbox() -> Outbox {
    let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
    let resilience = Resilience::new(Resiliency::none(), metrics);
    let pubsubs = PubSubs::new("app".into(), Arc::new(resilience), Tracer::off());
    let settings = settings(&[
        ("outboxPublishPubsub", "broker"),
        ("outboxPublishTopic", "orders"),
    ]);
    Outbox::new(
        settings.unwrap(),
        Arc::new(pubsubs),
        Arc::default(),
        SubscribedTopics::default(),
    )
}

fn set(key: &str, value: &'static str, metadata: &[(&str, &str)]) -> Set {
    let metadata = metadata.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    Set {
        key: key.to_owned(),
        value: Value::Json(Bytes::from_static(value.as_bytes())),
        metadata: metadata.collect(),
        ..Set::default()
    }
}

/// Prepares values on this thread.
fn prepared(outbox: &Outbox, operations: Vec<Step>, trace: &Parent) -> Prepared {
    outbox.prepare(operations, 1, trace).now_or_never().unwrap()
}

fn event(outbox: &Outbox, operations: Vec<Step>) -> serde_json::Value {
    let prepared = self::prepared(outbox, operations, &Parent::from_text(TRACE, "a=b"));
    assert_eq!(prepared.events.len(), 1);
    serde_json::from_slice(&prepared.events[0].data).unwrap()
}

#[test]
fn requires_broker_and_topic() {
    assert_eq!(settings(&[("outboxPublishPubsub", "broker")]), None);
    assert_eq!(
        settings(&[("outboxPublishPubsub", "broker"), ("outboxPublishTopic", "")]),
        None
    );
    let mut items = vec![
        ("outboxPublishPubsub", "broker"),
        ("outboxPublishTopic", "orders"),
    ];
    let plain = settings(&items).unwrap();
    assert_eq!(plain.internal_pubsub, "broker");
    assert_eq!(plain.internal_topic, "defaultappordersoutbox");
    assert!(!plain.discards);
    items.extend([
        ("outboxPubsub", "other"),
        ("outboxDiscardWhenMissingState", "true"),
    ]);
    let other = settings(&items).unwrap();
    assert_eq!((other.internal_pubsub.as_str(), other.discards), ("other", true));
}

#[test]
fn each_write_has_event_and_marker() {
    let outbox = outbox();
    let operations = vec![
        Step::Set(set("app||a", "\"2\"", &[])),
        Step::Delete(Delete {
            key: "app||b".to_owned(),
            ..Delete::default()
        }),
        Step::Set(set("app||c", "3", &[])),
    ];
    let prepared = self::prepared(&outbox, operations, &Parent::default());
    assert_eq!((prepared.operations.len(), prepared.events.len()), (5, 2));
    for (entry, step) in prepared.events.iter().zip(&prepared.operations[3..]) {
        let Step::Set(marker) = step else {
            panic!("{step:?}")
        };
        assert_eq!(marker.key, entry.id);
        assert!(event::is_marker(&entry.id), "{}", entry.id);
        assert_eq!(marker.value, Value::Json("\"0\"".into()));
        let event: serde_json::Value = serde_json::from_slice(&entry.data).unwrap();
        assert_eq!(event["id"], entry.id);
    }
    assert_ne!(prepared.events[0].id, prepared.events[1].id);
}

#[test]
fn event_matches_contract() {
    let outbox = outbox();
    let mut said = event(&outbox, vec![Step::Set(set("k", "\"2\"", &[]))]);
    let said = said.as_object_mut().unwrap();
    assert!(said.remove("id").is_some() && said.remove("time").is_some());
    let expected = json!({
        "data": "2", "datacontenttype": "text/plain", "pubsubname": "broker", "source": "app", "specversion": "1.0",
        "topic": "", "traceid": TRACE, "traceparent": TRACE, "tracestate": "a=b", "type": "com.dapr.event.sent",
    });
    assert_eq!(serde_json::Value::from(said.clone()), expected);
}

#[test]
fn content_type_selects_payload_form() {
    let outbox = outbox();
    for (value, content_type, data) in [
        (r#"{"a":1.50}"#, "application/json", json!({"a": 1.5})),
        (r#"{"a":1}"#, "", json!(r#"{"a":1}"#)),
        (r#""a\"b""#, "text/html", json!("a\"b")),
        (r#""a""#, "application/json; charset=utf-8", json!("a")),
        ("5", "", json!("5")),
        (r#""a\ud800""#, "", json!("a\u{fffd}")),
        (r#"{"a":"\ud800"}"#, "application/json", json!({"a": "\u{fffd}"})),
    ] {
        let mut own = set("k", value, &[]);
        own.content_type = Some(content_type.to_owned());
        assert_eq!(event(&outbox, vec![Step::Set(own)])["data"], data, "{value}");
        let said = event(
            &outbox,
            vec![Step::Set(set("k", value, &[("contentType", content_type)]))],
        );
        assert_eq!(said["data"], data, "{value}");
        let said = event(
            &outbox,
            vec![Step::Set(set("k", value, &[("datacontenttype", content_type)]))],
        );
        assert_eq!(said["data"], data, "{value}");
    }
    let mut bytes = set("k", "", &[("contentType", "application/octet-stream")]);
    bytes.value = Value::Bytes(Bytes::from_static(b"\xff"));
    let said = event(&outbox, vec![Step::Set(bytes)]);
    assert_eq!((&said["data_base64"], said.get("data")), (&json!("/w=="), None));
}

#[test]
fn metadata_overrides_envelope_attributes() {
    let metadata = [
        ("data", "a"),
        ("id", "b"),
        ("type", "order.created"),
        // Applied when the event is relayed.
        ("cloudevent.type", "x"),
        ("subject", "s"),
    ];
    let said = event(&outbox(), vec![Step::Set(set("k", "1", &metadata))]);
    assert_eq!(said["data"], "1");
    assert!(event::is_marker(said["id"].as_str().unwrap()));
    assert_eq!(
        (&said["type"], &said["cloudevent.type"], &said["subject"]),
        (&json!("order.created"), &json!("x"), &json!("s"))
    );
}

#[test]
fn publishes_projection_instead_of_value() {
    let outbox = outbox();
    let mut projection = set(
        "k",
        r#"{"public":true}"#,
        &[("outbox.projection", "true"), ("type", "p")],
    );
    projection.content_type = Some("application/json".to_owned());
    let stored = set("k", "\"secret\"", &[("type", "t")]);
    let other = set("other", "1", &[("outbox.projection", "true")]);
    let operations = vec![Step::Set(projection), Step::Set(other), Step::Set(stored.clone())];
    let prepared = self::prepared(&outbox, operations, &Parent::default());
    assert_eq!(prepared.operations[0], Step::Set(stored));
    assert_eq!((prepared.operations.len(), prepared.events.len()), (2, 1));
    let said: serde_json::Value = serde_json::from_slice(&prepared.events[0].data).unwrap();
    assert_eq!(said["data"], json!({"public": true}));
    assert_eq!(
        (&said["type"], &said["datacontenttype"]),
        (&json!("t"), &json!("application/json"))
    );
    let projection = set("k", r#"{"public":true}"#, &[("outbox.projection", "true")]);
    let stored = set("k", "1", &[("datacontenttype", "application/json")]);
    let said = event(&outbox, vec![Step::Set(projection), Step::Set(stored)]);
    assert_eq!(said["data"], json!({"public": true}));
    let kept = set("k", "1", &[("outbox.projection", "false")]);
    assert_eq!(
        self::prepared(&outbox, vec![Step::Set(kept)], &Parent::default())
            .operations
            .len(),
        2
    );
}

#[tokio::test]
async fn prepares_large_values_off_thread() {
    let outbox = outbox();
    let operations = || vec![Step::Set(set("k", "1", &[]))];
    let trace = Parent::default();
    for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
        let (was_at_once, prepared) = done_at_once(outbox.prepare(operations(), size, &trace)).await;
        assert_eq!((was_at_once, prepared.events.len()), (at_once, 1), "{size}");
    }
}

#[test]
fn parses_marker_age() {
    let marker = event::marker();
    let now = SystemTime::now();
    assert!(event::age(&marker, now).unwrap() < Duration::from_secs(60));
    let later = now + Duration::from_secs(7200);
    assert!(event::age(&marker, later).unwrap() > Duration::from_secs(7000));
    let of_dapr = "outbox-2b1a9f0e-6f1c-4f6d-9d6a-5e1f0c2b3a4d";
    assert!(event::is_marker(of_dapr) && event::age(of_dapr, now).is_none());
    for other in [
        "app||k",
        "outbox-",
        "outbox-k",
        "2b1a9f0e-6f1c-4f6d-9d6a-5e1f0c2b3a4d",
    ] {
        assert!(!event::is_marker(other), "{other}");
    }
}
