//! Access to the APIs, and their limits.

mod heads;

#[cfg(target_os = "linux")]
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::BodyExt;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1::{GetBulkStateRequest, GetMetadataResponse};
use tonic::Code;

use crate::common::client::{self, absolute, http2_client, raw};
use crate::common::{Answer, App, Net, app, eventually, fed, get, grpc, post, request, within};

const GET_METADATA: &str = "/dapr.proto.runtime.v1.Dapr/GetMetadata";

#[tokio::test]
async fn requires_and_strips_api_token() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let caller = net
        .sidecar("caller")
        .env("DAPR_API_TOKEN", "secret")
        .start()
        .await;
    let target = "/v1.0/invoke/callee/method/m";
    for headers in [
        &[][..],
        &["dapr-api-token: wrong"],
        &["dapr-api-token: secret2"],
        &["dapr-api-token: "],
    ] {
        for path in [target, "/v1.0/metadata", "/nowhere"] {
            let answer = caller.ask(request("GET", path, headers, Body::Empty)).await;
            assert_eq!(answer.status, 401, "{headers:?} {path}");
            assert_eq!(answer.text().trim_end(), "invalid api token");
            assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        }
    }
    assert_eq!(app.calls(), 0);
    let answer = caller
        .ask(request("GET", target, &["dapr-api-token: secret"], Body::Empty))
        .await;
    assert_eq!(answer.status, 200);
    assert!(!app.last().headers.contains_key("dapr-api-token"));
    for path in ["/v1.0/healthz", "/v1.0/healthz/outbound"] {
        assert_eq!(caller.ask(get(path)).await.status, 204, "{path} needs no token");
    }
    drop(callee);
}

/// Local clients may use all of 127.0.0.0/8.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn listens_on_configured_addresses() {
    let net = Net::plain();
    let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
    let reaches = async |address: Ipv4Addr, port: u16| {
        let connecting = tokio::net::TcpStream::connect((address, port));
        connecting.await.map(drop).map_err(|error| error.kind())
    };
    let told = net.sidecar("told").flag("--dapr-listen-addresses=127.0.0.1");
    let told = told.start().await;
    for port in [told.ports.http, told.ports.grpc] {
        assert_eq!(reaches(Ipv4Addr::LOCALHOST, port).await, Ok(()));
        let refused = Err(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(reaches(elsewhere, port).await, refused);
    }
    // As without the flag.
    let untold = net.sidecar("untold").flag("--dapr-listen-addresses=");
    let untold = untold.start().await;
    for port in [untold.ports.http, untold.ports.grpc] {
        assert_eq!(reaches(elsewhere, port).await, Ok(()));
    }
}

#[tokio::test]
async fn requires_api_token_over_grpc() {
    let net = Net::plain();
    let node = net
        .sidecar("caller")
        .env("DAPR_API_TOKEN", "secret")
        .start()
        .await;
    let proxied = "/shop.v1.Orders/Get";
    for (metadata, reason) in [
        (&[][..], "missing api token in request metadata"),
        (
            &[("dapr-api-token", "wrong")],
            "authentication error: api token mismatch",
        ),
    ] {
        for method in [GET_METADATA, grpc::INVOKE_SERVICE, proxied] {
            let outcome = grpc::call(node.ports.grpc, method, metadata, &[b""]).await;
            assert_eq!(outcome.status.code(), Code::Unauthenticated, "{method}");
            assert_eq!(outcome.status.message(), "Unauthorized");
            let info = outcome.error_info();
            assert_eq!(
                (info.reason.as_str(), info.domain.as_str()),
                ("Unauthorized", "dapr.io")
            );
            assert_eq!(info.metadata["http.code"], "401");
            assert_eq!(info.metadata["http.error_message"], reason);
        }
    }
    let right = [("dapr-api-token", "secret")];
    let outcome = grpc::call(node.ports.grpc, GET_METADATA, &right, &[b""]).await;
    assert_eq!(outcome.message::<GetMetadataResponse>().id, "caller");
}

