//! Metrics after calls.

use http::Response;
use outrigger_transport::body::Body;

use crate::common::client::send;
use crate::common::{Answer, App, Net, Node, app, eventually, get, grpc, post};

async fn orders(request: http::Request<hyper::body::Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/missing" => app::text(404, "no"),
        _ => app::echo(request).await,
    }
}

#[tokio::test]
async fn counts_calls_on_both_sides() {
    let net = Net::secure().await;
    let app = App::start(orders).await;
    let (caller, callee) = net.pair(app.port).await;
    for _ in 0..3 {
        caller
            .ask(post("/v1.0/invoke/callee/method/orders/7", "12345"))
            .await;
    }
    caller.ask(get("/v1.0/invoke/callee/method/missing")).await;
    let path = "path=\"/v1.0/invoke/callee/method/orders/7\"";
    for (node, name, labels, value) in [
        (
            &caller,
            "dapr_http_server_request_count",
            &[path, "method=\"POST\"", "status=\"200\""][..],
            3.0,
        ),
        (
            &caller,
            "dapr_http_server_latency_count",
            &[path, "status=\"200\""],
            3.0,
        ),
        (
            &caller,
            "dapr_http_server_request_bytes_sum",
            &["app_id=\"caller\""],
            15.0,
        ),
        (
            &caller,
            "dapr_runtime_service_invocation_req_sent_total",
            &["dst_app_id=\"callee\"", "type=\"unary\"", "app_id=\"caller\""],
            4.0,
        ),
        (
            &caller,
            "dapr_runtime_service_invocation_res_recv_total",
            &["src_app_id=\"callee\"", "status=\"200\"", "type=\"unary\""],
            3.0,
        ),
        (
            &caller,
            "dapr_runtime_service_invocation_res_recv_total",
            &["src_app_id=\"callee\"", "status=\"404\""],
            1.0,
        ),
        (
            &caller,
            "dapr_runtime_service_invocation_res_recv_latency_ms_count",
            &["src_app_id=\"callee\"", "status=\"200\""],
            3.0,
        ),
        (
            &callee,
            "dapr_runtime_service_invocation_req_recv_total",
            &["src_app_id=\"caller\"", "app_id=\"callee\""],
            4.0,
        ),
        (
            &callee,
            "dapr_runtime_service_invocation_res_sent_total",
            &["dst_app_id=\"caller\"", "status=\"200\""],
            3.0,
        ),
        (
            &callee,
            "dapr_http_client_completed_count",
            &["method=\"POST\"", "path=\"/orders/7\"", "status=\"200\""],
            3.0,
        ),
        (
            &callee,
            "dapr_http_client_completed_count",
            &["path=\"/missing\"", "status=\"404\""],
            1.0,
        ),
        (
            &callee,
            "dapr_runtime_mtls_init_total",
            &["app_id=\"callee\""],
            1.0,
        ),
    ] {
        node.counts(name, labels, value).await;
    }
}

#[tokio::test]
async fn counts_grpc_calls_by_method_and_status() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        if request.uri().path() == grpc::ON_INVOKE {
            return grpc::ok(&grpc::invoked("done", ""));
        }
        grpc::response(&[], &[b""], &[("grpc-status", "5"), ("grpc-message", "no")])
    })
    .await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--app-protocol=grpc")
        .start()
        .await;
    let caller = net.sidecar("caller").start().await;
    grpc::invoke(caller.ports.grpc, "callee", "m", &[], "").await;
    grpc::invoke(caller.ports.grpc, "nobody", "m", &[], "").await;
    let proxied = "/shop.v1.Orders/Get";
    grpc::call(caller.ports.grpc, proxied, &[("dapr-app-id", "callee")], &[b""]).await;
    let invoke = "grpc_server_method=\"/dapr.proto.runtime.v1.Dapr/InvokeService\"";
    let counted = async |node: &Node, name, labels: &[&str]| node.counts(name, labels, 1.0).await;
    let name = "dapr_grpc_io_server_completed_rpcs";
    counted(&caller, name, &[invoke, "grpc_server_status=\"OK\""]).await;
    counted(&caller, name, &[invoke, "grpc_server_status=\"Internal\""]).await;
    let method = "grpc_server_method=\"/shop.v1.Orders/Get\"";
    counted(&caller, name, &[method, "grpc_server_status=\"NotFound\""]).await;
    let name = "dapr_grpc_io_client_completed_rpcs";
    let on_invoke = "grpc_client_method=\"/dapr.proto.runtime.v1.AppCallback/OnInvoke\"";
    counted(&callee, name, &[on_invoke, "grpc_client_status=\"OK\""]).await;
    counted(
        &caller,
        "dapr_runtime_service_invocation_req_sent_total",
        &["type=\"streaming\""],
    )
    .await;
}

