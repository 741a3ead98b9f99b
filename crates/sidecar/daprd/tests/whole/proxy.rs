//! Calls of services unknown to the sidecar, proxied by app id: frames, metadata and statuses are unchanged.

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use tokio::sync::mpsc;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::common::grpc::{self, Outcome, framed};
use crate::common::{App, Net, Node, eventually, fed, within};

const ECHO: &str = "/shop.v1.Orders/Echo";
const COUNT: &str = "/shop.v1.Orders/Count";
const WATCH: &str = "/shop.v1.Orders/Watch";
const FAIL: &str = "/shop.v1.Orders/Fail";
const CALLEE: (&str, &str) = ("dapr-app-id", "callee");

/// An app with one method of each kind.
async fn orders(request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        ECHO => {
            let (sender, answer) = fed();
            let mut body = request.into_body();
            tokio::spawn(async move {
                while let Some(Ok(frame)) = body.frame().await {
                    if let Ok(data) = frame.into_data() {
                        sender.send(Ok(data)).await.unwrap();
                    }
                }
            });
            let answer = answer.with_trailers(async {
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                trailers.insert("x-tail", "bye".parse().unwrap());
                Some(Ok(trailers))
            });
            let mut response = Response::new(Body::stream(answer));
            let headers = response.headers_mut();
            headers.insert("content-type", "application/grpc+proto".parse().unwrap());
            headers.insert("x-head", "hello".parse().unwrap());
            headers.insert("x-head-bin", "AQID".parse().unwrap());
            response
        }
        COUNT => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let count = grpc::messages(body).len().to_string();
            grpc::response(&[], &[count.as_bytes()], &[("grpc-status", "0")])
        }
        WATCH => grpc::response(&[], &[b"one", b"two", b"three"], &[("grpc-status", "0")]),
        FAIL => {
            let details =
                ErrorDetails::with_error_info("SOLD_OUT", "shop.example", [("a".into(), "b".into())]);
            let mut status = Status::with_error_details(Code::FailedPrecondition, "sold out: ü", details);
            status.metadata_mut().insert("x-tail", "bye".parse().unwrap());
            grpc::failure(&status)
        }
        _ => grpc::failure(&Status::unimplemented("no such method")),
    }
}

async fn pair(net: &Net, app: &App) -> (Node, Node) {
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = callee.start().await;
    (net.sidecar("caller").start().await, callee)
}

#[tokio::test]
async fn proxies_unary_calls() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, callee) = pair(&net, &app).await;
    for node in [&caller, &callee] {
        let metadata = [
            CALLEE,
            ("x-plain", "p"),
            ("x-raw-bin", "AQIDBA"),
            ("authorization", "Bearer t"),
            ("user-agent", "test/1"),
        ];
        let outcome = grpc::call(node.ports.grpc, ECHO, &metadata, &[b"\x00raw\xff"]).await;
        assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
        assert_eq!(outcome.messages, [Bytes::from_static(b"\x00raw\xff")]);
        assert_eq!(outcome.header("x-head"), Some("hello"));
        assert_eq!(outcome.header("x-head-bin"), Some("AQID"));
        assert_eq!(outcome.header("content-type"), Some("application/grpc+proto"));
        assert_eq!(outcome.trailer("x-tail"), Some("bye"));
        let seen = app.last();
        assert_eq!(seen.target, ECHO);
        assert_eq!(seen.header("x-plain"), Some("p"));
        assert_eq!(seen.header("x-raw-bin"), Some("AQIDBA"));
        assert_eq!(seen.header("authorization"), Some("Bearer t"));
        assert_eq!(seen.header("te"), Some("trailers"));
        assert!(!seen.headers.contains_key("dapr-app-id"));
    }
    let seen = app.seen();
    assert_eq!(seen[0].header("dapr-caller-app-id"), Some("caller"));
    assert_eq!(seen[0].header("dapr-callee-app-id"), Some("callee"));
    assert_eq!(
        seen[1].header("dapr-caller-app-id"),
        None,
        "a local call crosses no border"
    );
}

