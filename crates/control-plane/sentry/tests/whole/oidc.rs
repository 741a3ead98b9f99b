//! The OIDC server, and tokens as its clients see them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use outrigger_identity::pem;
use outrigger_wire::sentry::v1::SignCertificateRequest;
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{io::AsyncReadExt, net::TcpStream};
use tonic::Code;

use crate::running::{eventually, get, get_trusting, local, prepare, request, start};

/// A certificate for `localhost` and its key on disk.
pub(crate) struct TlsFiles {
    folder: TempDir,
}

impl TlsFiles {
    pub(crate) fn new() -> Self {
        let files = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        files.write();
        files
    }

    fn write(&self) {
        let key = KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        std::fs::write(self.key_path(), key.serialize_pem()).unwrap();
        std::fs::write(self.certificate_path(), params.self_signed(&key).unwrap().pem()).unwrap();
    }

    pub(crate) fn certificate_path(&self) -> String {
        self.folder.path().join("tls.crt").display().to_string()
    }

    pub(crate) fn key_path(&self) -> String {
        self.folder.path().join("tls.key").display().to_string()
    }

    pub(crate) fn certificate_pem(&self) -> String {
        std::fs::read_to_string(self.certificate_path()).unwrap()
    }

    fn certificate(&self) -> CertificateDer<'static> {
        pem::parse_certificates(self.certificate_pem().as_bytes())
            .unwrap()
            .remove(0)
    }
}

/// The audiences in the claim `aud` of a token.
fn audiences(token: &str) -> Value {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["aud"].take()
}

#[tokio::test]
async fn issues_token_for_each_audience() {
    let sentry = start(&["-jwt-enabled"]).await;
    let with = |count: usize| SignCertificateRequest {
        jwt_audiences: (0..count).map(|n| format!("audience-{n}")).collect(),
        ..request()
    };
    let response = sentry.sign(with(2)).await.unwrap();
    let all = ["public", "audience-0", "audience-1"];
    assert_eq!(audiences(&response.jwt.unwrap()), Value::from(all.to_vec()));
    assert_eq!(response.per_audience_jwts.len(), all.len());
    for audience in all {
        let of = audiences(&response.per_audience_jwts[audience]);
        assert_eq!(of, Value::from(vec![audience]));
    }
    sentry.sign(with(64)).await.unwrap();
    let refused = sentry.sign(with(65)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("65 JWT audiences"), "{refused}");
}

const DISCOVERY: &str = "/.well-known/openid-configuration";

#[tokio::test]
async fn discovery_refers_to_keys() {
    let sentry = start(&[
        "-jwt-enabled=true",
        "-oidc-enabled=true",
        "-oidc-server-tls-enabled=false",
    ])
    .await;
    let base = format!("http://{}", local(sentry.addresses.oidc.unwrap()));
    let (status, document) = get(&format!("{base}{DISCOVERY}")).await;
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!((status, &document["issuer"]), (200, &Value::from(base.clone())));
    let (status, keys) = get(document["jwks_uri"].as_str().unwrap()).await;
    assert_eq!(status, 200);
    assert_eq!(
        keys,
        std::fs::read_to_string(sentry.credentials.path().join("jwks.json")).unwrap()
    );
    assert_eq!(get(&format!("{base}/")).await.0, 404);
    sentry.stop().await.unwrap();
}

#[tokio::test]
async fn oidc_requires_tokens() {
    let sentry = start(&["-oidc-enabled=true", "-oidc-server-tls-enabled=false"]).await;
    assert_eq!(sentry.addresses.oidc, None);
    let response = sentry.sign(request()).await.unwrap();
    assert!(response.jwt.is_none() && response.per_audience_jwts.is_empty());
}

#[tokio::test]
async fn reloads_oidc_certificate() {
    let tls = TlsFiles::new();
    let certificate = format!("-oidc-server-tls-cert-file={}", tls.certificate_path());
    let key = format!("-oidc-server-tls-key-file={}", tls.key_path());
    let sentry = start(&["-jwt-enabled", "-oidc-enabled", &certificate, &key]).await;
    let url = format!(
        "https://localhost:{}{DISCOVERY}",
        sentry.addresses.oidc.unwrap().port()
    );
    assert_eq!(get_trusting(&url, &[tls.certificate()]).await.0, 200);

    let old = tls.certificate();
    tls.write();
    let roots = [old.clone(), tls.certificate()];
    let address = sentry.addresses.oidc.unwrap();
    eventually(async || presented(address, &roots).await != old).await;
    assert_eq!(get_trusting(&url, &[tls.certificate()]).await.0, 200);
}

/// The certificate that a server presents.
async fn presented(
    address: std::net::SocketAddr,
    roots: &[CertificateDer<'static>],
) -> CertificateDer<'static> {
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    let stream = TcpStream::connect(local(address)).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = connector
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

#[tokio::test]
async fn unhealthy_until_tls_files_exist() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let sentry = prepare(&[
        "-jwt-enabled",
        "-oidc-enabled",
        &format!("-oidc-server-tls-cert-file={}", path("c")),
        &format!("-oidc-server-tls-key-file={}", path("k")),
    ]);
    let drain = tokio_util::sync::CancellationToken::new();
    let built = sentry.build(&drain).await.unwrap();
    let addresses = built.addresses();
    let task = tokio::spawn(built.run());
    let healthz = format!("http://{}/healthz", local(addresses.healthz));
    assert_eq!(get(&healthz).await.0, 503);
    drain.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn disconnects_slow_clients() {
    let sentry = start(&[
        "-jwt-enabled=true",
        "-oidc-enabled=true",
        "-oidc-server-tls-enabled=false",
    ])
    .await;
    let mut stream = TcpStream::connect(local(sentry.addresses.oidc.unwrap()))
        .await
        .unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /jwks.json HTT")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(crate::running::TIMEOUT, stream.read_to_end(&mut answer)).await;
    ended.expect("the connection is still open").ok();
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}
