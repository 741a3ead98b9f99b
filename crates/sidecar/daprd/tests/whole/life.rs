//! Start, health, metadata and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use outrigger_sidecar::config::METADATA_VERSION;
use outrigger_sidecar::sidecar::SidecarError;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1::{GetMetadataResponse, SetMetadataRequest};
use serde_json::json;
use tonic::Code;

use crate::common::client::{self, with_host};
use crate::common::{Answer, App, Net, Node, app, eventually, fed, get, grpc, post, request, within};

const SET_METADATA: &str = "/dapr.proto.runtime.v1.Dapr/SetMetadata";

#[tokio::test]
async fn readiness_waits_for_app() {
    let net = Net::plain();
    let other = App::echo().await;
    let _callee = net.sidecar("callee").app(other.port).start().await;
    // A port that was free a moment ago.
    let place = App::echo().await;
    let port = place.port;
    place.stop().await;
    let node = net.sidecar("late").app(port).launch().await;
    eventually(async || node.ask(get("/v1.0/healthz/outbound")).await.status == 204).await;
    let message = node
        .ask(get("/v1.0/healthz"))
        .await
        .error(500, "ERR_HEALTH_NOT_READY");
    assert!(message.starts_with("dapr is not ready: ["), "{message}");
    assert_eq!(node.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
    let app = App::listen(port, app::echo).await;
    eventually(async || node.ask(get("/v1.0/healthz")).await.status == 204).await;
    assert_eq!(node.ask(get("/v1.0/healthz?appid=late")).await.status, 204);
    let answer = node.ask(get("/v1.0/healthz?appid=other")).await;
    answer.error(500, "ERR_HEALTH_APPID_NOT_MATCH");
    drop(app);
}

#[tokio::test]
async fn reads_and_sets_metadata() {
    let net = Net::plain();
    let app = App::echo().await;
    let endpoint = "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: outside\nspec:\n  \
                    baseUrl: http://127.0.0.1:1\n";
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag("--app-max-concurrency=7")
        .resource(endpoint)
        .start()
        .await;
    let put = request("PUT", "/v1.0/metadata/key%20one", &[], "value one");
    assert_eq!(node.ask(put).await.status, 204);
    let set = SetMetadataRequest {
        key: "two".into(),
        value: "value two".into(),
    };
    let outcome = grpc::unary(node.ports.grpc, SET_METADATA, &[], &set).await;
    assert_eq!(outcome.status.code(), Code::Ok);
    let answer = node.ask(get("/v1.0/metadata")).await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let metadata = answer.json();
    assert_eq!(metadata["id"], "me");
    assert_eq!(metadata["runtimeVersion"], METADATA_VERSION);
    assert_eq!(metadata["extended"]["daprRuntimeVersion"], METADATA_VERSION);
    assert_eq!(metadata["extended"]["key one"], "value one");
    assert_eq!(metadata["extended"]["two"], "value two");
    assert_eq!(metadata["httpEndpoints"], json!([{"name": "outside"}]));
    let connection = json!({
        "port": app.port, "protocol": "http", "channelAddress": "127.0.0.1", "maxConcurrency": 7,
    });
    assert_eq!(metadata["appConnectionProperties"], connection);
    assert_eq!(metadata["actorRuntime"]["runtimeStatus"], "DISABLED");
    assert_eq!(metadata["actorRuntime"]["placement"], "placement: disconnected");
    assert!(metadata.get("workflows").is_none());
    let outcome = grpc::call(
        node.ports.grpc,
        "/dapr.proto.runtime.v1.Dapr/GetMetadata",
        &[],
        &[b""],
    )
    .await;
    let message: GetMetadataResponse = outcome.message();
    assert_eq!(message.id, "me");
    assert_eq!(message.extended_metadata["key one"], "value one");
    assert_eq!(message.http_endpoints[0].name, "outside");
    assert_eq!(
        message.app_connection_properties.unwrap().port,
        i32::from(app.port)
    );
}

#[tokio::test]
async fn public_port_is_read_only() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .env("DAPR_API_TOKEN", "secret")
        .start()
        .await;
    let ask = async |r| Answer::read(client::send(node.ports.public, r).await.unwrap()).await;
    assert_eq!(ask(get("/v1.0/healthz")).await.status, 204);
    assert_eq!(ask(get("/v1.0/healthz/outbound")).await.status, 204);
    assert_eq!(ask(get("/v1.0/metadata")).await.json()["id"], "me");
    assert_eq!(ask(get("/v1.0/invoke/me/method/m")).await.status, 404);
    assert_eq!(ask(post("/v1.0/shutdown", "")).await.status, 404);
    let set = request("PUT", "/v1.0/metadata/key", &[], "value");
    assert_eq!(ask(set).await.status, 404);
    assert_eq!(
        ask(get("/v1.0/metadata")).await.json()["extended"].get("key"),
        None
    );
    assert_eq!(app.calls(), 0);
    assert!(!node.is_over());
}

