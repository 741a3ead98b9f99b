//! Calls that leave the mesh: HTTP endpoints by name and by URL.

use http::{Request, Response};
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::common::{App, Net, app, fed, get, post, request};

fn resource(name: &str, spec: &str) -> String {
    format!("apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: {name}\nspec:\n{spec}\n")
}

async fn outside(request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/base/teapot" => app::text(418, "short and stout"),
        "/base/moved" => {
            let mut response = app::text(302, "");
            response
                .headers_mut()
                .insert("location", "/base/teapot".parse().unwrap());
            response
        }
        _ => app::echo(request).await,
    }
}

#[tokio::test]
async fn calls_endpoint_by_name() {
    let net = Net::plain();
    let app = App::start(outside).await;
    let spec = format!(
        "  baseUrl: http://127.0.0.1:{}/base\n  headers:\n  - name: x-key\n    value: from the resource",
        app.port
    );
    let node = net
        .sidecar("me")
        .env("APP_API_TOKEN", "for the app")
        .resource(&resource("shop", &spec))
        .start()
        .await;
    let sent = request(
        "PUT",
        "/v1.0/invoke/shop/method/orders/a%20b?c=d",
        &[
            "x-key: from the caller",
            "x-other: 1",
            "connection: x-b",
            "x-b: 1",
        ],
        "data",
    );
    let answer = node.ask(sent).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "data"),
        "{}",
        answer.text()
    );
    let seen = app.last();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("PUT", "/base/orders/a%20b?c=d")
    );
    assert_eq!(seen.header("x-key"), Some("from the resource"));
    assert_eq!(seen.header("x-other"), Some("1"));
    assert_eq!(seen.header("host"), Some(&*format!("127.0.0.1:{}", app.port)));
    for gone in ["x-b", "dapr-api-token", "x-forwarded-for", "dapr-caller-app-id"] {
        assert!(!seen.headers.contains_key(gone), "{gone} leaves the mesh");
    }
    for (target, seen) in [("", "/base"), ("?c=d", "/base?c=d"), ("a", "/base/a")] {
        let target = format!("/v1.0/invoke/shop/method/{target}");
        assert_eq!(node.ask(get(&target)).await.status, 200);
        assert_eq!(app.last().target, seen, "{target}");
    }
    let answer = node.ask(get("/v1.0/invoke/shop/method/teapot")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (418, "short and stout"));
    let answer = node.ask(get("/v1.0/invoke/shop/method/moved")).await;
    assert_eq!(answer.status, 418, "a named endpoint's redirects are followed");
}

#[tokio::test]
async fn follows_only_safe_redirects() {
    let net = Net::plain();
    let other = App::echo().await;
    let elsewhere = format!("http://127.0.0.1:{}/there", other.port);
    let app = App::start(move |request| {
        let elsewhere = elsewhere.clone();
        async move {
            let path = request.uri().path();
            let (status, location) = match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
                Some((status, "elsewhere")) => (status, elsewhere.as_str()),
                Some((status, _)) => (status, path),
                None => ("404", path),
            };
            let mut response = app::text(status.parse().unwrap(), "moved");
            response
                .headers_mut()
                .insert("location", location.parse().unwrap());
            response
        }
    })
    .await;
    let headers = "  headers:\n  - name: x-key\n    value: secret";
    let spec = format!("  baseUrl: http://127.0.0.1:{}\n{headers}", app.port);
    let node = net.sidecar("me").resource(&resource("shop", &spec)).start().await;
    for (verb, method, calls) in [
        ("GET", "307/here", 1),
        ("POST", "308/here", 1),
        ("GET", "301/elsewhere", 1),
        ("GET", "302/elsewhere", 1),
        ("GET", "307/elsewhere", 1),
        // Redirects to itself, up to the limit.
        ("GET", "302/here", 11),
    ] {
        let before = app.calls();
        let target = format!("/v1.0/invoke/shop/method/{method}");
        let answer = node.ask(request(verb, &target, &[], Body::Empty)).await;
        let status = method.split_once('/').unwrap().0;
        assert_eq!(
            (answer.status.as_str(), answer.text()),
            (status, "moved"),
            "{method}"
        );
        assert!(answer.headers.contains_key("location"), "{method}");
        assert_eq!(app.calls() - before, calls, "{method}");
    }
    assert_eq!(other.calls(), 0);
}

