//! The client of the authority against an in-process authority.
mod stub;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrigger_identity::testing::{Algorithm, Authority};
use outrigger_identity::{
    AnchorsSource, CaClient, CaConfig, Env, FetchError, IdentityDirectory, IdentityEvent, Mode,
    SecurityConfig, SvidSource, TrustAnchors, start,
};
use outrigger_testing::log_lines::Lines;
use rcgen::CertificateSigningRequestParams;
use stub::{Answer, StubCa};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tracing::Level;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

const SENTRY: &str = "spiffe://localhost/ns/dapr-system/dapr-sentry";

fn config(address: &str, env: &[(&str, &str)]) -> CaConfig {
    let env: HashMap<String, String> = env
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    CaConfig {
        sentry_address: address.to_owned(),
        control_plane_trust_domain: "localhost".parse().unwrap(),
        control_plane_namespace: "dapr-system".to_owned(),
        app_id: "cart".to_owned(),
        namespace: None,
        jwt_audiences: vec!["shop".to_owned()],
        mode: Mode::Standalone,
        token_file: None,
        env: Arc::new(move |name| env.get(name).cloned()),
    }
}

fn client(stub: &StubCa, env: &[(&str, &str)]) -> CaClient {
    CaClient::new(
        config(&stub.address, env),
        TrustAnchors::new(stub.authority.bundle()),
    )
    .unwrap()
}

async fn fetch_error(answers: Vec<Answer>) -> (FetchError, usize) {
    let stub = StubCa::start(SENTRY, answers).await;
    let error = client(&stub, &[]).fetch().await.unwrap_err();
    (error, stub.requests().len())
}

#[tokio::test]
async fn obtains_identity() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
    let svid = client(&stub, &[]).fetch().await.unwrap();
    assert_eq!(svid.id().as_str(), "spiffe://public/ns/default/cart");
    assert_eq!(svid.chain().len(), 2);
    assert!(svid.jwt().is_none());

    let [request] = stub.requests().try_into().unwrap();
    assert_eq!(
        (request.id.as_str(), request.namespace.as_str()),
        ("cart", "default")
    );
    assert_eq!(
        (
            request.trust_domain.as_str(),
            request.token.as_str(),
            request.token_validator
        ),
        ("", "", 0)
    );
    assert_eq!(request.jwt_audiences, ["shop"]);
    let text = String::from_utf8(request.certificate_signing_request.to_vec()).unwrap();
    assert!(text.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n"));
    let signing_request = CertificateSigningRequestParams::from_pem(&text).unwrap();
    assert_eq!(signing_request.params.distinguished_name.iter().count(), 0);
    assert!(signing_request.params.subject_alt_names.is_empty());
    assert_eq!(signing_request.public_key.algorithm(), &rcgen::PKCS_ED25519);
}

#[tokio::test]
async fn webhooks_have_rsa_keys() {
    for app_id in ["dapr-injector", "dapr-operator", "dapr-scheduler"] {
        let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
        let mut config = config(&stub.address, &[]);
        config.app_id = app_id.to_owned();
        let client = CaClient::new(config, TrustAnchors::new(stub.authority.bundle())).unwrap();
        let svid = client.fetch().await.unwrap();
        let (_, leaf) = X509Certificate::from_der(&svid.chain()[0]).unwrap();
        let key = leaf.public_key().parsed().unwrap();
        match app_id {
            "dapr-scheduler" => assert!(!matches!(key, PublicKey::RSA(_)), "{app_id}"),
            _ => assert_eq!(key.key_size(), 2048, "{app_id}"),
        }
    }
}

#[tokio::test]
async fn old_sentry_signs_p256_key() {
    let failed = || Answer::Refuse(Status::internal("failed to sign certificate"));
    let stub = StubCa::start(SENTRY, vec![failed(), Answer::Sign]).await;
    client(&stub, &[]).fetch().await.unwrap();
    let wanted = [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256];
    assert_eq!(stub.requests().len(), wanted.len());
    for (request, wanted) in stub.requests().iter().zip(wanted) {
        let text = std::str::from_utf8(&request.certificate_signing_request).unwrap();
        let request = CertificateSigningRequestParams::from_pem(text).unwrap();
        assert_eq!(request.public_key.algorithm(), wanted);
    }

    let (error, requests) = fetch_error(vec![failed(), failed()]).await;
    assert_eq!((requests, error.reason()), (2, "sign"));
    let (error, requests) = fetch_error(vec![Answer::Refuse(Status::internal("other"))]).await;
    assert_eq!((requests, error.reason()), (1, "sign"));
}

#[tokio::test]
async fn requests_use_new_keys() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign, Answer::Sign]).await;
    let client = client(&stub, &[]);
    let (one, two) = (client.fetch().await.unwrap(), client.fetch().await.unwrap());
    assert_ne!(one.key(), two.key());
}