#[tokio::test]
async fn sends_app_token() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .env("APP_API_TOKEN", "for the app");
    let callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    for node in [&caller, &callee] {
        let sent = request(
            "GET",
            "/v1.0/invoke/callee/method/m",
            &["dapr-api-token: forged"],
            Body::Empty,
        );
        assert_eq!(node.ask(sent).await.status, 200);
        assert_eq!(app.last().all("dapr-api-token"), ["for the app"]);
    }
    let grpc_app = App::start(|_| async { grpc::response(&[], &[b""], &[("grpc-status", "0")]) }).await;
    let other = net
        .sidecar("other")
        .app(grpc_app.port)
        .flag("--app-protocol=grpc");
    let _other = other.env("APP_API_TOKEN", "for the app").start().await;
    let metadata = [("dapr-app-id", "other"), ("dapr-api-token", "forged")];
    let outcome = grpc::call(caller.ports.grpc, "/shop.v1.Orders/Get", &metadata, &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Ok);
    assert_eq!(grpc_app.last().all("dapr-api-token"), ["for the app"]);
}

#[tokio::test]
async fn disables_denied_apis() {
    let net = Net::plain();
    let node = net
        .sidecar("caller")
        .spec("  api:\n    denied:\n    - {name: invoke, version: v1, protocol: http}\n    - {name: metadata, version: v1, protocol: grpc}")
        .start()
        .await;
    let answer = node.ask(get("/v1.0/invoke/callee/method/m")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text().trim_end()),
        (404, "404 page not found")
    );
    let by_header = request("GET", "/m", &["dapr-app-id: callee"], Body::Empty);
    assert_eq!(node.ask(by_header).await.status, 404);
    assert_eq!(node.ask(get("/v1.0/metadata")).await.status, 200);
    let outcome = grpc::call(node.ports.grpc, GET_METADATA, &[], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Unimplemented);
    let info = outcome.error_info();
    assert_eq!(
        info.metadata["http.error_message"],
        "requested endpoint is not available"
    );
}

