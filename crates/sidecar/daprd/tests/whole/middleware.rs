//! HTTP middleware around the API and around calls of the app.

use std::fmt::{Debug, Write};
use std::sync::Mutex;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Request;
use hyper::body::Incoming;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::app::text;
use crate::common::{Answer, App, Net, Node, eventually, get, post, request};

/// A component; `metadata` as flow mappings.
fn component(name: &str, kind: &str, metadata: &[&str]) -> String {
    let items: String = metadata.iter().map(|item| format!("  - {item}\n")).collect();
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  \
         type: middleware.http.{kind}\n  version: v1\n  metadata:\n{items}"
    )
}

/// Records the API log of all sidecars of this process.
struct ApiLog(Mutex<Vec<String>>);

impl Subscriber for &'static ApiLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dapr.runtime.http-info"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                let _infallible = write!(self.0, "{field}={value:?} ");
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn pipeline(which: &str, handlers: &[(&str, &str)]) -> String {
    let handlers: String = handlers
        .iter()
        .map(|(name, kind)| format!("    - name: {name}\n      type: middleware.http.{kind}\n"))
        .collect();
    format!("  {which}:\n    handlers:\n{handlers}")
}

/// An app that answers with the target and the body of the request.
async fn telling() -> App {
    App::start(|request: Request<Incoming>| async move {
        use http_body_util::BodyExt;
        let target = request.uri().to_string();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        text(200, &format!("{target} {}", String::from_utf8_lossy(&body)))
    })
    .await
}

async fn ask(node: &Node, method: &str, body: &'static str) -> Answer {
    node.ask(post(&format!("/v1.0/invoke/me/method/{method}"), body))
        .await
}

