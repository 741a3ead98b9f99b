//! The HTTP middlewares against their conformance suite.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{net::SocketAddr, sync::Arc};

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, Method, Request, StatusCode, header::AUTHORIZATION};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use outrigger_component::{
    Middleware,
    middleware::{Next, Peer, full},
};
use outrigger_component_conformance as conformance;
use outrigger_components_testing::Components;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_util::task::AbortOnDropHandle;

fn components() -> Components {
    Components::of(outrigger_components_middleware::add)
}

/// A request with a known remote address.
fn request(target: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::PATCH;
    *request.uri_mut() = target.parse().unwrap();
    let peer: SocketAddr = "192.0.2.1:1234".parse().unwrap();
    request.extensions_mut().insert(Peer(peer));
    request
}

async fn open(kind: &str, properties: &[(&str, &str)]) -> Arc<dyn Middleware> {
    let kind = format!("middleware.http.{kind}");
    components().middleware(&kind, "v1", properties).await.unwrap()
}

/// A property's name, and properties with an invalid value for it.
type Wrong<'a> = (&'a str, &'a [(&'a str, &'a str)]);

async fn refuses_settings(kind: &str, wrong: &[Wrong<'_>]) {
    let Components(catalog) = components();
    let kind = format!("middleware.http.{kind}");
    let entry = catalog.middleware.find(&kind, "v1").unwrap();
    conformance::settings(&entry, wrong).await;
}

#[tokio::test]
async fn uppercase_passes_conformance() {
    for direction in ["request", "response", "both"] {
        let middleware = open("uppercase", &[("direction", direction)]).await;
        conformance::middleware(&middleware, &request("/x?y=1")).await;
    }
}

#[tokio::test]
async fn routeralias_passes_conformance() {
    let routes = r#"{"/exact": "/x", "/users/{id}": "/u"}"#;
    let middleware = open("routeralias", &[("routes", routes)]).await;
    for target in ["/other?y=1", "/users/", "/users/a/b", "http://host/%7Bid%7D", "*"] {
        conformance::middleware(&middleware, &request(target)).await;
    }
    let wrong: &[Wrong<'_>] = &[
        ("routes", &[("routes", "[1]")]),
        ("routes", &[("routes", "{")]),
        ("routes", &[("routes", r#"{"/{": "/x"}"#)]),
        ("routes", &[("routes", r#"{"/{a:}": "/x"}"#)]),
        ("routes", &[("routes", r#"{"/{a:[}": "/x"}"#)]),
        ("/path", &[("/path", "")]),
    ];
    refuses_settings("routeralias", wrong).await;
}

#[tokio::test]
async fn routerchecker_passes_conformance() {
    let middleware = open("routerchecker", &[("rule", "^/fine")]).await;
    conformance::middleware(&middleware, &request("/fine?y=1")).await;
    let status = StatusCode::BAD_REQUEST;
    conformance::middleware_refuses(&middleware, &request("/other"), status).await;
    refuses_settings("routerchecker", &[("rule", &[("rule", "(")])]).await;
}

#[tokio::test]
async fn routerchecker_checks_every_path_reading() {
    let rule = "^/v1.0/invoke/b/method/public/";
    let middleware = open("routerchecker", &[("rule", rule)]).await;
    let method = |path: &str| request(&format!("/v1.0/invoke/b/method{path}"));
    for path in [
        "/public/..;/admin",
        "/public/..;a=b/admin?x=1",
        "/public/..%3B/admin",
        "/public%5C..%5Cadmin",
        "/public/..%5Cadmin",
        "/public/%252e%252e/admin",
        "/public/x%3B/..%3B/..%3B/admin",
        &format!("/public/%{}61", "25".repeat(40)),
    ] {
        conformance::middleware_refuses(&middleware, &method(path), StatusCode::BAD_REQUEST).await;
    }
    for path in [
        "/public/x",
        "/public/a;b=c/d",
        "/public/a%20b?x=/../;",
        "/public/100%25",
        "/public/%C3%BC;x",
    ] {
        conformance::middleware(&middleware, &method(path)).await;
    }
    // Rules match targets as sent.
    let middleware = open("routerchecker", &[("rule", "^/a%20b(;x)?/c$")]).await;
    conformance::middleware(&middleware, &request("/a%20b;x/c")).await;
}

#[tokio::test]
async fn ratelimit_passes_conformance() {
    let rate = "maxRequestsPerSecond";
    let middleware = open("ratelimit", &[(rate, "10000")]).await;
    conformance::middleware(&middleware, &request("/x?y=1")).await;

    let middleware = open("ratelimit", &[(rate, "0.001")]).await;
    let spent = request("/spent");
    let only = Next::new(&[], |_| Box::pin(async { Ok(http::Response::new(full(""))) }));
    let first = middleware.handle(spent.clone().map(|()| full("")), only).await;
    assert_eq!(first.unwrap().status(), StatusCode::OK);
    let status = StatusCode::TOO_MANY_REQUESTS;
    conformance::middleware_refuses(&middleware, &spent, status).await;
    let wrong = ["many", "0", "-1", "inf", "NaN"].map(|value| [(rate, value)]);
    let wrong: Vec<Wrong<'_>> = wrong.iter().map(|properties| (rate, &properties[..])).collect();
    refuses_settings("ratelimit", &wrong).await;
    let wrong: &[Wrong<'_>] = &[("trustedProxies", &[("trustedProxies", "10.0.0.0/99")])];
    refuses_settings("ratelimit", wrong).await;
}

/// Number of passed requests, each with a different forwarded address.
async fn admitted(properties: &[(&str, &str)]) -> usize {
    let middleware = open("ratelimit", properties).await;
    let mut admitted = 0;
    for number in 0..20 {
        let mut request = request("/x").map(|()| full(""));
        let forwarded = HeaderValue::try_from(format!("198.51.100.{number}")).unwrap();
        request.headers_mut().insert("x-forwarded-for", forwarded);
        let only = Next::new(&[], |_| Box::pin(async { Ok(http::Response::new(full(""))) }));
        let response = middleware.handle(request, only).await.unwrap();
        admitted += usize::from(response.status() == StatusCode::OK);
    }
    admitted
}

#[tokio::test]
async fn ratelimit_trusts_known_proxies_only() {
    let rate = ("maxRequestsPerSecond", "0.001");
    assert_eq!(admitted(&[rate]).await, 1);
    assert_eq!(admitted(&[rate, ("trustedProxies", "10.0.0.0/8")]).await, 1);
    assert_eq!(admitted(&[rate, ("trustedProxies", "192.0.2.0/24")]).await, 20);
}

/// Answers every request with `text`; returns the address.
async fn serve(text: String) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _asked = stream.read(&mut [0; 4096]).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).await.unwrap();
        }
    });
    (address, AbortOnDropHandle::new(task))
}

/// A key set, and a token signed by one of its keys.
fn signed(claims: &Value) -> (String, String) {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let point = pair.public_key().as_ref();
    let coordinate = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let set = json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "k",
        "x": coordinate(&point[1..33]), "y": coordinate(&point[33..])}]});
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("k".to_owned());
    let key = EncodingKey::from_ec_der(pair.to_pkcs8v1().unwrap().as_ref());
    (set.to_string(), encode(&header, claims, &key).unwrap())
}

#[tokio::test]
async fn bearer_passes_conformance() {
    let claims = json!({"iss": "https://issuer", "aud": "app", "exp": 4_000_000_000_u64});
    let (set, token) = signed(&claims);
    let (url, _server) = serve(set).await;
    let properties = [
        ("issuer", "https://issuer"),
        ("audience", "app"),
        ("jwksURL", &url),
    ];
    let middleware = open("bearer", &properties).await;
    let with = |value: &str| {
        let mut request = request("/x?y=1");
        let value = HeaderValue::try_from(value).unwrap();
        request.headers_mut().insert(AUTHORIZATION, value);
        request
    };
    conformance::middleware(&middleware, &with(&format!("Bearer {token}"))).await;
    let status = StatusCode::UNAUTHORIZED;
    for refused in [
        request("/"),
        with("Basic dXNlcjpwYXNz"),
        with(&format!("Bearer {token}x")),
        with("Bearer 0123456789abcdef"),
    ] {
        conformance::middleware_refuses(&middleware, &refused, status).await;
    }
    let (issuer, audience) = (properties[0], properties[1]);
    let wrong: &[Wrong<'_>] = &[
        ("issuer", &[audience]),
        ("audience", &[issuer]),
        ("jwksURL", &[issuer, audience, ("jwksURL", "no url")]),
        ("jwksURL", &[issuer, audience, ("jwksURL", "file:///keys")]),
        ("issuer", &[("issuer", "somebody"), audience]),
    ];
    refuses_settings("bearer", wrong).await;
}
