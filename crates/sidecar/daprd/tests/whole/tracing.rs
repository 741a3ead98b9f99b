//! Trace contexts and baggage along a call, and the spans sent to a collector.

mod actors;
mod jobs;
mod pubsub;
mod workflow;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use outrigger_transport::body::Body;
use prost::Message;
use tonic::Code;

use crate::common::{App, Net, app, eventually, get, grpc, post, request};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Trace id, span id and flags of a `traceparent`.
fn context(traceparent: &str) -> (String, String, String) {
    let parts: Vec<_> = traceparent.split('-').collect();
    assert_eq!(parts.len(), 4, "{traceparent}");
    assert_eq!(parts[0], "00");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned())
}

#[tokio::test]
async fn continues_trace_through_both_sidecars() {
    let net = Net::plain();
    let app = App::echo().await;
    let sampled = "  tracing:\n    samplingRate: \"1\"";
    let callee = net.sidecar("callee").app(app.port).spec(sampled).start().await;
    let caller = net.sidecar("caller").spec(sampled).start().await;
    let sent = request(
        "GET",
        "/v1.0/invoke/callee/method/m",
        &[PARENT, "tracestate: vendor=1", "baggage: user=alice,tier=gold"],
        Body::Empty,
    );
    let answer = caller.ask(sent).await;
    assert_eq!(answer.status, 200);
    let (trace, span, flags) = context(app.last().header("traceparent").unwrap());
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "01"));
    assert_ne!(span, "b7ad6b7169203331", "the app's parent is the sidecar's span");
    assert_eq!(app.last().header("tracestate"), Some("vendor=1"));
    assert_eq!(app.last().header("baggage"), Some("user=alice,tier=gold"));
    let (trace, answered, _) = context(answer.header("traceparent").unwrap());
    assert_eq!(trace, TRACE);
    assert_ne!(answered, span, "two sidecars, two spans");
    assert_eq!(answer.header("baggage"), Some("user=alice,tier=gold"));
    // Without a parent, or with a malformed one, a new trace begins.
    for broken in [&[][..], &["traceparent: 00-zz-b7ad6b7169203331-01"]] {
        let answer = caller
            .ask(request(
                "GET",
                "/v1.0/invoke/callee/method/m",
                broken,
                Body::Empty,
            ))
            .await;
        let (trace, ..) = context(answer.header("traceparent").unwrap());
        assert_ne!(trace, TRACE);
        assert_eq!(context(app.last().header("traceparent").unwrap()).0, trace);
    }
    drop(callee);
}

#[tokio::test]
async fn drops_trace_state_without_trace() {
    let app = App::echo().await;
    for spec in [
        "  tracing:\n    samplingRate: \"1\"",
        "  tracing:\n    samplingRate: \"0\"",
    ] {
        let net = Net::plain();
        let callee = net.sidecar("callee").app(app.port).spec(spec).start().await;
        let caller = net.sidecar("caller").spec(spec).start().await;
        for node in [&caller, &callee] {
            for (headers, expected) in [
                (&["tracestate: vendor=1"][..], None),
                (&["traceparent: nonsense", "tracestate: vendor=1"], None),
                (&[PARENT, "tracestate: a=1", "tracestate: b=2"], Some("a=1,b=2")),
                (&[PARENT, "tracestate: vendor=1"], Some("vendor=1")),
            ] {
                let target = "/v1.0/invoke/callee/method/m";
                assert_eq!(
                    node.ask(request("GET", target, headers, Body::Empty))
                        .await
                        .status,
                    200
                );
                assert_eq!(app.last().header("tracestate"), expected, "{spec} {headers:?}");
            }
        }
    }
}

#[tokio::test]
async fn keeps_unsampled_parent() {
    let net = Net::plain();
    let app = App::echo().await;
    let sampled = "  tracing:\n    samplingRate: \"1\"";
    let callee = net.sidecar("callee").app(app.port).spec(sampled).start().await;
    let caller = net.sidecar("caller").spec(sampled).start().await;
    let unsampled = PARENT.replace("-01", "-00");
    caller
        .ask(request(
            "GET",
            "/v1.0/invoke/callee/method/m",
            &[&unsampled],
            Body::Empty,
        ))
        .await;
    let (trace, _, flags) = context(app.last().header("traceparent").unwrap());
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    drop(callee);
}

#[tokio::test]
async fn refuses_malformed_baggage() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .spec("  tracing:\n    samplingRate: \"1\"");
    let node = node.start().await;
    let sent = request(
        "GET",
        "/v1.0/invoke/me/method/m",
        &["baggage: no equals sign"],
        Body::Empty,
    );
    let answer = node.ask(sent).await;
    assert_eq!(answer.status, 400);
    let reason = "invalid baggage header: invalid baggage list-member: \"no equals sign\"";
    assert_eq!(answer.text().trim_end(), reason);
    let outcome = grpc::invoke(node.ports.grpc, "me", "m", &[("baggage", "no equals sign")], "").await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
    assert_eq!(outcome.status.message(), reason);
    assert_eq!(app.calls(), 0);
    let several = [("baggage", "a=1"), ("baggage", "b=2")];
    let outcome = grpc::invoke(node.ports.grpc, "me", "m", &several, "").await;
    assert_eq!(outcome.header("baggage"), Some("a=1,b=2"));
}