#[tokio::test]
async fn runs_api_pipeline_in_order() {
    let app = telling().await;
    let net = Net::plain();
    let handlers = [
        ("second", "routeralias"),
        ("missing", "uppercase"),
        ("first", "routeralias"),
    ];
    let node = net
        .sidecar("me")
        .app(app.port)
        .spec(&pipeline("httpPipeline", &handlers))
        .resource(&component(
            "first",
            "routeralias",
            &[r#"{name: routes, value: '{"/step": "/v1.0/invoke/me/method/end", "/hi": "/nowhere"}'}"#],
        ))
        .resource(&component(
            "second",
            "routeralias",
            &[r#"{name: routes, value: '{"/hi": "/step", "/state/{key}": "/v1.0/metadata"}'}"#],
        ))
        .start()
        .await;
    assert_eq!(node.ask(post("/hi", "x")).await.text(), "/end x");
    assert_eq!(node.ask(post("/hi?a=1", "x")).await.text(), "/end?a=1 x");
    assert_eq!(node.ask(get("/state/k")).await.json()["id"], "me");
    assert_eq!(ask(&node, "plain", "x").await.text(), "/plain x");
    let names: Vec<_> = node.ask(get("/v1.0/metadata")).await.json()["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component["name"].clone())
        .collect();
    assert_eq!(names, ["first", "second"]);
}

#[tokio::test]
async fn logs_calls_after_pipeline() {
    static LOG: ApiLog = ApiLog(Mutex::new(Vec::new()));
    tracing::subscriber::set_global_default(&LOG).unwrap();
    let app = telling().await;
    let node = Net::plain()
        .sidecar("me")
        .app(app.port)
        .flag("--enable-api-logging")
        .env("DAPR_API_TOKEN", "hush")
        .spec(&pipeline("httpPipeline", &[("alias", "routeralias")]))
        .resource(&component(
            "alias",
            "routeralias",
            &[r#"{name: routes, value: '{"/logged-alias": "/v1.0/invoke/me/method/logged-end"}'}"#],
        ))
        .start()
        .await;
    let headers = ["dapr-api-token: hush", "user-agent: logger"];
    let call = |path| node.ask(request("POST", path, &headers, "x"));
    assert_eq!(node.ask(post("/logged-refused", "x")).await.status, 401);
    assert_eq!(call("/logged-alias").await.text(), "/logged-end x");
    assert_eq!(call("/logged-nobody").await.status, 404);
    let lines = LOG.0.lock().unwrap().clone();
    let lines: Vec<_> = lines.iter().filter(|line| line.contains("logged-")).collect();
    assert_eq!(lines.len(), 2, "a call that was refused is none: {lines:?}");
    for (line, path, code) in [
        (lines[0], "POST /v1.0/invoke/me/method/logged-end", "code=200"),
        (lines[1], "POST /logged-nobody", "code=404"),
    ] {
        assert!(line.contains(&format!("method={path} ")), "{line}");
        assert!(
            line.contains(code) && line.contains("useragent=\"logger\""),
            "{line}"
        );
    }
}

#[tokio::test]
async fn streams_bodies_through_middleware() {
    let app = App::echo().await;
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .app(app.port)
        .flag("--max-body-size=16Mi")
        .spec(&pipeline("httpPipeline", &[("capitals", "uppercase")]))
        .resource(&component(
            "capitals",
            "uppercase",
            &["{name: direction, value: both}"],
        ))
        .start()
        .await;
    assert_eq!(ask(&node, "x", "hello, ñandú").await.text(), "HELLO, ÑANDÚ");
    let long = "abc ".repeat(100_000);
    let answer = node.ask(post("/v1.0/invoke/me/method/x", long.clone())).await;
    assert_eq!(answer.text(), long.to_uppercase());
    let length = long.len().to_string();
    assert_eq!(app.last().header("content-length"), Some(&*length));
    // The length of larger bodies is not known in advance.
    let large = "x".repeat(4 * 1024 * 1024 + 1);
    let answer = node.ask(post("/v1.0/invoke/me/method/x", large)).await;
    assert_eq!(answer.status, 200);
    assert!(app.last().header("content-length").is_none());
    assert_eq!(node.ask(get("/v1.0/state/none/k")).await.status, 500);
}

#[tokio::test]
async fn runs_separate_app_pipeline() {
    let (app, outside) = (telling().await, telling().await);
    let net = Net::plain();
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .spec(&pipeline(
            "appHttpPipeline",
            &[("alias", "routeralias"), ("capitals", "uppercase")],
        ))
        .spec("  features:\n  - name: HotReload\n    enabled: true\n")
        .resource(&component("alias", "routeralias", &["{name: /from, value: /to}"]))
        .resource(&component(
            "capitals",
            "uppercase",
            &["{name: direction, value: request}"],
        ))
        .resource(&format!(
            "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: outside\nspec:\n  \
             baseUrl: http://127.0.0.1:{}\n",
            outside.port
        ))
        .start()
        .await;
    let caller = net.sidecar("caller").start().await;
    let from = async |node: &Node, id: &str| {
        let answer = node
            .ask(post(&format!("/v1.0/invoke/{id}/method/from?q=1"), "x"))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text().to_owned()
    };
    assert_eq!(from(&callee, "callee").await, "/to?q=1 X");
    assert_eq!(from(&caller, "callee").await, "/to?q=1 X");
    assert_eq!(from(&callee, "outside").await, "/to?q=1 X");
    std::fs::remove_file(callee.resources().join("1.yaml")).unwrap();
    eventually(async || from(&caller, "callee").await == "/to?q=1 x").await;
    std::fs::remove_file(callee.resources().join("0.yaml")).unwrap();
    eventually(async || from(&caller, "callee").await == "/from?q=1 x").await;
    drop(app);
    let answer = callee.ask(post("/v1.0/invoke/callee/method/from", "x")).await;
    answer.error(500, "ERR_DIRECT_INVOKE");
}

#[tokio::test]
async fn limits_requests_by_client_and_path() {
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .spec(&pipeline("httpPipeline", &[("limit", "ratelimit")]))
        .resource(&component(
            "limit",
            "ratelimit",
            &["{name: maxRequestsPerSecond, value: \"0.01\"}"],
        ))
        .launch()
        .await;
    let answer = node.ask(get("/v1.0/metadata")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-rate-limit-limit"), Some("0.01"));
    assert_eq!(answer.header("ratelimit-remaining"), Some("0"));
    let peer = answer.header("x-rate-limit-request-remote-addr").unwrap();
    assert!(peer.starts_with("127.0.0.1:"), "{peer}");
    let refused = node.ask(get("/v1.0/metadata")).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.text(), "You have reached maximum request limit.");
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    let call = |method: &str| get(&format!("/v1.0/actors/T/1/method/{method}"));
    let answer = node.ask(call("m")).await;
    answer.error(400, "ERR_ACTOR_NO_PLACEMENT");
    for method in ["m", "x1%2F..%2Fm", "%2Fm", "%6D"] {
        assert_eq!(node.ask(call(method)).await.status, 429, "{method}");
    }
    // Addresses count only from configured proxies, so that a client cannot evade its limit by claiming
    // another address.
    let other = request("GET", "/v1.0/metadata", &["x-forwarded-for: 10.0.0.1"], "");
    assert_eq!(node.ask(other).await.status, 429);
}

#[tokio::test]
async fn passes_only_matching_targets() {
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .spec(&pipeline("httpPipeline", &[("rule", "routerchecker")]))
        .resource(&component(
            "rule",
            "routerchecker",
            &["{name: rule, value: '^/v1.0/(healthz|meta[a-z]+\\?x=1$)'}"],
        ))
        .start()
        .await;
    assert_eq!(node.ask(get("/v1.0/metadata?x=1")).await.status, 200);
    let refused = node.ask(get("/v1.0/metadata")).await;
    assert_eq!((refused.status.as_u16(), refused.text()), (400, "invalid router"));
}

/// A sidecar that passes only requests matching a rule, with an app that echoes them.
async fn ruled(net: &Net, app: &App, rule: &str) -> Node {
    net.sidecar("me")
        .app(app.port)
        .spec(&pipeline("httpPipeline", &[("rule", "routerchecker")]))
        .resource(&component(
            "rule",
            "routerchecker",
            &[&format!("{{name: rule, value: '{rule}'}}")],
        ))
        .start()
        .await
}

#[tokio::test]
async fn path_spellings_do_not_bypass_middleware() {
    let net = Net::plain();
    let app = telling().await;
    let node = ruled(
        &net,
        &app,
        "^/v1.0/(healthz|(invoke/me|actors/T/[^/]+)/method/public)",
    )
    .await;
    for path in [
        "/v1.0/metadata",
        "//v1.0/metadata",
        "/v1.0/healthz/../metadata",
        "/v1.0/healthz/.././metadata",
        "/v1.0/invoke/me/method/admin",
        "/v1.0/invoke/me/method/public/../admin",
        "/v1.0/invoke/me/method/public%2F..%2Fadmin",
        "/v1.0/invoke/me/method/public/%2e%2e/admin",
        "/v1.0/invoke/me/method//admin",
        "/v1.0/healthz/../invoke/me/method/admin",
        "/v1.0/actors/T/1/method/admin",
        "/v1.0/actors/T/1/method/public%2F..%2Fadmin",
        "/v1.0/actors/T/1/method/public%2f%2e%2e%2fadmin",
    ] {
        let refused = node.ask(get(path)).await;
        assert_eq!(
            (refused.status.as_u16(), refused.text()),
            (400, "invalid router"),
            "{path}"
        );
    }
    let by_header = request("GET", "/v1.0/healthz/../admin", &["dapr-app-id: me"], "");
    assert_eq!(node.ask(by_header).await.status, 400);
    assert_eq!(app.calls(), 0);
    for path in [
        "/v1.0/invoke/me/method/public",
        "//v1.0//invoke/me/method/admin/../public",
        "/v1.0/invoke/me/method/%70ublic",
        "/v1.0/invoke/%6de/method//public/",
    ] {
        let answer = node.ask(get(path)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, "/public "),
            "{path}"
        );
    }
    assert_eq!(node.ask(get("//v1.0/healthz")).await.status, 204);
    for method in ["public", "x%2F..%2Fpublic", "%70ublic"] {
        let answer = node.ask(get(&format!("/v1.0/actors/T/1/method/{method}"))).await;
        answer.error(400, "ERR_ACTOR_NO_PLACEMENT");
    }
}

#[tokio::test]
async fn routes_by_rewritten_path() {
    let net = Net::plain();
    let app = telling().await;
    let node = net
        .sidecar("me")
        .app(app.port)
        .spec(&pipeline("httpPipeline", &[("alias", "routeralias")]))
        .resource(&component(
            "alias",
            "routeralias",
            &["{name: /v1.0/invoke/me/method/from, value: /v1.0/invoke/me/method/to}"],
        ))
        .start()
        .await;
    for path in ["from", "x/../from", "%66rom"] {
        let answer = node.ask(get(&format!("/v1.0/invoke/me/method/{path}?a=b"))).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, "/to?a=b "),
            "{path}"
        );
    }
    let base = format!("http://127.0.0.1:{}", app.port);
    let answer = node
        .ask(get(&format!("/v1.0/invoke/{base}/method/a//b?c=d")))
        .await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "/a/b?c=d "));
}

