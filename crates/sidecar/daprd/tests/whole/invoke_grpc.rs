//! Calls with gRPC on one side or both, and the mapping between gRPC and HTTP.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::Response;
use outrigger_transport::body::Body;
use outrigger_wire::common::v1::http_extension::Verb;
use outrigger_wire::common::v1::{InvokeRequest, InvokeResponse};
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::common::{App, Net, Node, app, get, grpc, post, request};

/// A gRPC app that records invocations and answers them with `answer`.
struct GrpcApp {
    app: App,
    invocations: Arc<Mutex<Vec<InvokeRequest>>>,
}

impl GrpcApp {
    async fn start(answer: impl Fn(&InvokeRequest) -> Response<Body> + Send + Sync + 'static) -> Self {
        let invocations = Arc::<Mutex<Vec<InvokeRequest>>>::default();
        let kept = Arc::clone(&invocations);
        let answer = Arc::new(answer);
        let app = App::start(move |request| {
            let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
            async move {
                let invocation = grpc::on_invoke(request).await;
                kept.lock().unwrap().push(invocation.clone());
                answer(&invocation)
            }
        })
        .await;
        Self { app, invocations }
    }

    fn last(&self) -> InvokeRequest {
        self.invocations.lock().unwrap().pop().expect("an invocation")
    }

    async fn pair(&self, net: &Net) -> (Node, Node) {
        let callee = net
            .sidecar("callee")
            .app(self.app.port)
            .flag("--app-protocol=grpc");
        let callee = callee.start().await;
        (net.sidecar("caller").start().await, callee)
    }
}

fn data(response: &InvokeResponse) -> &str {
    std::str::from_utf8(&response.data.as_ref().unwrap().value).unwrap()
}

fn quota_status() -> Status {
    let details =
        ErrorDetails::with_error_info("QUOTA", "shop.example", [("left".to_owned(), "0".to_owned())]);
    Status::with_error_details(Code::ResourceExhausted, "no more", details)
}

#[tokio::test]
async fn calls_http_app_over_grpc() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let mut response = app::echo(request).await;
        *response.status_mut() = http::StatusCode::CREATED;
        let headers = response.headers_mut();
        headers.insert("x-answer", "42".parse().unwrap());
        headers.insert("cache-control", "no-store".parse().unwrap());
        response
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let metadata = [("x-asked", "yes"), ("x-data-bin", "AQID")];
    let mut message = grpc::invocation("callee", "/orders/./7", Verb::Put, "hello");
    let extension = message.message.as_mut().unwrap().http_extension.as_mut().unwrap();
    extension.querystring = "a=1&b=2".to_owned();
    let outcome = grpc::unary(caller.ports.grpc, grpc::INVOKE_SERVICE, &metadata, &message).await;
    let response: InvokeResponse = outcome.message();
    assert_eq!(
        (data(&response), response.content_type.as_str()),
        ("hello", "text/plain")
    );
    assert_eq!(outcome.header("dapr-http-status"), Some("201"));
    assert_eq!(outcome.header("x-answer"), Some("42"));
    assert_eq!(outcome.header("dapr-cache-control"), Some("no-store"));
    let seen = app.last();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("PUT", "/orders/7?a=1&b=2")
    );
    assert_eq!(seen.header("x-asked"), Some("yes"));
    assert_eq!(seen.header("content-type"), Some("text/plain"));
    assert_eq!(seen.header("dapr-caller-app-id"), Some("caller"));
    assert!(
        !seen.headers.contains_key("x-data-bin"),
        "binary metadata stays out of HTTP"
    );
    assert!(!seen.headers.contains_key("te"));
}