#[tokio::test]
async fn grpc_carries_both_context_formats() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        if request.uri().path() == grpc::ON_INVOKE {
            return grpc::ok(&grpc::invoked("done", ""));
        }
        grpc::response(&[], &[b""], &[("grpc-status", "0")])
    })
    .await;
    let sampled = "  tracing:\n    samplingRate: \"1\"";
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let _callee = callee.spec(sampled).start().await;
    let caller = net.sidecar("caller").spec(sampled).start().await;
    let parent = PARENT.split_once(": ").unwrap().1;
    let metadata = [("traceparent", parent), ("dapr-app-id", "callee")];
    let check = |way: &str| {
        let seen = app.last();
        let (trace, span, _) = context(seen.header("traceparent").unwrap());
        assert_eq!(trace, TRACE, "{way}");
        assert!(!span.is_empty());
        let binary = base64_of(seen.header("grpc-trace-bin").unwrap());
        assert_eq!(binary.len(), 29, "{way}");
        assert_eq!(hex(&binary[2..18]), TRACE, "{way}");
        assert_eq!(hex(&binary[19..27]), span, "{way}");
    };
    grpc::invoke(caller.ports.grpc, "callee", "m", &metadata, "").await;
    check("InvokeService");
    grpc::call(caller.ports.grpc, "/shop.v1.Orders/Get", &metadata, &[b""]).await;
    check("proxied");
    caller
        .ask(request(
            "GET",
            "/v1.0/invoke/callee/method/m",
            &[PARENT],
            Body::Empty,
        ))
        .await;
    check("HTTP");
}