/// An app whose calls stay open until the gate opens.
async fn slow_app() -> (tokio::sync::watch::Sender<bool>, App) {
    let (go, gate) = tokio::sync::watch::channel(false);
    let app = App::start(move |request| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/slow" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            app::text(200, "finished")
        }
    })
    .await;
    (go, app)
}

fn open_call(node: &Node, target: &'static str) -> tokio::task::JoinHandle<String> {
    let port = node.ports.http;
    tokio::spawn(async move {
        match client::send(port, post(target, "x")).await {
            Ok(response) => Answer::read(response).await.text().to_owned(),
            Err(error) => error.to_string(),
        }
    })
}

#[tokio::test]
async fn shutdown_lets_calls_finish() {
    let net = Net::plain();
    let (go, app) = slow_app().await;
    for ask in ["http", "grpc"] {
        go.send(false).unwrap();
        let calls = app.calls();
        let node = net
            .sidecar("me")
            .app(app.port)
            .flag("--dapr-graceful-shutdown-seconds=30");
        let node = node.start().await;
        let call = open_call(&node, "/v1.0/invoke/me/method/slow");
        eventually(async || app.calls() == calls + 1).await;
        if ask == "http" {
            assert_eq!(node.ask(post("/v1.0/shutdown", "")).await.status, 204);
        } else {
            let method = "/dapr.proto.runtime.v1.Dapr/Shutdown";
            let outcome = grpc::call(node.ports.grpc, method, &[], &[b""]).await;
            assert_eq!(outcome.status.code(), Code::Ok);
        }
        let port = node.ports.http;
        eventually(async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
        assert!(!node.is_over(), "a call is open");
        go.send(true).unwrap();
        assert_eq!(within(call).await.unwrap(), "finished");
        node.ended().await.unwrap();
    }
}

#[tokio::test]
async fn grace_period_ends_open_stream() {
    let net = Net::plain();
    let (sender, body) = fed();
    let stream = std::sync::Mutex::new(Some(body));
    let app = App::start(move |request| {
        let stream = match request.uri().path() {
            "/stream" => stream.lock().unwrap().take(),
            _ => None,
        };
        async move { http::Response::new(stream.unwrap_or_default()) }
    })
    .await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag("--dapr-graceful-shutdown-seconds=1");
    let node = node.start().await;
    sender.send(Ok("begun".into())).await.unwrap();
    let mut open = node.send(get("/v1.0/invoke/me/method/stream")).await.into_body();
    within(open.frame()).await.unwrap().unwrap();
    let started = Instant::now();
    let ended = node.stop().await;
    assert!(matches!(ended, Err(SidecarError::GraceExceeded)), "{ended:?}");
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn metrics_outlive_data_plane() {
    let net = Net::plain();
    let mut node = net.sidecar("me").start().await;
    node.end_data_plane().await;
    let answer = within(client::send(node.ports.metrics, get("/metrics"))).await;
    assert_eq!(Answer::read(answer.unwrap()).await.status, 200);
}

#[tokio::test]
async fn blocked_shutdown_keeps_serving() {
    let net = Net::plain();
    let app = App::echo().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag("--dapr-block-shutdown-duration=4s");
    let node = node.start().await;
    let started = Instant::now();
    assert_eq!(node.ask(post("/v1.0/shutdown", "")).await.status, 204);
    for _ in 0..5 {
        let answer = node.ask(post("/v1.0/invoke/me/method/m", "still here")).await;
        assert_eq!(answer.text(), "still here");
    }
    node.ended().await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(4));
}

/// An app whose health the test controls.
async fn patient() -> (Arc<AtomicBool>, App) {
    let well = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&well);
    let app = App::start(move |request| {
        let status = match request.uri().path() {
            "/healthz" if !state.load(Ordering::SeqCst) => 503,
            _ => 200,
        };
        async move { app::text(status, "here") }
    })
    .await;
    (well, app)
}

/// One late response on a slow machine does not make the app unhealthy.
const PROBES: [&str; 4] = [
    "--enable-app-health-check",
    "--app-health-probe-interval=1",
    "--app-health-probe-timeout=1000",
    "--app-health-threshold=3",
];

#[tokio::test]
async fn unhealthy_app_ends_blocked_shutdown() {
    let net = Net::plain();
    let (well, app) = patient().await;
    let plan = net
        .sidecar("me")
        .app(app.port)
        .flag("--dapr-block-shutdown-duration=10m");
    let node = PROBES
        .iter()
        .fold(plan, |plan, flag| plan.flag(flag))
        .start()
        .await;
    eventually(async || node.ask(get("/v1.0/invoke/me/method/m")).await.status == 200).await;
    node.shutdown.begin();
    assert_eq!(node.ask(get("/v1.0/invoke/me/method/m")).await.status, 200);
    well.store(false, Ordering::SeqCst);
    node.ended().await.unwrap();
}

