//! The JWKS validator. Tokens come from a second sentry, whose OIDC server publishes its keys.

use base64::{Engine, engine::general_purpose::STANDARD};
use outrigger_wire::sentry::v1::{SignCertificateRequest, sign_certificate_request::TokenValidator};
use tonic::Code;

use crate::{
    oidc::TlsFiles,
    running::{Prepared, Running, SENTRY, chain, eventually, local, prepare, request, request_with, start},
};

/// A sentry that issues tokens for workloads.
async fn issuer() -> Running {
    start(&["-jwt-enabled", "-oidc-enabled", "-oidc-server-tls-enabled=false"]).await
}

/// Its token for `default/<app>`.
async fn token_for(issuer: &Running, app: &str, audience: &str) -> String {
    let request = SignCertificateRequest {
        id: app.to_owned(),
        jwt_audiences: vec![audience.to_owned()],
        ..request()
    };
    issuer.sign(request).await.unwrap().jwt.unwrap()
}

async fn token(issuer: &Running) -> String {
    token_for(issuer, "myapp", SENTRY).await
}

fn with_source(source: &str, more: &str) -> Prepared {
    let sentry = prepare(&[]);
    let source = source.replace('\'', "''");
    sentry.configure(&format!(
        "{{tokenValidators: [{{name: JWKS, options: {{source: '{source}'{more}}}}}]}}"
    ));
    sentry
}

fn set_of(issuer: &Running) -> String {
    std::fs::read_to_string(issuer.credentials.path().join("jwks.json")).unwrap()
}

async fn accepts(sentry: &Running, token: String) -> bool {
    sentry.sign(request_with(token)).await.is_ok()
}

#[tokio::test]
async fn verifies_tokens_of_every_source() {
    let issuer = issuer().await;
    let set = set_of(&issuer);
    let sources = [
        format!("http://{}/jwks.json", local(issuer.addresses.oidc.unwrap())),
        issuer.credentials.path().join("jwks.json").display().to_string(),
        STANDARD.encode(&set),
        set,
    ];
    for source in sources {
        let sentry = with_source(&source, "").start().await;
        let response = sentry
            .sign(request_with(token(&issuer).await))
            .await
            .expect(&source);
        let id = outrigger_identity::peer_id(&chain(&response)).unwrap();
        assert_eq!(id.as_str(), "spiffe://public/ns/default/myapp");
    }
}

#[tokio::test]
async fn https_source_uses_custom_ca() {
    let tls = TlsFiles::new();
    let issuer = start(&[
        "-jwt-enabled",
        "-oidc-enabled",
        &format!("-oidc-server-tls-cert-file={}", tls.certificate_path()),
        &format!("-oidc-server-tls-key-file={}", tls.key_path()),
    ])
    .await;
    let source = format!(
        "https://localhost:{}/jwks.json",
        issuer.addresses.oidc.unwrap().port()
    );
    let inline = serde_json::to_string(&tls.certificate_pem()).unwrap();
    for ca in [inline, tls.certificate_path()] {
        let sentry = with_source(&source, &format!(", caCertificate: {ca}"))
            .start()
            .await;
        assert!(accepts(&sentry, token(&issuer).await).await);
    }
    let refusal = with_source(&source, "").refusal().await;
    assert!(
        refusal.contains("cannot fetch the JWKS from https://localhost"),
        "{refusal}"
    );
}

#[tokio::test]
async fn refusals_name_token_error() {
    let issuer = issuer().await;
    let sentry = with_source(&set_of(&issuer), "").start().await;
    let elsewhere = start(&["-jwt-enabled"]).await;
    let mut forged = token(&issuer).await;
    // The remaining characters are still valid base64.
    forged.truncate(forged.len() - 6);
    for (token, wanted) in [
        (String::new(), "the request does not contain a token"),
        (
            "nonsense".to_owned(),
            "token validation failed: the token is not a signed JWT",
        ),
        (
            token_for(&issuer, "myapp", "other").await,
            "token validation failed: \"aud\" not satisfied",
        ),
        (
            token_for(&issuer, "other", SENTRY).await,
            "token validation failed: \"sub\" not satisfied",
        ),
        (
            token(&elsewhere).await,
            "token validation failed: could not verify message",
        ),
        (forged, "token validation failed: could not verify message"),
    ] {
        let status = sentry.sign(request_with(token)).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert!(status.message().contains(wanted), "{status}");
    }
}

#[tokio::test]
async fn requires_validator_name() {
    let issuer = issuer().await;
    let sentry = with_source(&set_of(&issuer), "").start().await;
    for (validator, wanted) in [
        (
            TokenValidator::Unknown,
            "a validator name must be specified in this environment",
        ),
        (TokenValidator::Insecure, "the requested validator is not enabled"),
        (
            TokenValidator::Kubernetes,
            "the requested validator is not enabled",
        ),
    ] {
        let request = SignCertificateRequest {
            token_validator: validator.into(),
            ..request_with(token(&issuer).await)
        };
        let status = sentry.sign(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, wanted));
    }
}

#[tokio::test]
async fn reloads_changed_key_set_file() {
    let (old, new) = (issuer().await, issuer().await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    std::fs::write(&file, set_of(&old)).unwrap();
    let sentry = with_source(&file.display().to_string(), "").start().await;
    assert!(accepts(&sentry, token(&old).await).await && !accepts(&sentry, token(&new).await).await);

    std::fs::write(&file, "{broken").unwrap();
    let draft = folder.path().join("draft");
    std::fs::write(&draft, set_of(&new)).unwrap();
    assert!(
        accepts(&sentry, token(&old).await).await,
        "a broken file changes nothing"
    );
    std::fs::rename(&draft, &file).unwrap();
    let fresh = token(&new).await;
    eventually(async || accepts(&sentry, fresh.clone()).await).await;
    assert!(!accepts(&sentry, token(&old).await).await);
}

#[tokio::test]
async fn refetches_url_after_interval() {
    let issuer = issuer().await;
    let source = format!("http://{}/jwks.json", local(issuer.addresses.oidc.unwrap()));
    let sentry = with_source(&source, ", minRefreshInterval: 1001ms").start().await;
    let other = start(&["-jwt-enabled"]).await;
    let fresh = token(&other).await;
    assert!(!accepts(&sentry, fresh.clone()).await);
    // The issuer adopts the other one's keys and publishes them.
    for name in ["jwt.key", "jwks.json"] {
        std::fs::copy(
            other.credentials.path().join(name),
            issuer.credentials.path().join(name),
        )
        .unwrap();
    }
    eventually(async || accepts(&sentry, fresh.clone()).await).await;
}

#[tokio::test]
async fn unusable_source_fails_start() {
    for (source, more, wanted) in [
        (
            "/no/such/file",
            "",
            "must be an https:// or http:// URL, an existing file, or a JWK set",
        ),
        (
            "{\"keys\": 1}",
            "",
            "the JWKS from the configuration is not valid",
        ),
        (
            "http://127.0.0.1:1/",
            "",
            "cannot fetch the JWKS from http://127.0.0.1:1/",
        ),
        (
            "https://localhost/",
            ", caCertificate: /no/such/ca.pem",
            "/no/such/ca.pem",
        ),
    ] {
        let refusal = with_source(source, more).refusal().await;
        assert!(refusal.contains(wanted), "{refusal}");
    }
}