#[tokio::test]
async fn maps_http_failure_to_status() {
    let net = Net::plain();
    let words = "out of stock, and this sentence is longer than what a status carries of it";
    let app = App::start(move |request| async move {
        let code = request
            .uri()
            .path()
            .trim_start_matches('/')
            .parse()
            .unwrap_or(404);
        let mut response = app::text(code, words);
        for (name, value) in [("content-type", "text/plain"), ("x-said", "the app")] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    for (http, code, phrase) in [
        (400, Code::Internal, "Bad Request"),
        (302, Code::Unknown, "Found"),
        (401, Code::Unauthenticated, "Unauthorized"),
        (403, Code::PermissionDenied, "Forbidden"),
        (404, Code::NotFound, "Not Found"),
        (408, Code::Cancelled, "Request Timeout"),
        (409, Code::AlreadyExists, "Conflict"),
        (418, Code::Unknown, "I'm a teapot"),
        (429, Code::ResourceExhausted, "Too Many Requests"),
        (500, Code::Unknown, "Internal Server Error"),
        (501, Code::Unimplemented, "Not Implemented"),
        (503, Code::Unavailable, "Service Unavailable"),
        (504, Code::DeadlineExceeded, "Gateway Timeout"),
    ] {
        let outcome = grpc::invoke(caller.ports.grpc, "callee", &http.to_string(), &[], "").await;
        assert_eq!(outcome.status.code(), code, "{http}: {:?}", outcome.status);
        assert_eq!(outcome.status.message(), phrase);
        let info = outcome.error_info();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (phrase, "dapr.io"));
        assert_eq!(info.metadata["http.code"], http.to_string());
        assert_eq!(info.metadata["http.error_message"], words[..63]);
        // SDKs read these before the status.
        assert!(!outcome.headers.contains_key("grpc-status"));
        assert_eq!(outcome.header("dapr-http-status"), Some(&*http.to_string()));
        assert_eq!(outcome.header("dapr-content-type"), Some("text/plain"));
        assert_eq!(outcome.header("x-said"), Some("the app"));
        assert!(outcome.header("traceparent").is_some());
        assert_eq!(outcome.trailer("dapr-http-status"), None);
    }
}

#[tokio::test]
async fn grpc_keeps_types_metadata_and_trailers() {
    let net = Net::plain();
    let app = GrpcApp::start(|_| {
        let answer = InvokeResponse {
            data: Some(Any {
                type_url: "type.example/Answer".to_owned(),
                value: b"done".to_vec(),
            }),
            content_type: "application/x-answer".to_owned(),
        };
        grpc::response(
            &[("x-head", "1"), ("x-head-bin", "AQID")],
            &[&answer.encode_to_vec()],
            &[("grpc-status", "0"), ("x-tail", "2")],
        )
    })
    .await;
    let (caller, _callee) = app.pair(&net).await;
    let mut message = grpc::invocation("callee", "do/it", Verb::None, "");
    let request = message.message.as_mut().unwrap();
    request.data = Some(Any {
        type_url: "type.example/Question".to_owned(),
        value: b"raw \0 bytes".to_vec(),
    });
    let raw = STANDARD_NO_PAD.encode([1_u8, 2, 3, 4]);
    let metadata = [("x-plain", "p"), ("x-raw-bin", raw.as_str())];
    let outcome = grpc::unary(caller.ports.grpc, grpc::INVOKE_SERVICE, &metadata, &message).await;
    let response: InvokeResponse = outcome.message();
    assert_eq!(data(&response), "done");
    assert_eq!(response.data.unwrap().type_url, "type.example/Answer");
    assert_eq!(response.content_type, "application/x-answer");
    assert_eq!(outcome.header("x-head"), Some("1"));
    assert_eq!(
        outcome.header("x-head-bin").map(|v| v.trim_end_matches('=')),
        Some("AQID")
    );
    assert_eq!(outcome.trailer("x-tail"), Some("2"));
    assert!(!outcome.headers.contains_key("dapr-http-status"));
    let invocation = app.last();
    assert_eq!(invocation.method, "do/it");
    let data = invocation.data.unwrap();
    assert_eq!(
        (data.type_url.as_str(), &*data.value),
        ("type.example/Question", &b"raw \0 bytes"[..])
    );
    let seen = app.app.last();
    assert_eq!(seen.header("x-plain"), Some("p"));
    let sent = seen.header("x-raw-bin").unwrap();
    assert_eq!(
        STANDARD_NO_PAD.decode(sent.trim_end_matches('=')).unwrap(),
        [1, 2, 3, 4]
    );
    assert_eq!(seen.header("dapr-caller-app-id"), Some("caller"));
}

#[tokio::test]
async fn grpc_failure_keeps_details() {
    let net = Net::plain();
    let app = GrpcApp::start(|_| {
        let mut trailers = http::HeaderMap::new();
        quota_status().add_header(&mut trailers).unwrap();
        for (name, value) in [("x-both", "late"), ("x-tail", "1"), ("x-tail", "2")] {
            trailers.append(name, value.parse().unwrap());
        }
        let mut response = Response::new(Body::trailed(bytes::Bytes::new(), trailers));
        for (name, value) in [("content-type", "application/grpc"), ("x-both", "early")] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let (caller, callee) = app.pair(&net).await;
    for (node, id) in [(&caller, "callee"), (&callee, "callee")] {
        let outcome = grpc::invoke(node.ports.grpc, id, "buy", &[], "").await;
        assert_eq!(outcome.header("x-both"), Some("early"));
        assert_eq!(outcome.trailer("x-both"), Some("late"));
        assert_eq!(outcome.header("x-tail"), None);
        let tail: Vec<_> = outcome.trailers.get_all("x-tail").iter().collect();
        assert_eq!(tail, ["1", "2"]);
        assert_eq!(outcome.status.code(), Code::ResourceExhausted);
        assert_eq!(outcome.status.message(), "no more");
        let info = outcome.error_info();
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("QUOTA", "shop.example")
        );
        assert_eq!(info.metadata["left"], "0");
    }
}

#[tokio::test]
async fn calls_grpc_app_over_http() {
    let net = Net::plain();
    let app = GrpcApp::start(|invocation| {
        let body = invocation.data.as_ref().unwrap().value.clone();
        let answer = grpc::invoked(std::str::from_utf8(&body).unwrap(), "text/csv");
        grpc::response(
            &[("x-head", "1")],
            &[&answer.encode_to_vec()],
            &[("grpc-status", "0")],
        )
    })
    .await;
    let (caller, _callee) = app.pair(&net).await;
    let sent = request(
        "PATCH",
        "/v1.0/invoke/callee/method/a%2Fb?c=d",
        &[
            "content-type: text/csv",
            "x-asked: yes",
            "accept: text/*",
            "connection: x-b",
            "x-b: 1",
        ],
        "1,2,3",
    );
    let answer = caller.ask(sent).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "1,2,3"));
    assert_eq!(answer.header("content-type"), Some("text/csv"));
    assert_eq!(answer.header("x-head"), Some("1"));
    let invocation = app.last();
    assert_eq!(invocation.method, "a/b");
    assert_eq!(invocation.content_type, "text/csv");
    let extension = invocation.http_extension.unwrap();
    assert_eq!(
        (extension.verb(), extension.querystring.as_str()),
        (Verb::Patch, "c=d")
    );
    let seen = app.app.last();
    assert_eq!(seen.header("x-asked"), Some("yes"));
    assert!(!seen.headers.contains_key("x-b"));
    assert_eq!(seen.header("content-type"), Some("application/grpc"));
}