#[tokio::test]
async fn configuration_limits_series() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let spec = "  metrics:\n    recordErrorCodes: true\n    latencyDistributionBuckets: [1, 10, 100]\n    http:\n      \
                increasedCardinality: false\n      pathMatching: [\"/orders/{id}\"]";
    let node = net.sidecar("me").app(app.port).spec(spec).start().await;
    for number in 0..5 {
        node.ask(get(&format!("/v1.0/invoke/me/method/orders/{number}")))
            .await;
    }
    node.ask(get("/v1.0/invoke/me/method/other/9")).await;
    node.ask(get("/nobody")).await;
    let count = "dapr_http_server_request_count";
    let matched = "path=\"/v1.0/invoke/{app_id}/method/orders/{id}\"";
    node.counts(count, &[matched, "status=\"200\""], 5.0).await;
    node.counts(count, &["path=\"\"", "status=\"404\""], 1.0).await;
    let answer = Answer::read(send(node.ports.metrics, get("/metrics")).await.unwrap()).await;
    assert!(!answer.text().contains("other/9"));
    assert!(!answer.text().contains("dapr_http_server_response_count"));
    let buckets = answer
        .text()
        .lines()
        .filter(|l| l.starts_with("dapr_http_server_latency_bucket") && l.contains(matched));
    assert_eq!(buckets.count(), 4, "three bounds and +Inf");
    let failed = [
        "error_code=\"ERR_DIRECT_INVOKE\"",
        "category=\"service-invocation\"",
    ];
    node.counts("dapr_error_code_total", &failed, 1.0).await;
}

#[tokio::test]
async fn disables_metric_families() {
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .spec("  metrics:\n    enabled: false")
        .start()
        .await;
    node.ask(get("/v1.0/metadata")).await;
    let answer = Answer::read(send(node.ports.metrics, get("/anything")).await.unwrap()).await;
    assert_eq!(answer.status, 200);
    assert!(!answer.text().contains("dapr_http_server"), "{}", answer.text());
}

#[tokio::test]
async fn omits_api_streams() {
    let spec = "  metrics:\n    recordErrorCodes: true\n";
    let node = Net::plain().sidecar("me").spec(spec).start().await;
    let service = "/dapr.proto.runtime.v1.Dapr";
    let failed = async |method: &str, messages: &[&[u8]]| {
        let outcome = grpc::call(node.ports.grpc, &format!("{service}/{method}"), &[], messages).await;
        assert_ne!(outcome.status.code(), tonic::Code::Ok, "{method}");
    };
    let count = async |method: &str| {
        let label = format!("grpc_server_method=\"{service}/{method}\"");
        node.metric("dapr_grpc_io_server_completed_rpcs", &[&label]).await
    };
    let streams = [
        "SubscribeConfiguration",
        "SubscribeConfigurationAlpha1",
        "EncryptAlpha1",
        "DecryptAlpha1",
    ];
    for method in streams {
        // An empty message, and none at all.
        failed(method, &[b""]).await;
        failed(method, &[]).await;
    }
    // A counted call, after uncounted ones.
    failed("GetConfiguration", &[b""]).await;
    eventually(async || count("GetConfiguration").await == Some(1.0)).await;
    node.counts("dapr_error_code_total", &[], 1.0).await;
    let answer = Answer::read(send(node.ports.metrics, get("/metrics")).await.unwrap()).await;
    let lines = answer.text().lines();
    let codes = lines.filter(|line| line.starts_with("dapr_error_code_total{"));
    assert_eq!(codes.count(), 1, "{}", answer.text());
    for method in streams {
        assert_eq!(count(method).await, None, "{method}");
    }
}

#[tokio::test]
async fn silent_connections_block_no_metrics() {
    let net = Net::plain();
    let profiles = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = profiles.local_addr().unwrap().port();
    drop(profiles);
    let plan = net.sidecar("me").flag("--enable-profiling");
    let node = plan.flag(&format!("--profile-port={port}")).start().await;
    for (port, path) in [(node.ports.metrics, "/metrics"), (port, "/debug/memory")] {
        let mut silent = Vec::new();
        for _ in 0..400 {
            silent.push(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        for _ in 0..9 {
            let answer =
                tokio::time::timeout(std::time::Duration::from_secs(10), send(port, get(path))).await;
            assert_eq!(Answer::read(answer.unwrap().unwrap()).await.status, 200, "{path}");
        }
    }
}