fn base64_of(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(text.trim_end_matches('='))
        .unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A span with the app id of the sidecar that created it.
#[derive(Clone, Debug)]
struct Collected {
    service: String,
    span: Span,
}

impl Collected {
    fn attributes(&self) -> BTreeMap<&str, &str> {
        let texts = self.span.attributes.iter().map(|a| {
            let value = a.value.as_ref().and_then(|v| v.value.as_ref());
            match value {
                Some(Value::StringValue(text)) => (a.key.as_str(), text.as_str()),
                other => panic!("{}: {other:?}", a.key),
            }
        });
        texts.collect()
    }
}

/// A collector and the spans it received.
async fn collector() -> (App, Arc<Mutex<Vec<Collected>>>) {
    let spans = Arc::<Mutex<Vec<Collected>>>::default();
    let kept = Arc::clone(&spans);
    let app = App::start(move |request| {
        let kept = Arc::clone(&kept);
        async move {
            let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
            assert_eq!(request.uri().path(), path);
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let message = grpc::messages(body).remove(0);
            let export = ExportTraceServiceRequest::decode(message).unwrap();
            for group in export.resource_spans {
                let resource = group.resource.unwrap();
                let name = resource
                    .attributes
                    .iter()
                    .find(|a| a.key == "service.name")
                    .unwrap();
                let service = match name.value.clone().unwrap().value {
                    Some(Value::StringValue(text)) => text,
                    other => panic!("{other:?}"),
                };
                for scope in group.scope_spans {
                    let name = scope.scope.unwrap().name;
                    assert!(
                        ["dapr-diagnostics", "durabletask"].contains(&name.as_str()),
                        "{name}"
                    );
                    let spans = scope.spans.into_iter().map(|span| Collected {
                        service: service.clone(),
                        span,
                    });
                    kept.lock().unwrap().extend(spans);
                }
            }
            grpc::ok(&ExportTraceServiceResponse::default())
        }
    })
    .await;
    (app, spans)
}

#[tokio::test]
async fn exports_spans_of_call() {
    let net = Net::plain();
    let (otel, spans) = collector().await;
    let app =
        App::start(
            |request| async move { app::text(if request.uri().path() == "/bad" { 404 } else { 200 }, "") },
        )
        .await;
    let tracing = format!(
        "  tracing:\n    samplingRate: \"1\"\n    otel:\n      endpointAddress: 127.0.0.1:{}\n      isSecure: false\n      \
         protocol: grpc",
        otel.port
    );
    let callee = net.sidecar("callee").app(app.port).spec(&tracing).start().await;
    let caller = net.sidecar("caller").spec(&tracing).start().await;
    let sent = request(
        "POST",
        "/v1.0/invoke/callee/method/orders/7?a=1",
        &[PARENT, "dapr-note: hello", "dapr-api-token: secret"],
        "x",
    );
    assert_eq!(caller.ask(sent).await.status, 200);
    let find = |service: &str, name: &str| {
        let all = spans.lock().unwrap();
        all.iter()
            .find(|s| s.service == service && s.span.name == name)
            .cloned()
    };
    let name = "CallLocal/callee/orders/7";
    eventually(async || find("caller", name).is_some() && find("callee", name).is_some()).await;
    let (client, server) = (find("caller", name).unwrap(), find("callee", name).unwrap());
    assert_eq!(client.span.kind(), SpanKind::Client);
    assert_eq!(server.span.kind(), SpanKind::Server);
    assert_eq!(hex(&client.span.trace_id), TRACE);
    assert_eq!(hex(&client.span.parent_span_id), "b7ad6b7169203331");
    assert_eq!(server.span.trace_id, client.span.trace_id);
    assert_eq!(server.span.parent_span_id, client.span.span_id);
    let (_, parent, _) = context(app.last().header("traceparent").unwrap());
    assert_eq!(
        parent,
        hex(&server.span.span_id),
        "the app continues the callee's span"
    );
    assert!(client.span.end_time_unix_nano > client.span.start_time_unix_nano);
    let attributes = client.attributes();
    for (key, value) in [
        ("dapr.protocol", "http"),
        ("dapr.api", "POST /v1.0/invoke/callee/method/orders/7"),
        ("dapr.status_code", "200"),
        ("http.request.method", "POST"),
        ("url.full", "/v1.0/invoke/callee/method/orders/7"),
        ("rpc.service", "ServiceInvocation"),
        ("net.peer.name", "callee"),
        ("dapr-note", "hello"),
        ("server.address", "127.0.0.1"),
    ] {
        assert_eq!(attributes.get(key), Some(&value), "{key}: {attributes:?}");
    }
    assert!(attributes.contains_key("server.port"));
    assert!(!attributes.contains_key("dapr-api-token"), "no secrets in traces");
    let attributes = server.attributes();
    assert_eq!(attributes["dapr.protocol"], "grpc");
    assert_eq!(attributes["rpc.service"], "ServiceInvocation");
    assert_eq!(attributes["dapr.invoke_method"], "orders/7");

    caller.ask(get("/v1.0/invoke/callee/method/bad")).await;
    eventually(async || find("caller", "CallLocal/callee/bad").is_some()).await;
    let failed = find("caller", "CallLocal/callee/bad").unwrap();
    let status = failed.span.status.clone().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert_eq!(status.message, "Code(404): Not Found");
    assert_eq!(failed.attributes()["dapr.status_code"], "404");
    // A target can be a URL; nothing listens on port 1.
    let by_url = ["dapr-app-id: http://hidden:hidden@127.0.0.1:1/x?key=hidden"];
    caller
        .ask(request("GET", "/m?key=hidden", &by_url, Body::Empty))
        .await;
    eventually(async || find("caller", "CallLocal/http://***@127.0.0.1:1/x/m").is_some()).await;
    let by_path = "/v1.0/invoke/http://hidden:hidden@127.0.0.1:1/method/m";
    caller.ask(get(by_path)).await;
    eventually(async || find("caller", "CallLocal/http://***@127.0.0.1:1/m").is_some()).await;
    assert!(!format!("{:?}", spans.lock().unwrap()).contains("hidden"));
    // Health checks create no spans.
    caller.ask(get("/v1.0/healthz")).await;
    caller.ask(get("/v1.0/metadata")).await;
    eventually(async || find("caller", "/v1.0/metadata").is_some()).await;
    assert!(find("caller", "/v1.0/healthz").is_none());
    drop(callee);
}

#[tokio::test]
async fn shutdown_exports_pending_spans() {
    let net = Net::plain();
    let (otel, spans) = collector().await;
    let app = App::echo().await;
    let tracing = format!(
        "  tracing:\n    samplingRate: \"1\"\n    otel:\n      endpointAddress: 127.0.0.1:{}\n      isSecure: false\n      \
         protocol: grpc",
        otel.port
    );
    let node = net.sidecar("me").app(app.port).spec(&tracing).start().await;
    for number in 0..20 {
        node.ask(post(&format!("/v1.0/invoke/me/method/{number}"), ""))
            .await;
    }
    node.stop().await.unwrap();
    let spans = spans.lock().unwrap();
    let calls = spans.iter().filter(|s| s.span.name.starts_with("CallLocal/me/"));
    assert_eq!(calls.count(), 20, "none is lost at the end");
}

#[tokio::test]
async fn passes_contexts_without_tracing() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .spec("  tracing:\n    samplingRate: \"0\"");
    let _callee = callee.start().await;
    let caller = net
        .sidecar("caller")
        .spec("  tracing:\n    samplingRate: \"0\"")
        .start()
        .await;
    let sent = request(
        "GET",
        "/v1.0/invoke/callee/method/m",
        &[PARENT, "baggage: anything goes"],
        Body::Empty,
    );
    let answer = caller.ask(sent).await;
    assert_eq!(answer.status, 200, "baggage is not looked at");
    assert_eq!(context(app.last().header("traceparent").unwrap()).0, TRACE);
}