#[tokio::test]
async fn proxies_streams() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, callee) = pair(&net, &app).await;
    for node in [&caller, &callee] {
        let port = node.ports.grpc;
        let outcome = grpc::call(port, COUNT, &[CALLEE], &[b"a", b"b", b"", b"c"]).await;
        assert_eq!(outcome.messages, ["4"]);
        let outcome = grpc::call(port, WATCH, &[CALLEE], &[b"from the start"]).await;
        assert_eq!(outcome.messages, ["one", "two", "three"]);
        let (sender, body) = fed();
        sender.send(Ok(framed(b"first"))).await.unwrap();
        let mut answer = grpc::start(port, ECHO, &[CALLEE], body).await.into_body();
        assert_eq!(grpc::next(&mut answer).await.unwrap(), "first");
        for round in 0..10 {
            let message = format!("message {round}");
            sender.send(Ok(framed(message.as_bytes()))).await.unwrap();
            assert_eq!(grpc::next(&mut answer).await.unwrap(), message);
        }
        drop(sender);
        assert!(grpc::next(&mut answer).await.is_none());
    }
}

#[tokio::test]
async fn proxies_large_messages() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app).await;
    let large = vec![7; 3 << 20];
    let outcome = grpc::call(caller.ports.grpc, ECHO, &[CALLEE], &[&large]).await;
    assert_eq!(outcome.messages.len(), 1);
    assert_eq!(outcome.messages[0], large);
}

#[tokio::test]
async fn each_sidecar_checks_baggage() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let traced = "  tracing:\n    samplingRate: \"1\"";
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = callee.spec(traced).start().await;
    let caller = net.sidecar("caller").spec(traced).start().await;
    for (node, sidecars) in [(&caller, 2), (&callee, 1)] {
        let metadata = [CALLEE, ("baggage", "a=1"), ("baggage", "b=2")];
        let outcome = grpc::call(node.ports.grpc, ECHO, &metadata, &[b""]).await;
        assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
        let baggage: Vec<_> = outcome.headers.get_all("baggage").iter().collect();
        assert_eq!(baggage, vec!["a=1,b=2"; sidecars]);
        assert_eq!(app.last().all("baggage"), ["a=1", "b=2"]);
        let calls = app.calls();
        let outcome = grpc::call(node.ports.grpc, ECHO, &[CALLEE, ("baggage", "==")], &[b""]).await;
        assert_eq!(outcome.status.code(), Code::InvalidArgument);
        assert_eq!(
            outcome.status.message(),
            "invalid baggage header: invalid key: \"\""
        );
        assert_eq!(app.calls(), calls);
    }
}

#[tokio::test]
async fn keeps_status_text_and_details() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, callee) = pair(&net, &app).await;
    for node in [&caller, &callee] {
        let outcome = grpc::call(node.ports.grpc, FAIL, &[CALLEE], &[b""]).await;
        assert_eq!(outcome.status.code(), Code::FailedPrecondition);
        assert_eq!(outcome.status.message(), "sold out: ü");
        assert_eq!(outcome.error_info().reason, "SOLD_OUT");
        let outcome = grpc::call(node.ports.grpc, "/shop.v1.Orders/Other", &[CALLEE], &[b""]).await;
        assert_eq!(outcome.status.code(), Code::Unimplemented);
    }
    assert_eq!(app.calls(), 4, "nothing is repeated without a policy");
}

#[tokio::test]
async fn cancels_proxied_call_at_app() {
    let net = Net::plain();
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let gone = gone.clone();
        async move {
            let mut body = request.into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let (sender, answer) = fed();
            tokio::spawn(async move {
                sender.send(Ok(first)).await.unwrap();
                let error = body.frame().await.unwrap().unwrap_err();
                gone.send(error.to_string()).unwrap();
            });
            let mut response = Response::new(answer);
            let kind = "application/grpc".parse().unwrap();
            response.headers_mut().insert("content-type", kind);
            response
        }
    })
    .await;
    let (caller, _callee) = pair(&net, &app).await;
    let (sender, body) = fed();
    sender.send(Ok(framed(b"open"))).await.unwrap();
    let mut answer = grpc::start(caller.ports.grpc, ECHO, &[CALLEE], body)
        .await
        .into_body();
    assert_eq!(grpc::next(&mut answer).await.unwrap(), "open");
    sender.send(Err("cancelled".into())).await.unwrap();
    drop(answer);
    within(is_gone.recv()).await.expect("the app's stream is reset");
}

