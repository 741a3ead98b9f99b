//! Identity between sidecars: impostors, access control, and certificates renewed under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Response;
use outrigger_transport::body::Body;
use tonic::Code;

use crate::common::net::Plan;
use crate::common::{App, Net, Node, app, eventually, get, grpc, post, request};

#[tokio::test]
async fn calls_between_identities_succeed() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let answer = caller
        .ask(post("/v1.0/invoke/callee/method/m", "over mTLS"))
        .await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "over mTLS"));
    callee.counts("dapr_runtime_mtls_init_total", &[], 1.0).await;
    // The internal port refuses clients without a certificate.
    let plain = grpc_plain(&callee).await;
    assert!(plain, "clear text must not be answered");
}

/// Whether the internal server refuses cleartext.
async fn grpc_plain(node: &Node) -> bool {
    let bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = crate::common::client::raw(node.ports.internal, bytes).await;
    // At most a TLS alert is returned, never HTTP/2 settings.
    answer.len() < 9
}

#[tokio::test]
async fn refuses_impostor() {
    let net = Net::secure().await;
    let (honest, evil) = (App::echo().await, App::echo().await);
    let (caller, callee) = net.pair(honest.port).await;
    let impostor = net.sidecar("impostor").app(evil.port).start().await;
    assert_eq!(
        caller.ask(get("/v1.0/invoke/impostor/method/m")).await.status,
        200
    );
    // An attacker rewrites the registration: calls for `callee` now reach the impostor, whose certificate is
    // genuine.
    callee.stop().await.unwrap();
    net.register("callee", impostor.ports.internal);
    let fresh = net.sidecar("fresh").start().await;
    let answer = fresh
        .ask(post("/v1.0/invoke/callee/method/secret", "password"))
        .await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("callee"), "{message}");
    assert!(evil.seen().iter().all(|s| s.target != "/secret"));
    let outcome = grpc::call(
        fresh.ports.grpc,
        "/shop.v1.Orders/Get",
        &[("dapr-app-id", "callee")],
        &[b""],
    )
    .await;
    assert_eq!(outcome.status.code(), Code::Unavailable, "{:?}", outcome.status);
}

#[tokio::test]
async fn refuses_peers_of_another_authority() {
    let (net, other) = (Net::secure().await, Net::secure().await);
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let stranger = other.sidecar("caller").start().await;
    other.register("callee", callee.ports.internal);
    let answer = stranger.ask(get("/v1.0/invoke/callee/method/m")).await;
    answer.error(500, "ERR_DIRECT_INVOKE");
    assert_eq!(app.calls(), 0);
    // A sidecar without identity is refused too.
    let plain = Net::plain();
    let naked = plain.sidecar("caller").start().await;
    plain.register("callee", callee.ports.internal);
    naked
        .ask(get("/v1.0/invoke/callee/method/m"))
        .await
        .error(500, "ERR_DIRECT_INVOKE");
    assert_eq!(app.calls(), 0);
}