#[tokio::test]
async fn passes_only_tokens_of_issuer() {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = pair.public_key().as_ref();
    let set = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "alg": "ES256",
        "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])}]});
    let issuer = App::start(move |_| {
        let set = set.to_string();
        async move { text(200, &set) }
    })
    .await;
    let url = format!("{{name: jwksURL, value: \"http://127.0.0.1:{}/\"}}", issuer.port);
    let net = Net::plain();
    let node = net
        .sidecar("me")
        .spec(&pipeline("httpPipeline", &[("guard", "bearer")]))
        .resource(&component(
            "guard",
            "bearer",
            &[
                "{name: issuerURL, value: \"https://issuer\"}",
                "{name: clientID, value: me}",
                &url,
            ],
        ))
        .launch()
        .await;
    let token = |audience: &str| {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("k".to_owned());
        let claims = json!({"iss": "https://issuer", "aud": audience, "exp": 4_000_000_000_u64});
        let key = EncodingKey::from_ec_der(pair.to_pkcs8v1().unwrap().as_ref());
        format!(
            "authorization: Bearer {}",
            encode(&header, &claims, &key).unwrap()
        )
    };
    let refused = node.ask(get("/v1.0/metadata")).await;
    assert_eq!((refused.status.as_u16(), refused.text()), (401, "Unauthorized"));
    assert_eq!(
        node.ask(request("GET", "/v1.0/metadata", &[&token("me")], ""))
            .await
            .status,
        200
    );
    let refused = node
        .ask(request("GET", "/v1.0/metadata", &[&token("other")], ""))
        .await;
    assert_eq!(refused.status, 401);
}
