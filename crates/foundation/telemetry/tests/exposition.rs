//! The exposition as seen by a scraper.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use outrigger_telemetry::metrics::{
    BreakerState, FlowDirection, Format, LabelRewrite, Metrics, MetricsConfig, Page, PolicyKind, RewriteRule,
    serve,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

fn config() -> MetricsConfig {
    MetricsConfig {
        app_id: "my\"app".into(),
        namespace: "default".into(),
        latency_buckets_ms: vec![1, 10],
        ..MetricsConfig::default()
    }
}

/// The Dapr families.
fn dapr(metrics: &Metrics, format: Format) -> String {
    let all = metrics.render(format);
    all[..all.find("# HELP process_").unwrap_or(all.len())].to_owned()
}

fn count(metrics: &Metrics, line: &str) -> usize {
    metrics
        .render(Format::Text)
        .lines()
        .filter(|l| *l == line)
        .count()
}

#[test]
fn omits_unobserved_families() {
    let metrics = Metrics::new(&config()).unwrap();
    metrics.invoke.invoked("other");
    metrics.http_server.route("GET", "/v1.0/metadata");
    assert_eq!(dapr(&metrics, Format::Text), "");
}

#[test]
fn renders_text_and_openmetrics() {
    let metrics = Metrics::new(&config()).unwrap();
    let route = metrics.http_server.route("GET", "/v1.0/state/s/k");
    route.completed(200, Duration::from_micros(500), 0, 2048);
    route.completed(200, Duration::from_micros(1500), 0, 2048);
    let text = dapr(&metrics, Format::Text);
    let labels = r#"app_id="my\"app",method="GET",path="/v1.0/state/s",status="200""#;
    let latency = format!(
        "# HELP dapr_http_server_latency Time to answer an HTTP API request.\n\
         # TYPE dapr_http_server_latency histogram\n\
         dapr_http_server_latency_bucket{{{labels},le=\"1\"}} 1\n\
         dapr_http_server_latency_bucket{{{labels},le=\"10\"}} 2\n\
         dapr_http_server_latency_bucket{{{labels},le=\"+Inf\"}} 2\n\
         dapr_http_server_latency_sum{{{labels}}} 2\n\
         dapr_http_server_latency_count{{{labels}}} 2\n"
    );
    assert!(text.contains(&latency), "{text}");
    let counter = format!(
        "# TYPE dapr_http_server_request_count counter\ndapr_http_server_request_count{{{labels}}} 2\n"
    );
    assert!(text.contains(&counter), "{text}");
    assert!(
        text.contains("dapr_http_server_response_bytes_bucket{app_id=\"my\\\"app\",le=\"1.048576e+06\"} 2\n")
    );
    assert!(text.contains("dapr_http_server_response_bytes_bucket{app_id=\"my\\\"app\",le=\"1024\"} 0\n"));
    assert!(text.contains("dapr_http_server_response_bytes_bucket{app_id=\"my\\\"app\",le=\"2048\"} 2\n"));

    let open = dapr(&metrics, Format::OpenMetrics);
    assert!(open.contains(&format!(
        "# TYPE dapr_http_server_request_count unknown\ndapr_http_server_request_count{{{labels}}} 2.0\n"
    )));
    assert!(open.contains(&format!(
        "dapr_http_server_latency_bucket{{{labels},le=\"1.0\"}} 1\n"
    )));
    assert!(metrics.render(Format::OpenMetrics).ends_with("# EOF\n"));
}