#[tokio::test]
async fn forwards_non_utf8_method_over_http() {
    let net = Net::plain();
    let app = App::start(outside).await;
    let spec = format!("  baseUrl: http://127.0.0.1:{}", app.port);
    let node = net.sidecar("me").app(app.port);
    let node = node.resource(&resource("shop", &spec)).start().await;
    for id in ["me", "shop"] {
        let target = format!("/v1.0/invoke/{id}/method/a/../%ff%fe/b?c=%ff");
        assert_eq!(node.ask(get(&target)).await.status, 200, "{id}");
        assert_eq!(app.last().target, "/%FF%FE/b?c=%ff", "{id}");
    }
    let answer = node.ask(get("/v1.0/invoke/other/method/%ff%fe")).await;
    let message = answer.error(400, "ERR_DIRECT_INVOKE");
    assert!(
        message.starts_with("failed to invoke, id: other, err: the method is not UTF-8"),
        "{message}"
    );
}

#[tokio::test]
async fn method_stays_within_endpoint() {
    let net = Net::plain();
    let app = App::start(outside).await;
    let spec = format!(
        "  baseUrl: http://127.0.0.1:{}/base/v1\n  headers:\n  - name: x-key\n    value: from the resource",
        app.port
    );
    let node = net.sidecar("me").resource(&resource("shop", &spec)).start().await;
    for method in [
        "..;/admin",
        "..%3b/admin",
        "..%5Cadmin",
        "a/..;x/..;/admin",
        "%252e%252e/admin",
        "%252e%252e%252fadmin",
        "%25252e%25252e/admin",
    ] {
        let answer = node.ask(get(&format!("/v1.0/invoke/shop/method/{method}"))).await;
        let message = answer.error(400, "ERR_DIRECT_INVOKE");
        assert!(
            message.contains("leads out of the baseUrl of http endpoint shop"),
            "{message}"
        );
    }
    assert_eq!(app.calls(), 0);
    for (method, target) in [
        ("x/../items?x=../..", "/base/v1/items?x=../.."),
        ("a%2F..a;b/c..", "/base/v1/a/..a;b/c.."),
        ("100%25/...", "/base/v1/100%25/..."),
    ] {
        let answer = node.ask(get(&format!("/v1.0/invoke/shop/method/{method}"))).await;
        assert_eq!(answer.status, 200, "{method}: {}", answer.text());
        assert_eq!(app.last().target, target);
    }
    // A call by URL has no endpoint headers that could leak.
    let url = format!("http://127.0.0.1:{}/base/v1", app.port);
    let answer = node
        .ask(get(&format!("/v1.0/invoke/{url}/method/..;/admin")))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn calls_endpoint_by_url() {
    let net = Net::plain();
    let app = App::start(outside).await;
    let node = net
        .sidecar("me")
        .env("APP_API_TOKEN", "for the app")
        .start()
        .await;
    let base = format!("http://127.0.0.1:{}", app.port);
    let escaped = base.replace(':', "%3A").replace('/', "%2F");
    for id in [&base, &escaped] {
        let answer = node
            .ask(post(&format!("/v1.0/invoke/{id}/method/base/x?y=1"), "data"))
            .await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "data"), "{id}");
        assert_eq!(app.last().target, "/base/x?y=1");
        assert_eq!(
            app.last().header("dapr-api-token"),
            None,
            "the token is for the own app"
        );
    }
    for method in ["GET", "HEAD"] {
        let (sender, body) = fed();
        let target = format!("/v1.0/invoke/{base}/method/base/x");
        let sent = request(method, &target, &["transfer-encoding: chunked"], body);
        let (answer, _) = tokio::join!(node.ask(sent), async move {
            sender.send(Ok("data".into())).await.unwrap();
        });
        assert_eq!(answer.status, 200);
        assert_eq!(
            app.last().header("transfer-encoding"),
            Some("chunked"),
            "{method}"
        );
    }
    let answer = node
        .ask(get(&format!("/v1.0/invoke/{base}/method/base/moved")))
        .await;
    assert_eq!(
        answer.status, 302,
        "redirects of a URL are the caller's to follow"
    );
    assert_eq!(answer.header("location"), Some("/base/teapot"));
    let header = format!("dapr-app-id: {base}");
    let answer = node
        .ask(request("GET", "/base/teapot", &[&header], Body::Empty))
        .await;
    assert_eq!(answer.status, 418);
    // No listener.
    app.stop().await;
    let answer = node.ask(get(&format!("/v1.0/invoke/{base}/method/m"))).await;
    answer.error(500, "ERR_DIRECT_INVOKE");
}

/// A server certificate for 127.0.0.1 with its own root.
struct Tls {
    root: String,
    chain: Vec<rustls::pki_types::CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
    client: (String, String),
}