#[tokio::test]
async fn environment_sets_identity_and_token() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
    let env = [
        ("SENTRY_LOCAL_IDENTITY", "till"),
        ("NAMESPACE", "shop"),
        ("DAPR_SENTRY_TOKEN_FILE", token.to_str().unwrap()),
    ];
    let svid = client(&stub, &env).fetch().await.unwrap();
    assert_eq!(svid.id().path(), "/ns/shop/till");
    let [request] = stub.requests().try_into().unwrap();
    assert_eq!(
        (request.id.as_str(), request.namespace.as_str()),
        ("till", "shop")
    );
    assert_eq!((request.token.as_str(), request.token_validator), ("secret", 3));
}

#[tokio::test]
async fn only_control_plane_requests_trust_domain() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign, Answer::Sign, Answer::Sign]).await;
    for (app_id, namespace) in [
        ("dapr-placement", "dapr-system"),
        ("dapr-placement", "shop"),
        ("cart", "dapr-system"),
    ] {
        let mut config = config(&stub.address, &[("NAMESPACE", "ignored")]);
        config.app_id = app_id.to_owned();
        config.namespace = Some(namespace.to_owned());
        let client = CaClient::new(config, TrustAnchors::new(stub.authority.bundle())).unwrap();
        client.fetch().await.unwrap();
    }
    let domains: Vec<_> = stub
        .requests()
        .into_iter()
        .map(|request| request.trust_domain)
        .collect();
    assert_eq!(domains, ["localhost", "", ""]);
}

#[tokio::test]
async fn retries_transient_errors() {
    let busy = |code| Answer::Refuse(Status::new(code, "busy"));
    let answers = vec![
        busy(Code::Unavailable),
        busy(Code::ResourceExhausted),
        Answer::Drop,
        busy(Code::Unavailable),
        Answer::Sign,
    ];
    let stub = StubCa::start(SENTRY, answers).await;
    client(&stub, &[]).fetch().await.unwrap();
    assert_eq!(stub.requests().len(), 5);
}

#[tokio::test]
async fn stops_after_five_attempts() {
    let answers = (0..6)
        .map(|_| Answer::Refuse(Status::unavailable("busy")))
        .collect();
    let (error, requests) = fetch_error(answers).await;
    assert_eq!((requests, error.reason()), (5, "sign"));
    assert!(error.to_string().contains("after 5 attempts"), "{error}");
}

#[tokio::test]
async fn rejection_is_final() {
    let answers = vec![
        Answer::Refuse(Status::permission_denied("token validation failed")),
        Answer::Sign,
    ];
    let (error, requests) = fetch_error(answers).await;
    assert_eq!((requests, error.reason()), (1, "sign"));
    let text = error.to_string();
    for part in [
        "127.0.0.1:",
        "\"cart\"",
        "\"default\"",
        "token validation failed",
        "DAPR_SENTRY_TOKEN_FILE",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn rejection_names_missing_configuration() {
    let cause = "failed to get configuration";
    let (error, _) = fetch_error(vec![Answer::Refuse(Status::permission_denied(cause))]).await;
    let text = error.to_string();
    assert!(
        text.contains("dapr.io/config") && !text.contains("DAPR_SENTRY_TOKEN_FILE"),
        "{text}"
    );
}

#[tokio::test]
async fn retries_hanging_authority() {
    let stub = StubCa::start(SENTRY, vec![Answer::Hang, Answer::Sign]).await;
    let security = SecurityConfig {
        ca: config(&stub.address, &[]),
        anchors: AnchorsSource::Bundle(stub.authority.bundle()),
        directory: None,
        events: events().1,
    };
    let (begin, lines) = (Instant::now(), Lines::new());
    start(security, &CancellationToken::new())
        .await
        .map(drop)
        .unwrap();
    assert!(begin.elapsed() >= Duration::from_secs(3));
    assert_eq!(stub.requests().len(), 2);
    let warnings = lines.take("outrigger_identity::security", Level::WARN);
    let [line] = warnings.as_slice() else {
        panic!("one line: {warnings:?}")
    };
    assert!(
        line.message
            .contains(&format!("waiting for sentry at {}", stub.address)),
        "{line}"
    );
}

#[tokio::test]
async fn rejects_impostor() {
    let stub = StubCa::start(
        "spiffe://localhost/ns/dapr-system/dapr-placement",
        vec![Answer::Sign],
    )
    .await;
    let error = client(&stub, &[]).fetch().await.unwrap_err();
    assert_eq!((error.reason(), stub.requests().len()), ("sentry_conn", 0));
    let text = error.to_string();
    assert!(
        text.contains(&stub.address) && text.contains("dapr-placement, expected"),
        "{text}"
    );
}

#[tokio::test]
async fn rejects_authority_with_other_root() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
    let other = Authority::new("localhost", Algorithm::P256);
    let client = CaClient::new(config(&stub.address, &[]), TrustAnchors::new(other.bundle())).unwrap();
    let error = client.fetch().await.unwrap_err();
    assert_eq!(error.reason(), "sentry_conn");
    assert!(error.to_string().contains("trust anchor"), "{error}");
}

#[tokio::test]
async fn no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let anchors = TrustAnchors::new(Authority::new("td", Algorithm::P256).bundle());
    let error = CaClient::new(config(&address, &[]), anchors.clone())
        .unwrap()
        .fetch()
        .await
        .unwrap_err();
    closing.abort();
    assert_eq!(error.reason(), "sentry_conn");
    assert!(error.to_string().contains(&address), "{error}");
    assert!(matches!(
        CaClient::new(config("", &[]), anchors),
        Err(FetchError::Address { .. })
    ));
}