#[test]
fn recorders_use_dapr_names() {
    let metrics = Metrics::new(&MetricsConfig {
        app_id: "a".into(),
        record_error_codes: true,
        ..config()
    })
    .unwrap();
    let ms = Duration::from_millis(2);
    let invoked = metrics.invoke.invoked("b");
    invoked.sent();
    invoked.sent_streaming();
    invoked.received(200, ms);
    invoked.received_streaming(0);
    let invoking = metrics.invoke.invoking("c");
    invoking.received();
    invoking.responded(404);
    metrics.invoke.acl("public", "ns").global_blocked.inc();
    let target = metrics.http_client.target("POST", "orders");
    target.started(5);
    target.completed(500, ms, 7);
    metrics.http_client.probe_completed(200, ms);
    metrics
        .grpc_server
        .method("/s/M")
        .completed(tonic::Code::NotFound, ms, 1, 2);
    metrics
        .grpc_client
        .method("/s/M")
        .stream_completed(tonic::Code::Ok, ms);
    metrics.grpc_client.probe_completed(tonic::Code::Ok, ms);
    metrics.runtime.component_loaded();
    metrics
        .runtime
        .component_init_failed("state.redis", "init", "store");
    metrics.runtime.mtls_initialized();
    metrics
        .error_codes
        .failed("ERR_DIRECT_INVOKE", "service-invocation");
    for line in [
        r#"dapr_runtime_service_invocation_req_sent_total{app_id="a",dst_app_id="b",type="unary"} 1"#,
        r#"dapr_runtime_service_invocation_req_sent_total{app_id="a",dst_app_id="b",type="streaming"} 1"#,
        r#"dapr_runtime_service_invocation_res_recv_total{app_id="a",src_app_id="b",status="200",type="unary"} 1"#,
        r#"dapr_runtime_service_invocation_res_recv_total{app_id="a",src_app_id="b",status="0",type="streaming"} 1"#,
        r#"dapr_runtime_service_invocation_res_recv_latency_ms_sum{app_id="a",src_app_id="b",status="200"} 2"#,
        r#"dapr_runtime_service_invocation_req_recv_total{app_id="a",src_app_id="c"} 1"#,
        r#"dapr_runtime_service_invocation_res_sent_total{app_id="a",dst_app_id="c",status="404"} 1"#,
        r#"dapr_runtime_acl_global_policy_action_blocked_total{app_id="a",namespace="ns",trustDomain="public"} 1"#,
        r#"dapr_http_client_completed_count{app_id="a",method="POST",path="/orders",status="500"} 1"#,
        r#"dapr_http_client_sent_bytes_sum{app_id="a",method="POST",path="/orders",status=""} 5"#,
        r#"dapr_http_client_received_bytes_sum{app_id="a"} 7"#,
        r#"dapr_http_healthprobes_completed_count{app_id="a",status="200"} 1"#,
        r#"dapr_grpc_io_server_completed_rpcs{app_id="a",grpc_server_method="/s/M",grpc_server_status="NotFound"} 1"#,
        r#"dapr_grpc_io_server_received_bytes_per_rpc_sum{app_id="a",grpc_server_method="/s/M"} 1"#,
        r#"dapr_grpc_io_client_completed_rpcs{app_id="a",grpc_client_method="/s/M",grpc_client_status="OK"} 1"#,
        r#"dapr_grpc_io_healthprobes_completed_count{app_id="a",grpc_client_status="OK"} 1"#,
        r#"dapr_runtime_component_loaded{app_id="a"} 1"#,
        r#"dapr_runtime_component_init_fail_total{app_id="a",component="state.redis",componentName="store",reason="init"} 1"#,
        r#"dapr_runtime_mtls_init_total{app_id="a"} 1"#,
        r#"dapr_error_code_total{app_id="a",category="service-invocation",error_code="ERR_DIRECT_INVOKE"} 1"#,
    ] {
        assert_eq!(
            count(&metrics, line),
            1,
            "{line}\n{}",
            metrics.render(Format::Text)
        );
    }
}

#[test]
fn circuit_breaker_states() {
    let metrics = Metrics::new(&MetricsConfig {
        app_id: "a".into(),
        ..config()
    })
    .unwrap();
    metrics.resiliency.resource_loaded("res", "ns");
    let policy = metrics
        .resiliency
        .policy(PolicyKind::CircuitBreaker, FlowDirection::Outbound, "app_b");
    policy.breaker_executed(BreakerState::Closed);
    policy.breaker_changed(BreakerState::Open);
    policy.breaker_executed(BreakerState::Open);
    let labels = |status| {
        format!(
            r#"{{app_id="a",flow_direction="outbound",name="res",namespace="ns",policy="circuitbreaker",status="{status}",target="app_b"}}"#
        )
    };
    for (status, value) in [("closed", 0), ("half-open", 0), ("open", 1), ("unknown", 0)] {
        assert_eq!(
            count(
                &metrics,
                &format!("dapr_resiliency_cb_state{} {value}", labels(status))
            ),
            1,
            "{status}"
        );
    }
    assert_eq!(
        count(
            &metrics,
            &format!("dapr_resiliency_activations_total{} 1", labels("open"))
        ),
        1
    );
    assert_eq!(
        count(&metrics, &format!("dapr_resiliency_count{} 1", labels("closed"))),
        1
    );
    assert_eq!(
        count(
            &metrics,
            r#"dapr_resiliency_loaded{app_id="a",name="res",namespace="ns"} 1"#
        ),
        1
    );
}