#[tokio::test]
async fn maps_grpc_failure_to_json() {
    let net = Net::plain();
    let app = GrpcApp::start(|invocation| match invocation.method.as_str() {
        "quota" => grpc::failure(&quota_status()),
        code => grpc::failure(&Status::new(Code::from(code.parse::<i32>().unwrap()), "why")),
    })
    .await;
    let (caller, _callee) = app.pair(&net).await;
    for (code, http) in [
        (1, 408),
        (2, 500),
        (3, 400),
        (4, 504),
        (5, 404),
        (6, 409),
        (7, 403),
        (8, 429),
        (9, 400),
        (10, 409),
        (11, 400),
        (12, 501),
        (13, 500),
        (14, 503),
        (15, 500),
        (16, 401),
    ] {
        // gRPC apps have no event streams, so this header makes no difference.
        for accept in ["accept: */*", "accept: text/event-stream"] {
            let path = format!("/v1.0/invoke/callee/method/{code}");
            let answer = caller.ask(request("GET", &path, &[accept], Body::Empty)).await;
            assert_eq!(answer.status, http, "{code}, {accept}: {}", answer.text());
            assert_eq!(answer.json(), serde_json::json!({"code": code, "message": "why"}));
        }
    }
    let answer = caller.ask(post("/v1.0/invoke/callee/method/quota", "x")).await;
    assert_eq!(answer.status, 429);
    let expected = serde_json::json!({
        "code": 8, "message": "no more", "details": [{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "QUOTA", "domain": "shop.example", "metadata": {"left": "0"},
        }],
    });
    assert_eq!(answer.json(), expected);
}

#[tokio::test]
async fn calls_apps_over_tls() {
    let net = Net::plain();
    let app = App::start_tls(|request| async move {
        let invocation = grpc::on_invoke(request).await;
        grpc::ok(&grpc::invoked(&invocation.method, ""))
    })
    .await;
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpcs");
    let _callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    let response: InvokeResponse = grpc::invoke(caller.ports.grpc, "callee", "over/tls", &[], "")
        .await
        .message();
    assert_eq!(data(&response), "over/tls");
    assert_eq!(caller.ask(get("/v1.0/invoke/callee/method/m")).await.text(), "m");
}