#[tokio::test]
async fn enables_only_allowed_apis() {
    let net = Net::plain();
    let node = net
        .sidecar("caller")
        .spec("  api:\n    allowed:\n    - {name: invoke, version: v1, protocol: http}\n    - {name: invoke, version: v1, protocol: grpc}")
        .start()
        .await;
    node.ask(get("/v1.0/metadata"))
        .await
        .error(404, "ERR_DIRECT_INVOKE");
    node.ask(get("/v1.0/invoke/nobody/method/m"))
        .await
        .error(500, "ERR_DIRECT_INVOKE");
    assert_eq!(
        node.ask(get("/v1.0/healthz")).await.status,
        204,
        "health cannot be hidden"
    );
    let outcome = grpc::call(node.ports.grpc, GET_METADATA, &[], &[b""]).await;
    assert_eq!(outcome.status.code(), Code::Unimplemented);
    let outcome = grpc::invoke(node.ports.grpc, "nobody", "m", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
}

#[tokio::test]
async fn applies_cors() {
    let net = Net::plain();
    let node = net
        .sidecar("caller")
        .flag("--allowed-origins=https://shop.example,https://*.test.example")
        .start()
        .await;
    let preflight = |origin: &str| {
        let origin = format!("origin: {origin}");
        let headers = [
            origin.as_str(),
            "access-control-request-method: PUT",
            "access-control-request-headers: x-a, content-type",
        ];
        request("OPTIONS", "/v1.0/metadata", &headers, Body::Empty)
    };
    for origin in ["https://shop.example", "https://a.test.example"] {
        let answer = node.ask(preflight(origin)).await;
        assert!(answer.status.is_success(), "{}", answer.status);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
        assert_eq!(answer.header("access-control-allow-methods"), Some("PUT"));
        assert!(answer.headers.contains_key("access-control-allow-headers"));
        let header = format!("origin: {origin}");
        let answer = node
            .ask(request("GET", "/v1.0/metadata", &[&header], Body::Empty))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
    }
    // The response depends on the origin, also for requests without one or with another.
    for headers in [&[][..], &["origin: https://evil.example"]] {
        let answer = node
            .ask(request("GET", "/v1.0/metadata", headers, Body::Empty))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("vary"), Some("Origin"), "{headers:?}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let lower = [
        "origin: https://shop.example",
        "access-control-request-method: patch",
    ];
    let answer = node
        .ask(request("OPTIONS", "/v1.0/metadata", &lower, Body::Empty))
        .await;
    assert_eq!(answer.header("access-control-allow-methods"), Some("PATCH"));
    // Without a method it is not a preflight.
    let none = ["origin: https://shop.example", "access-control-request-method: "];
    let answer = node
        .ask(request("OPTIONS", "/v1.0/metadata", &none, Body::Empty))
        .await;
    answer.error(404, "ERR_DIRECT_INVOKE");
    for origin in ["https://evil.example", "https://shop.example.evil", "null"] {
        let answer = node.ask(preflight(origin)).await;
        assert!(
            !answer.headers.contains_key("access-control-allow-origin"),
            "{origin}"
        );
    }
    // So do requests that are refused first of all.
    let traced = net
        .sidecar("traced")
        .flag("--allowed-origins=https://shop.example")
        .spec("  tracing:\n    samplingRate: \"1\"")
        .start()
        .await;
    for (method, target, header, status) in [
        ("PROPFIND", "/v1.0/metadata", "x-a: b", 501),
        ("OPTIONS", "*", "x-a: b", 404),
    ] {
        let asked = |headers: &[&str]| traced.ask(request(method, target, headers, Body::Empty));
        let answer = asked(&[header, "origin: https://shop.example"]).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("vary")),
            (status, Some("Origin"))
        );
        assert_eq!(
            answer.header("access-control-allow-origin"),
            Some("https://shop.example")
        );
        let answer = asked(&[header]).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("vary")),
            (status, Some("Origin"))
        );
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    let open = net.sidecar("open").flag("--allowed-origins=*").start().await;
    let answer = open.ask(preflight("https://anything.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    // Without the flag, responses have no CORS headers.
    let off = net.sidecar("off").start().await;
    let answer = off
        .ask(request(
            "GET",
            "/v1.0/metadata",
            &["origin: https://a.example"],
            Body::Empty,
        ))
        .await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn refuses_oversized_bodies() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        match request.into_body().collect().await {
            Ok(body) => app::text(200, &body.to_bytes().len().to_string()),
            Err(_) => app::text(400, "cut off"),
        }
    })
    .await;
    let callee = net.sidecar("callee").app(app.port).flag("--max-body-size=1Mi");
    let callee = callee.start().await;
    let caller = net.sidecar("caller").flag("--max-body-size=1Mi").start().await;
    let target = "/v1.0/invoke/callee/method/m";
    let limit = 1 << 20;
    let answer = caller.ask(post(target, "x".repeat(limit))).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, &*limit.to_string())
    );
    let answer = caller.ask(post(target, "x".repeat(limit + 1))).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(
        message.contains("stream too large: more than 1048576 bytes"),
        "{message}"
    );
    let (sender, body) = fed();
    tokio::spawn(async move {
        // The sidecar may stop reading at any time.
        while sender.send(Ok(vec![b'x'; 64 * 1024].into())).await.is_ok() {}
    });
    if let Ok(response) = client::send(caller.ports.http, post(target, body)).await {
        assert_eq!(response.status(), 500);
    }
    let small = net.sidecar("small").flag("--max-body-size=100").start().await;
    let answer = small
        .ask(request("PUT", "/v1.0/metadata/key", &[], "x".repeat(101)))
        .await;
    answer.error(400, "ERR_BODY_READ");
    drop(callee);
}

#[tokio::test]
async fn passes_body_at_limit() {
    let net = Net::plain();
    let app = App::echo().await;
    for limit in [100, 16 * 1024, 64 * 1024] {
        let flag = format!("--max-body-size={limit}");
        let callee = net.sidecar(&format!("callee-{limit}")).app(app.port).flag(&flag);
        let callee = callee.start().await;
        let caller = net.sidecar(&format!("caller-{limit}")).flag(&flag).start().await;
        let target = format!("/v1.0/invoke/callee-{limit}/method/m");
        let answer = caller.ask(post(&target, "x".repeat(limit))).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (200, limit));
        drop(callee);
    }
}