#[test]
fn rewrites_labels_and_bounds_series() {
    let rule = RewriteRule {
        name: "dapr_runtime_service_invocation/req_sent_total".into(),
        labels: vec![LabelRewrite {
            name: "dst_app_id".into(),
            regex: vec![("user-$1".into(), "^u([0-9])[0-9]*$".into())],
        }],
    };
    let metrics = Metrics::new(&MetricsConfig {
        app_id: "a".into(),
        rules: vec![rule],
        max_series: 6,
        ..config()
    })
    .unwrap();
    metrics.invoke.invoked("u123").sent();
    metrics.invoke.invoked("u145").sent();
    let line =
        r#"dapr_runtime_service_invocation_req_sent_total{app_id="a",dst_app_id="user-1",type="unary"} 2"#;
    assert_eq!(count(&metrics, line), 1);
    for i in 0..5 {
        metrics.invoke.invoked(&format!("app{i}")).sent();
    }
    let line =
        r#"dapr_runtime_service_invocation_req_sent_total{app_id="a",dst_app_id="other",type="other"} 3"#;
    assert_eq!(count(&metrics, line), 1, "{}", metrics.render(Format::Text));
    assert_eq!(
        count(&metrics, r#"dapr_metrics_series_dropped_total{app_id="a"} 6"#),
        1
    );
}

#[test]
fn truncates_long_label_values() {
    let metrics = Metrics::new(&config()).unwrap();
    let path = |filler: &str, count| format!("/{}", filler.repeat(count));
    for (sent, shown) in [
        (path("a", 255), path("a", 255)),
        (path("a", 256), format!("{}...", path("a", 255))),
        (path("b", 60_000), format!("{}...", path("b", 255))),
        // Mid-character: byte 256 is inside a two-byte character.
        (path("ü", 200), format!("{}...", path("ü", 127))),
    ] {
        metrics
            .grpc_server
            .method(&sent)
            .completed(tonic::Code::Ok, Duration::ZERO, 1, 1);
        for family in [
            "completed_rpcs{",
            "received_bytes_per_rpc_count{",
            "sent_bytes_per_rpc_count{",
            "server_latency_count{",
        ] {
            let rendered = metrics.render(Format::Text);
            let of = format!(r#"grpc_server_method="{shown}""#);
            assert!(
                rendered
                    .lines()
                    .any(|line| line.contains(family) && line.contains(&of)),
                "{family} {shown}"
            );
        }
    }
    let rendered = metrics.render(Format::Text);
    assert!(rendered.lines().all(|line| line.len() < 1024));
}

#[test]
fn errors_name_invalid_settings() {
    let buckets = MetricsConfig {
        latency_buckets_ms: vec![5, 5],
        ..config()
    };
    assert!(
        Metrics::new(&buckets)
            .unwrap_err()
            .to_string()
            .contains("latencyDistributionBuckets")
    );
    let labels = vec![LabelRewrite {
        name: "path".into(),
        regex: vec![("x".into(), "(".into())],
    }];
    let rules = MetricsConfig {
        rules: vec![RewriteRule {
            name: "m".into(),
            labels,
        }],
        ..config()
    };
    let error = Metrics::new(&rules).unwrap_err().to_string();
    assert!(
        error.starts_with("failed to compile regex for rule m/path/x: "),
        "{error}"
    );
}

#[test]
fn disabled_records_nothing() {
    let metrics = Metrics::new(&MetricsConfig {
        enabled: false,
        ..config()
    })
    .unwrap();
    metrics
        .http_server
        .route("GET", "/x")
        .completed(200, Duration::ZERO, 1, 1);
    metrics.invoke.invoked("b").sent();
    assert_eq!(dapr(&metrics, Format::Text), "");
}

#[test]
fn registers_namespaced_families() {
    let metrics = Metrics::new(&MetricsConfig {
        app_id: "a".into(),
        ..config()
    })
    .unwrap();
    let declare = || {
        metrics
            .registry
            .namespaced()
            .counter("component_state_count", "State operations.", ["component"])
    };
    declare().with(["store"]).inc();
    declare().with(["store"]).inc();
    let line = r#"dapr_component_state_count{app_id="a",component="store",namespace="default"} 2"#;
    assert_eq!(count(&metrics, line), 1);
}

#[tokio::test]
async fn serves_any_path_and_negotiates() {
    let metrics = Metrics::new(&config()).unwrap();
    metrics.runtime.component_loaded();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let page = Page {
        path: "/status",
        content_type: "text/html",
        write: Arc::new(|| "a page".to_owned()),
    };
    let pages = Arc::new([page]);
    let server = tokio::spawn(serve(listener, Arc::clone(&metrics), pages, cancel.clone()));
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    for (accept, content_type) in [
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ] {
        let request = http::Request::get("/any/path")
            .header("accept", accept)
            .header("host", "x");
        let response = sender
            .send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.headers()["content-type"], content_type);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.contains("dapr_runtime_component_loaded{"));
        assert!(!cfg!(target_os = "linux") || body.contains("process_resident_memory_bytes "));
    }
    for (path, wanted) in [("/status?x", "text/html"), ("/status/", "text/plain")] {
        let request = http::Request::get(path).header("host", "x");
        let response = sender
            .send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap())
            .await
            .unwrap();
        let headers = response.headers();
        assert!(
            headers["content-type"].to_str().unwrap().starts_with(wanted),
            "{path}"
        );
        assert_eq!(
            headers.contains_key("content-security-policy"),
            path == "/status?x"
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body == "a page", path == "/status?x");
    }
    cancel.cancel();
    server.await.unwrap();
    // The server closes open connections when it ends.
    let _ = connection.await.unwrap();
}