#[tokio::test]
async fn invalid_targets_have_contract_errors() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let outcome = grpc::invoke(caller.ports.grpc, "nobody", "m", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
    let message = outcome.status.message();
    assert!(
        message.starts_with("failed to invoke, id: nobody, err: "),
        "{message}"
    );
    // An HTTP app cannot be called without a verb.
    let message = grpc::invocation("callee", "m", Verb::None, "");
    let outcome = grpc::unary(caller.ports.grpc, grpc::INVOKE_SERVICE, &[], &message).await;
    assert!(
        outcome.status.message().contains("invalid HTTP verb"),
        "{:?}",
        outcome.status
    );
    assert_eq!(app.calls(), 0);
    // Large payloads are limited by the message size only.
    let large = "x".repeat(5 << 20);
    let outcome = grpc::invoke(caller.ports.grpc, "callee", "m", &[], &large).await;
    assert_ne!(outcome.status.code(), Code::Ok);
    assert_eq!(app.calls(), 0);
    // Binary metadata that is not valid base64 does not fail the call.
    let outcome = grpc::invoke(caller.ports.grpc, "callee", "m", &[("x-bin", "!")], "fine").await;
    let response: InvokeResponse = outcome.message();
    assert_eq!(data(&response), "fine");
}

#[tokio::test]
async fn renames_standard_headers_for_grpc_app() {
    let net = Net::plain();
    let app = GrpcApp::start(|_| grpc::ok(&grpc::invoked("done", ""))).await;
    let (caller, callee) = app.pair(&net).await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let sent = || {
        let traceparent = format!("traceparent: {parent}");
        let headers = [
            "accept: text/plain",
            "cookie: a=1",
            "content-type: text/csv",
            "x-own: 1",
            "grpc-timeout: 1n",
            "x-good-bin: AQI",
            "x-bad-bin: not base64!",
            &traceparent,
            "tracestate: vendor=1",
        ];
        request("POST", "/v1.0/invoke/callee/method/m", &headers, "1,2,3")
    };
    for node in [&caller, &callee] {
        let answer = node.ask(sent()).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "done"));
        let seen = app.app.last();
        for (name, value) in [
            ("dapr-accept", "text/plain"),
            ("dapr-cookie", "a=1"),
            ("dapr-content-type", "text/csv"),
            ("dapr-content-length", "5"),
            ("content-type", "application/grpc"),
            ("x-own", "1"),
            ("tracestate", "vendor=1"),
        ] {
            assert_eq!(seen.header(name), Some(value), "{name}");
        }
        assert_eq!(
            seen.header("x-good-bin").map(|v| v.trim_end_matches('=')),
            Some("AQI")
        );
        assert!(
            seen.header("traceparent")
                .unwrap()
                .contains("0af7651916cd43dd8448eb211c80319c")
        );
        for name in ["accept", "cookie", "content-length", "grpc-timeout", "x-bad-bin"] {
            assert_eq!(seen.header(name), None, "{name}");
        }
    }
}

#[tokio::test]
async fn accepts_grpc_body_from_http_caller() {
    let net = Net::plain();
    let app = GrpcApp::start(|_| grpc::ok(&grpc::invoked("done", ""))).await;
    let (caller, callee) = app.pair(&net).await;
    for node in [&caller, &callee] {
        let headers = ["content-type: application/grpc", "cookie: a=1"];
        let sent = request("POST", "/v1.0/invoke/callee/method/m", &headers, "1");
        assert_eq!(node.ask(sent).await.status, 200);
        let seen = app.app.last();
        assert_eq!(seen.header("dapr-content-type"), Some("application/grpc"));
        assert_eq!(seen.header("dapr-content-length"), Some("1"));
        assert_eq!(
            (seen.header("dapr-cookie"), seen.header("cookie")),
            (Some("a=1"), None)
        );
        // gRPC callers keep the names.
        grpc::invoke(node.ports.grpc, "callee", "m", &[("cookie", "a=1")], "").await;
        let seen = app.app.last();
        assert_eq!(
            (seen.header("dapr-cookie"), seen.header("cookie")),
            (None, Some("a=1"))
        );
        assert_eq!(seen.header("dapr-content-type"), None);
    }
}

#[tokio::test]
async fn drops_invalid_binary_header() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let mut response = app::echo(request).await;
        for (name, value) in [("x-bad-bin", "!"), ("x-good-bin", "AQI="), ("x-own", "1")] {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let (caller, callee) = net.pair(app.port).await;
    for node in [&caller, &callee] {
        let outcome = grpc::invoke(node.ports.grpc, "callee", "m", &[], "fine").await;
        let response: InvokeResponse = outcome.message();
        assert_eq!(data(&response), "fine");
        assert_eq!(
            outcome.header("x-good-bin").map(|v| v.trim_end_matches('=')),
            Some("AQI")
        );
        assert_eq!(
            (outcome.header("x-own"), outcome.header("x-bad-bin")),
            (Some("1"), None)
        );
    }
}