#[tokio::test]
async fn concurrency_limit_covers_whole_body() {
    let net = Net::plain();
    let (sender, body) = fed();
    let stream = std::sync::Mutex::new(Some(body));
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let app = App::start(move |request| {
        let stream = match request.uri().path() {
            "/stream" => stream.lock().unwrap().take(),
            _ => None,
        };
        let others = if is_over.load(Ordering::SeqCst) {
            "next"
        } else {
            "too early"
        };
        async move { http::Response::new(stream.unwrap_or_else(|| others.into())) }
    })
    .await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--app-max-concurrency=1");
    let callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    sender.send(Ok("begun".into())).await.unwrap();
    let mut open = caller
        .send(get("/v1.0/invoke/callee/method/stream"))
        .await
        .into_body();
    assert_eq!(
        within(open.frame()).await.unwrap().unwrap().into_data().unwrap(),
        "begun"
    );
    // The head is sent, the body is not: other calls wait, whatever their source.
    let others: Vec<_> = [caller.ports.http, callee.ports.http]
        .into_iter()
        .map(|port| {
            tokio::spawn(async move {
                let response = client::send(port, get("/v1.0/invoke/callee/method/m")).await;
                Answer::read(response.unwrap()).await.text().to_owned()
            })
        })
        .collect();
    let received = "dapr_runtime_service_invocation_req_recv_total";
    callee.counts(received, &["src_app_id=\"caller\""], 2.0).await;
    assert_eq!(app.calls(), 1);
    over.store(true, Ordering::SeqCst);
    drop(sender);
    assert!(within(open.frame()).await.is_none());
    for call in others {
        assert_eq!(within(call).await.unwrap(), "next");
    }
    eventually(async || app.calls() == 3).await;
}

#[tokio::test]
async fn failed_calls_release_slot() {
    let net = Net::plain();
    let app = App::echo().await;
    let port = app.port;
    let callee = net
        .sidecar("callee")
        .app(port)
        .flag("--app-max-concurrency=1")
        .start()
        .await;
    let caller = net.sidecar("caller").start().await;
    let call = async || {
        caller
            .ask(post("/v1.0/invoke/callee/method/m", "x"))
            .await
            .status
            .as_u16()
    };
    assert_eq!(call().await, 200);
    app.stop().await;
    for _ in 0..3 {
        assert_eq!(call().await, 500);
    }
    // A client that disconnects while its call waits or runs releases its slot.
    let app = App::listen(port, |request| async move {
        if request.uri().path() == "/stuck" {
            std::future::pending::<()>().await;
        }
        app::text(200, "")
    })
    .await;
    for expected in 1..=3 {
        let http = caller.ports.http;
        let stuck = tokio::spawn(async move {
            client::send(http, get("/v1.0/invoke/callee/method/stuck"))
                .await
                .map(|_| ())
        });
        eventually(async || app.calls() == expected).await;
        stuck.abort();
        assert!(stuck.await.unwrap_err().is_cancelled());
        // The next one starts as soon as the slot is free.
    }
    assert_eq!(call().await, 200);
    drop(callee);
}

#[tokio::test]
async fn refuses_messages_with_too_many_fields() {
    let net = Net::plain();
    let node = net.sidecar("a").start().await;
    let path = "/dapr.proto.runtime.v1.Dapr/GetBulkState";
    for (count, code) in [(131_072, Code::ResourceExhausted), (16, Code::FailedPrecondition)] {
        // The store does not exist, so decodable requests are refused for that reason.
        let request = GetBulkStateRequest {
            store_name: "none".to_owned(),
            keys: vec![String::new(); count],
            ..GetBulkStateRequest::default()
        };
        let outcome = grpc::unary(node.ports.grpc, path, &[], &request).await;
        assert_eq!(outcome.status.code(), code, "{count}: {}", outcome.status);
    }
}