#[tokio::test]
async fn fails_on_unreadable_token() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
    let error = client(&stub, &[("DAPR_SENTRY_TOKEN_FILE", "")])
        .fetch()
        .await
        .unwrap_err();
    assert_eq!((error.reason(), stub.requests().len()), ("sentry_token", 0));
}

#[tokio::test]
async fn validates_responses() {
    for (answer, reason) in [
        (Answer::without_time(), "invalid_ts"),
        (Answer::with_time(i64::MAX), "invalid_ts"),
        (Answer::with_certificate("nonsense"), "sign"),
        (
            Answer::with_certificate(&Authority::new("td", Algorithm::P256).root_pem()),
            "sign",
        ),
        (Answer::with_jwt("nonsense"), "jwt_parse"),
        (Answer::with_jwt(&stub::jwt("[]")), "jwt_aud"),
        (Answer::with_jwt(&stub::jwt(r#"["elsewhere"]"#)), "jwt_aud"),
        (
            Answer::with_jwts(&stub::jwt(r#""public""#), "shop", ""),
            "jwt_parse",
        ),
        (
            Answer::with_jwts(
                &stub::jwt(r#""public""#),
                "shop",
                &stub::jwt(r#"["shop","bank"]"#),
            ),
            "jwt_aud",
        ),
    ] {
        let (error, requests) = fetch_error(vec![answer]).await;
        assert_eq!((error.reason(), requests), (reason, 1), "{error}");
    }
}

#[tokio::test]
async fn keeps_jwt() {
    let token = stub::jwt(r#"["public","shop"]"#);
    let stub = StubCa::start(SENTRY, vec![Answer::with_jwt(&token), Answer::with_jwt("")]).await;
    let client = client(&stub, &[]);
    let svid = client.fetch().await.unwrap();
    assert_eq!(svid.jwt().unwrap().token(), token);
    let of = |audience| svid.jwt_for(audience).map(|jwt| jwt.token());
    assert_eq!((of("shop"), of("bank")), (Some(token.as_str()), None));
    assert!(client.fetch().await.unwrap().jwt().is_none());
}

#[tokio::test]
async fn prefers_jwt_of_audience() {
    let (common, shop) = (stub::jwt(r#"["public","bank","shop"]"#), stub::jwt(r#""shop""#));
    let stub = StubCa::start(SENTRY, vec![Answer::with_jwts(&common, "shop", &shop)]).await;
    let svid = client(&stub, &[]).fetch().await.unwrap();
    let of = |audience| svid.jwt_for(audience).map(|jwt| jwt.token());
    assert_eq!(of("shop"), Some(shop.as_str()));
    assert_eq!(of("bank"), Some(common.as_str()));
    assert_eq!(of("elsewhere"), None);
}

fn events() -> (Arc<Mutex<Vec<IdentityEvent>>>, outrigger_identity::EventSink) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    (seen, Arc::new(move |event| sink.lock().unwrap().push(event)))
}

#[tokio::test]
async fn start_to_stop() {
    let stub = StubCa::start(SENTRY, vec![Answer::Sign]).await;
    let base = tempfile::tempdir().unwrap();
    let (seen, events) = events();
    let pem = stub.authority.root_pem();
    let env: Env = Arc::new(move |name| (name == "DAPR_TRUST_ANCHORS").then(|| pem.clone()));
    let directory = IdentityDirectory::new(base.path().join("identity"));
    let security = SecurityConfig {
        ca: config(&stub.address, &[]),
        anchors: AnchorsSource::from_env(&env),
        directory: Some(directory.clone()),
        events,
    };
    let cancel = CancellationToken::new();
    let (identity, renewal) = start(security, &cancel).await.unwrap();
    assert_eq!(identity.id().app_id(), "cart");
    assert!(directory.path().join("cert.pem").exists());
    let running = tokio::spawn(renewal.run(cancel.clone()));
    cancel.cancel();
    running.await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [IdentityEvent::InitOk]);
}

#[tokio::test]
async fn reports_failed_start() {
    let stub = StubCa::start(SENTRY, vec![Answer::Refuse(Status::permission_denied("no"))]).await;
    let cancel = CancellationToken::new();
    for (anchors, expected, text) in [
        (String::new(), vec![], "trust anchors are required"),
        (
            stub.authority.root_pem(),
            vec![IdentityEvent::InitFailed("sign")],
            "initial identity",
        ),
    ] {
        let (seen, events) = events();
        let ca = config(&stub.address, &[]);
        let security = SecurityConfig {
            ca,
            anchors: AnchorsSource::Pem(anchors),
            directory: None,
            events,
        };
        let error = start(security, &cancel).await.err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
