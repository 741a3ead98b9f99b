//! The trace of an event from publisher to subscriber.

use super::*;

/// An app that records the traces of its requests and of the events in them.
async fn traces() -> (App, Arc<Mutex<Vec<(String, Value)>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let app = App::start(move |request| {
        let kept = Arc::clone(&kept);
        async move {
            if request.method() != Method::POST {
                return app::text(404, "");
            }
            let header = request.headers().get("traceparent");
            let trace = header.map_or("", |trace| trace.to_str().unwrap()).to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let event: Value = serde_json::from_slice(&body).unwrap();
            kept.lock().unwrap().push((trace, event["traceid"].clone()));
            app::text(200, "")
        }
    })
    .await;
    (app, heads)
}

const NO_TRACE: &str = "00-00000000000000000000000000000000-0000000000000000-00";

#[tokio::test]
async fn untraced_event_has_no_trace() {
    let net = Net::plain();
    let (app, heads) = traces().await;
    let node = subscriber(&net, &app).await;
    let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02";
    for (headers, header, envelope) in [
        (vec![], NO_TRACE, ""),
        (vec![format!("traceparent: {given}")], given, given),
    ] {
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        publish(&node, "", &headers, "x").await;
        eventually(async || !heads.lock().unwrap().is_empty()).await;
        let (trace, received) = heads.lock().unwrap().remove(0);
        assert_eq!(trace, header);
        assert_eq!(received, envelope);
    }
}

#[tokio::test]
async fn untraced_raw_payload_has_grpc_trace() {
    let net = Net::plain();
    let (app, heads) = traces().await;
    let plan = net.sidecar("me").app(app.port).resource(MEMORY);
    let node = plan.resource(&subscription("{rawPayload: 'true'}")).start().await;
    publish(&node, "?metadata.rawPayload=true", &[], "x").await;
    eventually(async || heads.lock().unwrap().len() == 1).await;
    let published = PublishEventRequest {
        pubsub_name: "broker".to_owned(),
        topic: "a".to_owned(),
        data: "x".into(),
        data_content_type: String::new(),
        metadata: [("rawPayload".to_owned(), "true".to_owned())].into(),
    };
    let method = format!("{DAPR}/PublishEvent");
    grpc::unary(node.ports.grpc, &method, &[], &published)
        .await
        .message::<()>();
    eventually(async || heads.lock().unwrap().len() == 2).await;
    let expected = [(String::new(), Value::Null), (NO_TRACE.to_owned(), json!(""))];
    assert_eq!(*heads.lock().unwrap(), expected);
}

#[tokio::test]
async fn passes_trace_and_baggage_to_subscriber() {
    for sampling in ["0", "1"] {
        let net = Net::plain();
        let (app, got) = keeping().await;
        let plan = net
            .sidecar("me")
            .app(app.port)
            .resource(MEMORY)
            .resource(&subscription("{}"));
        let node = plan
            .spec(&format!("  tracing:\n    samplingRate: \"{sampling}\""))
            .start()
            .await;
        let headers = [PARENT, "tracestate: vendor=1", "baggage: user=alice"];
        publish(&node, "", &headers, "x").await;
        let one = event(&got, 0).await;
        assert!(one["traceparent"].as_str().unwrap().contains(TRACE), "{one}");
        assert_eq!(one["traceid"], one["traceparent"]);
        assert_eq!(
            (&one["tracestate"], &one["baggage"]),
            (&json!("vendor=1"), &json!("user=alice"))
        );
        let seen = app.last();
        assert!(seen.header("traceparent").unwrap().contains(TRACE));
        assert_eq!(seen.header("tracestate"), Some("vendor=1"));
        let entry = r#"[{"entryId":"1","event":"x","contentType":"text/plain"}]"#;
        let bulk = request("POST", "/v1.0/publish/bulk/broker/a", &headers, entry.to_owned());
        assert_eq!(node.ask(bulk).await.status, 204);
        let of_bulk = event(&got, 1).await;
        assert!(
            of_bulk["traceparent"].as_str().unwrap().contains(TRACE),
            "{of_bulk}"
        );
        assert_eq!(of_bulk["baggage"], "user=alice");
        assert!(app.last().header("traceparent").unwrap().contains(TRACE));
    }
}