#[test]
fn fine_buckets_below_millisecond() {
    let metrics = Metrics::new(&MetricsConfig::default()).unwrap();
    let route = metrics.http_server.route("GET", "/v1.0/metadata");
    for micros in [90, 200, 400, 700, 1500] {
        route.completed(200, Duration::from_micros(micros), 0, 0);
    }
    let text = metrics.render(Format::Text);
    let mut buckets = text
        .lines()
        .filter(|line| line.starts_with("dapr_http_server_latency_bucket"))
        .filter_map(|line| line.split_once("le=\"")?.1.split_once("\"} "));
    let first: Vec<_> = buckets.clone().take(5).collect();
    let wanted = [("0.1", "1"), ("0.25", "2"), ("0.5", "3"), ("1", "4"), ("2", "5")];
    assert_eq!(first, wanted);
    assert_eq!(buckets.next_back(), Some(("+Inf", "5")));
    assert!(text.contains("le=\"100000\"} 5"), "{text}");

    let coarse = MetricsConfig {
        fine_latency: false,
        ..MetricsConfig::default()
    };
    let metrics = Metrics::new(&coarse).unwrap();
    let route = metrics.http_server.route("GET", "/v1.0/metadata");
    route.completed(200, Duration::from_micros(90), 0, 0);
    let text = metrics.render(Format::Text);
    let first = text.lines().find(|line| line.contains("latency_bucket"));
    assert!(first.is_some_and(|line| line.contains("le=\"1\"")), "{text}");
}

#[tokio::test]
async fn silent_connections_do_not_block_scrapers() {
    let metrics = Metrics::new(&config()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cancel = CancellationToken::new();
    let server = tokio::spawn(serve(listener, metrics, Arc::default(), cancel.clone()));
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for _ in 0..9 {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = http::Request::get("/metrics")
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(10), client.send_request(request)).await;
        assert_eq!(answer.unwrap().unwrap().status(), 200);
    }
    cancel.cancel();
    server.await.unwrap();
}