#[tokio::test]
async fn never_calls_unhealthy_app() {
    let net = Net::plain();
    let (well, app) = patient().await;
    let plan = net.sidecar("callee").app(app.port);
    let callee = PROBES
        .iter()
        .fold(plan, |plan, flag| plan.flag(flag))
        .start()
        .await;
    let caller = net.sidecar("caller").start().await;
    let call = async |node: &Node| node.ask(get("/v1.0/invoke/callee/method/m")).await;
    eventually(async || call(&caller).await.status == 200).await;
    well.store(false, Ordering::SeqCst);
    eventually(async || call(&caller).await.status == 500).await;
    let calls = app.calls();
    for node in [&caller, &callee] {
        let message = call(node).await.error(500, "ERR_DIRECT_INVOKE");
        assert!(message.contains("app is not in a healthy state"), "{message}");
    }
    assert_eq!(app.calls(), calls);
    assert_eq!(
        callee.ask(get("/v1.0/healthz")).await.status,
        204,
        "the sidecar itself is well"
    );
    well.store(true, Ordering::SeqCst);
    eventually(async || call(&caller).await.status == 200).await;
    let probes = "dapr_http_healthprobes_completed_count";
    assert!(callee.metric(probes, &["status=\"503\""]).await.unwrap() >= 1.0);
}

#[tokio::test]
async fn names_taken_port() {
    let net = Net::plain();
    let first = net.sidecar("first").start().await;
    let second = net
        .sidecar("second")
        .flag(&format!("--dapr-http-port={}", first.ports.http));
    let Err(error) = second.try_launch().await else {
        panic!("two servers on one port")
    };
    let text = error.to_string();
    assert!(text.contains(&first.ports.http.to_string()), "{text}");
    assert_eq!(first.ask(get("/v1.0/healthz")).await.status, 204);
}

#[tokio::test]
async fn serves_and_removes_unix_sockets() {
    let net = Net::plain();
    let app = App::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let flag = format!("--unix-domain-socket={}", folder.path().display());
    let node = net.sidecar("me").app(app.port).flag(&flag).launch().await;
    let socket = folder.path().join("dapr-me-http.socket");
    let ask = async |request| {
        let io = TokioIo::new(tokio::net::UnixStream::connect(&socket).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        Answer::read(sender.send_request(with_host(request)).await.unwrap()).await
    };
    eventually(async || ask(get("/v1.0/healthz")).await.status == 204).await;
    let answer = ask(post("/v1.0/invoke/me/method/m", Body::from("by socket"))).await;
    assert_eq!(answer.text(), "by socket");
    assert!(folder.path().join("dapr-me-grpc.socket").exists());
    node.stop().await.unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn limits_metadata_attributes() {
    let net = Net::plain();
    let node = net.sidecar("me").start().await;
    let set = async |key: &str, value: String| {
        let target = format!("/v1.0/metadata/{key}");
        node.ask(request("PUT", &target, &[], value)).await
    };
    assert_eq!(set("large", "x".repeat(16 * 1024)).await.status, 204);
    let refused = set("larger", "x".repeat(16 * 1024 + 1)).await;
    let message = refused.error(400, "ERR_BODY_READ");
    assert!(message.contains("at most 16384 bytes"), "{message}");
    let message = set(&"k".repeat(1025), String::new())
        .await
        .error(400, "ERR_BAD_REQUEST");
    assert!(message.contains("at most 1024 bytes"), "{message}");
    let mut kept = 0;
    while set(&format!("key{kept}"), "x".to_owned()).await.status == 204 {
        kept += 1;
        assert!(kept < 1000, "there is no end");
    }
    let message = set("another", String::new()).await.error(400, "ERR_BAD_REQUEST");
    assert!(message.contains("at most 256 metadata attributes"), "{message}");
    assert_eq!(set("key0", "again".to_owned()).await.status, 204);
    let message = SetMetadataRequest {
        key: "another".to_owned(),
        value: String::new(),
    };
    let outcome = grpc::unary(node.ports.grpc, SET_METADATA, &[], &message).await;
    assert_eq!(
        outcome.status.code(),
        Code::ResourceExhausted,
        "{:?}",
        outcome.status
    );
    let all = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(all["extended"]["key0"], "again");
    assert_eq!(all["extended"].as_object().unwrap().len(), 256);
}

#[tokio::test]
async fn clean_start_logs_no_warnings() {
    for net in [Net::plain(), Net::secure().await] {
        let process = net.sidecar("calm").spawn().await;
        eventually(async || process.log().contains("dapr initialized")).await;
        let log = process.log();
        let above: Vec<&str> = log
            .lines()
            .filter(|line| !line.contains(" level=info "))
            .collect();
        assert!(above.is_empty(), "{above:?}");
        let messages = log
            .lines()
            .filter_map(|line| line.split_once("msg=").map(|(_, rest)| rest));
        let messages: Vec<&str> = messages
            .filter_map(|rest| rest.split_once(" scope=").map(|(message, _)| message))
            .collect();
        let mut once = messages.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), messages.len(), "{messages:#?}");
    }
}