const RULES: &str = r#"
  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
    - appId: caller
      defaultAction: deny
      trustDomain: public
      namespace: default
      operations:
      - name: /orders/**
        httpVerb: ["POST", "GET"]
        action: allow
      - name: /orders/secret
        httpVerb: ["*"]
        action: deny
      - name: /health
        httpVerb: ["*"]
        action: allow
    - appId: stranger
      defaultAction: allow
      trustDomain: elsewhere
      namespace: default
"#;

const SECRET_FIRST: &str = r#"
  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
    - appId: caller
      defaultAction: allow
      trustDomain: public
      namespace: default
      operations:
      - name: /secret
        httpVerb: ["*"]
        action: deny
"#;

async fn guarded(net: &Net, app: &App, rules: &str) -> (Node, Node) {
    let callee: Plan<'_> = net.sidecar("callee").app(app.port).spec(rules);
    let callee = callee.start().await;
    // Identities are issued for the trust domain in the Configuration.
    (net.sidecar("caller").start().await, callee)
}

#[tokio::test]
async fn applies_access_rules() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (caller, callee) = guarded(&net, &app, RULES).await;
    for (verb, path, allowed) in [
        ("POST", "orders/7", true),
        ("GET", "orders/7/lines", true),
        ("DELETE", "orders/7", false),
        ("GET", "health", true),
        ("PUT", "health", true),
        ("GET", "other", false),
        ("GET", "", false),
        ("GET", "ORDERS/7", true),
        ("GET", "order", false),
    ] {
        let target = format!("/v1.0/invoke/callee/method/{path}");
        let calls = app.calls();
        let answer = caller.ask(request(verb, &target, &[], Body::Empty)).await;
        if allowed {
            assert_eq!(answer.status, 200, "{verb} {path}: {}", answer.text());
            continue;
        }
        let message = answer.error(403, "ERR_DIRECT_INVOKE");
        let expected = format!(
            "access control policy has denied access to id: spiffe://public/ns/default/caller operation: {path} verb: {verb}"
        );
        assert!(message.contains(&expected), "{message}\n{expected}");
        assert_eq!(app.calls(), calls, "{verb} {path} reached the app");
    }
    let stranger = net.sidecar("stranger").start().await;
    let answer = stranger.ask(get("/v1.0/invoke/callee/method/health")).await;
    answer.error(403, "ERR_DIRECT_INVOKE");
    // Over gRPC it is a failed call too, with the callee's reason in its text.
    let outcome = grpc::invoke(stranger.ports.grpc, "callee", "health", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
    let message = outcome.status.message();
    assert!(
        message.contains("code = PermissionDenied desc = access control policy has denied"),
        "{message}"
    );
    let blocked = "dapr_runtime_acl_app_policy_action_blocked_total";
    let count = async || callee.metric(blocked, &["trustDomain=\"public\""]).await;
    eventually(async || count().await.is_some_and(|count| count >= 4.0)).await;
    // An app may always call itself.
    assert_eq!(
        callee.ask(get("/v1.0/invoke/callee/method/other")).await.status,
        200
    );
}

#[tokio::test]
async fn path_spellings_do_not_bypass_rules() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (caller, _callee) = guarded(&net, &app, SECRET_FIRST).await;
    assert_eq!(
        caller.ask(get("/v1.0/invoke/callee/method/open")).await.status,
        200
    );
    let calls = app.calls();
    for spelling in [
        "secret",
        "SECRET",
        "/secret",
        "//secret",
        "./secret",
        "../secret",
        "open/../secret",
        "open/%2e%2e/secret",
        "open%2F..%2Fsecret",
        "%2Fsecret",
        "%2F%2Fsecret",
        "%73ecret",
        "secret/",
        "secret/.",
        "secret//",
        "secret/below",
        "secret%2Fbelow",
        "secret/x/..",
        "a/b/../../secret",
        "..%2f..%2fsecret",
        "%2e/secret",
        "secret;x",
        "secret;/below",
        "open/..;/secret",
        "open/..;x=1/secret",
        ";x/secret",
        "open%5C..%5Csecret",
        "open\\..\\secret",
        "%2573ecret",
        "open/%252e%252e/secret",
        "secret%3Fx",
    ] {
        let target = format!("/v1.0/invoke/callee/method/{spelling}");
        let answer = caller.ask(get(&target)).await;
        assert!(
            matches!(answer.status.as_u16(), 400 | 403 | 500),
            "{spelling}: {} {:?}",
            answer.status,
            app.seen().last()
        );
        let outcome = grpc::invoke(caller.ports.grpc, "callee", spelling, &[], "").await;
        let by_header = request(
            "GET",
            &format!("/{spelling}"),
            &["dapr-app-id: callee"],
            Body::Empty,
        );
        let header = caller.ask(by_header).await;
        assert!(
            matches!(header.status.as_u16(), 400 | 403 | 500),
            "{spelling}: {}",
            header.status
        );
        assert_eq!(
            outcome.status.code(),
            Code::Internal,
            "{spelling}: {:?}",
            outcome.status
        );
    }
    assert_eq!(app.calls(), calls, "{:?}", app.seen());
}

#[tokio::test]
async fn matches_full_grpc_method_names() {
    let rules = r#"
  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
    - appId: caller
      defaultAction: deny
      trustDomain: public
      namespace: default
      operations:
      - name: /shop.v1.Orders/Get
        action: allow
      - name: /do/it
        action: allow
"#;
    let net = Net::secure().await;
    let app = App::start(|request| async move {
        if request.uri().path() == grpc::ON_INVOKE {
            return grpc::ok(&grpc::invoked("done", ""));
        }
        grpc::response(&[], &[b"order"], &[("grpc-status", "0")])
    })
    .await;
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = callee.spec(rules).start().await;
    let caller = net.sidecar("caller").start().await;
    let metadata = [("dapr-app-id", "callee")];
    let port = caller.ports.grpc;
    let outcome = grpc::call(port, "/shop.v1.Orders/Get", &metadata, &[b""]).await;
    assert_eq!(outcome.messages, ["order"], "{:?}", outcome.status);
    for method in ["/shop.v1.Orders/Delete", "/shop.v1.orders/get", grpc::ON_INVOKE] {
        let outcome = grpc::call(port, method, &metadata, &[b""]).await;
        assert_eq!(
            outcome.status.code(),
            Code::PermissionDenied,
            "{method}: {:?}",
            outcome.status
        );
        let message = outcome.status.message();
        assert!(
            message.contains("access control policy has denied access"),
            "{message}"
        );
    }
    assert_eq!(app.calls(), 1);
    let outcome = grpc::invoke(port, "callee", "do/it", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
    let outcome = grpc::invoke(port, "callee", "do/that", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
    assert_eq!(app.calls(), 2);
    drop(callee);
}

#[tokio::test]
async fn ignores_forged_identity_headers() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (_caller, _callee) = guarded(&net, &app, RULES).await;
    let stranger = net.sidecar("stranger").start().await;
    let forged = request(
        "GET",
        "/v1.0/invoke/callee/method/health",
        &["dapr-caller-app-id: caller", "dapr-caller-namespace: default"],
        Body::Empty,
    );
    stranger.ask(forged).await.error(403, "ERR_DIRECT_INVOKE");
    assert_eq!(app.calls(), 0);
}

#[tokio::test]
async fn renews_certificates_under_load() {
    // Short-lived certificates, so that each sidecar renews a few times during the calls.
    let net = Net::secure_with("{workloadCertTTL: 10s, allowedClockSkew: 0s}").await;
    let app = App::start(|_| async { slow_text().await }).await;
    let (caller, callee) = net.pair(app.port).await;
    let caller = Arc::new(caller);
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (caller, stop) = (Arc::clone(&caller), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut calls = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "x")).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let rotated = "dapr_runtime_mtls_workload_cert_rotated_total";
    for node in [&*caller, &callee] {
        eventually(async || node.metric(rotated, &[]).await.is_some_and(|n| n >= 2.0)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        assert!(task.await.unwrap() > 0);
    }
    // New connections use the new certificates.
    let fresh = net.sidecar("fresh").start().await;
    assert_eq!(fresh.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
}

#[tokio::test]
async fn connections_end_with_certificates() {
    let net = Net::secure_with("{workloadCertTTL: 10s, allowedClockSkew: 0s}").await;
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    assert_eq!(caller.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
    assert_eq!(caller.ask(get("/v1.0/healthz/outbound")).await.status, 204);
    let expiry = "dapr_runtime_mtls_workload_cert_expiry_timestamp";
    let shown = caller.metric(expiry, &[]).await.unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    assert!((shown - now.unwrap().as_secs_f64()).abs() < 60.0, "{shown}");
    net.without_authority();
    for node in [&caller, &callee] {
        eventually(async || node.ask(get("/v1.0/healthz/outbound")).await.status == 500).await;
        let answer = node.ask(get("/v1.0/healthz/outbound")).await;
        let message = answer.error(500, "ERR_OUTBOUND_HEALTH_NOT_READY");
        assert!(
            message.contains("expired at") && message.contains("sentry at 127.0.0.1"),
            "{message}"
        );
    }
    // The connection of the first call does not outlive the certificates.
    eventually(async || caller.ask(get("/v1.0/invoke/callee/method/m")).await.status == 500).await;
}

async fn slow_text() -> Response<Body> {
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    app::text(200, "ok")
}