#[tokio::test]
async fn names_missing_proxy_target() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app).await;
    let port = caller.ports.grpc;
    let outcome = grpc::call(port, ECHO, &[], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Unknown);
    assert_eq!(
        outcome.status.message(),
        "failed to proxy request: required metadata dapr-callee-app-id or dapr-app-id not found"
    );
    let outcome = grpc::call(port, ECHO, &[("dapr-app-id", "nobody")], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Unknown, "{:?}", outcome.status);
    assert_eq!(outcome.status.message(), "no host found with the given ID");
    let outcome = grpc::call(port, ECHO, &[("dapr-app-id", "a.b.c")], &[b""]).await;
    assert!(
        outcome.status.message().contains("invalid app id"),
        "{:?}",
        outcome.status
    );
    // Self-calls require an app.
    let outcome = grpc::call(port, ECHO, &[("dapr-app-id", "caller")], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Unavailable);
    assert_eq!(outcome.status.message(), "app channel is not initialized");
    assert_eq!(app.calls(), 0);
}

#[tokio::test]
async fn dying_app_fails_proxied_stream() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app).await;
    let (sender, body) = fed();
    sender.send(Ok(framed(b"one"))).await.unwrap();
    let response = grpc::start(caller.ports.grpc, ECHO, &[CALLEE], body).await;
    eventually(async || app.calls() == 1).await;
    app.stop().await;
    let outcome = Outcome::read(response).await;
    assert_ne!(outcome.status.code(), Code::Ok);
    assert!(outcome.messages.len() <= 1);
    drop(sender);
}

#[tokio::test]
async fn partial_message_affects_no_other_call() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app).await;
    let mut torn = BytesMut::new();
    torn.put_u8(0);
    torn.put_u32(1000);
    torn.put_slice(b"only this");
    let response = grpc::start(caller.ports.grpc, ECHO, &[CALLEE], torn.freeze().into()).await;
    let body = within(response.into_body().collect()).await.unwrap().to_bytes();
    assert!(body.ends_with(b"only this"), "bytes pass as they are");
    let outcome = grpc::call(caller.ports.grpc, ECHO, &[CALLEE], &[b"whole"]).await;
    assert_eq!(outcome.messages, ["whole"]);
}

#[tokio::test]
async fn refuses_ambiguous_method_paths() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, callee) = pair(&net, &app).await;
    for port in [caller.ports.grpc, callee.ports.grpc, callee.ports.internal] {
        for path in [
            "/shop.v1.Public/../shop.v1.Orders/Count",
            "//shop.v1.Orders/Count",
            "/shop.v1.Orders//Count",
            "/./shop.v1.Orders/Count",
            "/shop.v1.Orders/./Count",
            "/shop.v1.Orders/Co%75nt",
            "/shop.v1.Orders%2FCount",
            "/shop.v1.Orders/Count;x",
            "/shop.v1.Orders;x/Count",
            "/shop.v1.Orders/Count?x=1",
            "/shop.v1.Orders\\Count",
            "/shop.v1.Orders/Count/",
            "/a/shop.v1.Orders/Count",
            "/Count",
            "/dapr.proto.runtime.v1.Dapr/../Dapr/GetMetadata",
            "/dapr.proto.internals.v1.ServiceInvocation/./CallLocal",
        ] {
            let outcome = grpc::call(port, path, &[CALLEE], &[b""]).await;
            assert_eq!(
                outcome.status.code(),
                Code::InvalidArgument,
                "{path}: {:?}",
                outcome.status
            );
            let message = outcome.status.message();
            assert!(message.starts_with("malformed method name "), "{path}: {message}");
        }
    }
    assert_eq!(app.calls(), 0);
    let outcome = grpc::call(caller.ports.grpc, COUNT, &[CALLEE], &[b""]).await;
    assert_eq!(outcome.messages, ["1"]);
}

#[tokio::test]
async fn proxies_only_to_own_app() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (between, callee) = pair(&net, &app).await;
    let port = between.ports.internal;
    for metadata in [
        &[("dapr-callee-app-id", "callee")][..],
        &[("dapr-app-id", "callee")],
        &[("dapr-app-id", "caller"), ("dapr-callee-app-id", "callee")],
        &[("dapr-callee-app-id", "caller.other")],
        &[("dapr-app-id", "nobody")],
    ] {
        let outcome = grpc::call(port, COUNT, metadata, &[b""]).await;
        assert_eq!(
            outcome.status.code(),
            Code::PermissionDenied,
            "{metadata:?}: {:?}",
            outcome.status
        );
        let message = outcome.status.message();
        assert!(message.contains("only for caller"), "{message}");
    }
    assert_eq!(app.calls(), 0);
    let metadata = [("dapr-callee-app-id", "callee")];
    let outcome = grpc::call(callee.ports.internal, COUNT, &metadata, &[b""]).await;
    assert_eq!(outcome.messages, ["1"]);
}