impl Tls {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&n| n.to_owned()).collect();
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(names)
                .unwrap()
                .signed_by(&key, &root)
                .unwrap();
            (certificate, key)
        };
        let (server, key) = leaf(&["127.0.0.1"]);
        let (client, client_key) = leaf(&["client.example"]);
        Self {
            root: root.pem(),
            chain: vec![server.der().clone()],
            key: key.serialize_der().try_into().unwrap(),
            client: (client.pem(), client_key.serialize_pem()),
        }
    }

    /// A server that requires client certificates of the same root.
    fn server(&self) -> rustls::ServerConfig {
        use rustls::pki_types::pem::PemObject;
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        let root = rustls::pki_types::CertificateDer::from_pem_slice(self.root.as_bytes()).unwrap();
        roots.add(root).unwrap();
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            roots.into(),
            std::sync::Arc::clone(&provider),
        );
        rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .unwrap()
    }
}

/// A YAML block scalar below `value:`.
fn block(pem: &str) -> String {
    let lines: Vec<_> = pem
        .lines()
        .map(|line| format!("        {}", line.trim_end()))
        .collect();
    format!("|\n{}", lines.join("\n"))
}

#[tokio::test]
async fn uses_tls_settings_of_endpoint() {
    let net = Net::plain();
    let tls = Tls::new();
    let app = App::serve_tls(tls.server(), outside).await;
    let (certificate, key) = &tls.client;
    let whole = format!(
        "  baseUrl: https://127.0.0.1:{}/base\n  clientTLS:\n    rootCA:\n      value: {}\n    certificate:\n      \
         value: {}\n    privateKey:\n      value: {}",
        app.port,
        block(&tls.root),
        block(certificate),
        block(key)
    );
    let untrusting = format!("  baseUrl: https://127.0.0.1:{}/base", app.port);
    let anonymous = format!(
        "  baseUrl: https://127.0.0.1:{}/base\n  clientTLS:\n    rootCA:\n      value: {}",
        app.port,
        block(&tls.root)
    );
    let broken = format!(
        "  baseUrl: https://127.0.0.1:{}/base\n  clientTLS:\n    rootCA:\n      value: no certificate",
        app.port
    );
    let node = net
        .sidecar("me")
        .resource(&resource("whole", &whole))
        .resource(&resource("untrusting", &untrusting))
        .resource(&resource("anonymous", &anonymous))
        .resource(&resource("broken", &broken))
        .start()
        .await;
    let answer = node.ask(post("/v1.0/invoke/whole/method/m", "secret")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "secret"),
        "{}",
        answer.text()
    );
    for name in ["untrusting", "anonymous", "broken"] {
        let answer = node
            .ask(post(&format!("/v1.0/invoke/{name}/method/m"), "secret"))
            .await;
        answer.error(500, "ERR_DIRECT_INVOKE");
        assert_eq!(
            answer.text().contains("tls: failed to verify certificate"),
            name == "untrusting",
            "{name}: {}",
            answer.text()
        );
    }
    assert_eq!(app.calls(), 1);
}

#[tokio::test]
async fn resolves_endpoint_secrets() {
    let net = Net::plain();
    let tls = Tls::new();
    let app = App::serve_tls(tls.server(), outside).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets.json");
    let (certificate, key) = &tls.client;
    let secrets = serde_json::json!({
        "token": "Bearer hush", "root": tls.root, "certificate": certificate, "key": key,
    });
    std::fs::write(&file, secrets.to_string()).unwrap();
    let store = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: vault\nspec:\n  type: \
         secretstores.local.file\n  version: v1\n  metadata:\n  - name: secretsFile\n    value: {}\n",
        file.display()
    );
    let from = |secret: &str| format!("      secretKeyRef:\n        name: {secret}\n");
    let spec = format!(
        "  baseUrl: https://127.0.0.1:{}/base\n  headers:\n  - name: authorization\n    secretKeyRef:\n      \
         name: token\n      key: token\n  - name: x-none\n    secretKeyRef:\n      name: nosuch\n  - name: \
         x-plain\n    value: plain\n  clientTLS:\n    rootCA:\n{}    certificate:\n{}    \
         privateKey:\n{}auth:\n  secretStore: vault",
        app.port,
        from("root"),
        from("certificate"),
        from("key")
    );
    let node = net
        .sidecar("me")
        .resource(&resource("shop", &spec))
        .resource(&store)
        .start()
        .await;
    let answer = node.ask(post("/v1.0/invoke/shop/method/m", "order")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "order"),
        "{}",
        answer.text()
    );
    let seen = app.last();
    assert_eq!(seen.header("authorization"), Some("Bearer hush"));
    assert_eq!(seen.header("x-plain"), Some("plain"));
    assert_eq!(seen.header("x-none"), None);
}
