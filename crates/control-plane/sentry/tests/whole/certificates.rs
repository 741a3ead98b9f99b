//! Certificate requests: their responses and refusals.

use outrigger_identity::pem;
use outrigger_wire::sentry::v1::SignCertificateRequest;
use tokio::{io::AsyncReadExt, net::TcpStream};
use tonic::Code;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::running::{TIMEOUT, chain, request, start};

#[tokio::test]
async fn issues_workload_certificate() {
    let sentry = start(&[]).await;
    let response = sentry.sign(request()).await.unwrap();
    let chain = chain(&response);
    assert_eq!(chain.len(), 2);
    let id = outrigger_identity::peer_id(&chain).unwrap();
    assert_eq!(id.as_str(), "spiffe://public/ns/default/myapp");
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    assert_eq!(
        response.valid_until.unwrap().seconds,
        leaf.validity().not_after.timestamp()
    );
    let lifetime = leaf.validity().not_after.timestamp() - leaf.validity().not_before.timestamp();
    assert_eq!(lifetime, 24 * 3600 + 15 * 60);
    let [roots] = &response.trust_chain_certificates[..] else {
        panic!("one bundle")
    };
    let roots = pem::parse_certificates(roots).unwrap();
    assert!(pem::is_signed_by(&chain[0], &chain[1]) && pem::is_signed_by(&chain[1], &roots[0]));
    assert_eq!(response.jwt, None);

    assert_eq!(
        sentry
            .metric("dapr_sentry_cert_sign_request_received_total")
            .await,
        1.0
    );
    assert_eq!(sentry.metric("dapr_sentry_cert_sign_success_total").await, 1.0);
    assert_eq!(
        sentry.metric("dapr_sentry_issuercert_changed_total").await,
        1.0,
        "generated"
    );
    sentry.stop().await.unwrap();
}

#[tokio::test]
async fn uses_lifetimes_of_configuration() {
    let sentry = crate::running::prepare(&[]);
    sentry.configure("{workloadCertTTL: 1h, allowedClockSkew: 1m}");
    let sentry = sentry.start().await;
    let chain = chain(&sentry.sign(request()).await.unwrap());
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    assert_eq!(
        leaf.validity().not_after.timestamp() - leaf.validity().not_before.timestamp(),
        3660
    );
}

#[tokio::test]
async fn issues_dns_names_to_control_plane() {
    let sentry = start(&[]).await;
    let request = SignCertificateRequest {
        id: "dapr-injector".into(),
        trust_domain: "localhost".into(),
        ..request()
    };
    let chain = chain(&sentry.sign(request).await.unwrap());
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    let names = &leaf
        .subject_alternative_name()
        .unwrap()
        .unwrap()
        .value
        .general_names;
    let wanted = [
        GeneralName::URI("spiffe://localhost/ns/default/dapr-injector"),
        GeneralName::DNSName("dapr-sidecar-injector.default.svc"),
    ];
    assert_eq!(names[..], wanted);
}

#[tokio::test]
async fn refusals_have_dapr_codes_and_texts() {
    let sentry = start(&[]).await;
    let good = request();
    let cases = [
        (
            SignCertificateRequest {
                token_validator: -1,
                ..SignCertificateRequest::default()
            },
            Code::InvalidArgument,
            "the requested validator is not enabled",
        ),
        (
            SignCertificateRequest {
                certificate_signing_request: Default::default(),
                ..good.clone()
            },
            Code::PermissionDenied,
            "CSR is required",
        ),
        (
            SignCertificateRequest {
                namespace: String::new(),
                ..good.clone()
            },
            Code::PermissionDenied,
            "namespace is required",
        ),
        (
            SignCertificateRequest {
                certificate_signing_request: b"x".to_vec().into(),
                ..good.clone()
            },
            Code::InvalidArgument,
            "invalid certificate signing request",
        ),
        (
            SignCertificateRequest {
                certificate_signing_request: pem::encode("CERTIFICATE REQUEST", b"x").into_bytes().into(),
                ..good.clone()
            },
            Code::InvalidArgument,
            "failed to parse certificate signing request: ",
        ),
    ];
    let count = cases.len();
    for (request, code, text) in cases {
        let status = sentry.sign(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    }
    let failures = sentry
        .metric("dapr_sentry_cert_sign_failure_total{reason=\"sign\"}")
        .await;
    assert_eq!(failures, count as f64);
}

#[tokio::test]
async fn limits_request_size() {
    let sentry = start(&[]).await;
    let request = SignCertificateRequest {
        token: "a".repeat(1 << 20),
        ..request()
    };
    assert_eq!(sentry.sign(request).await.unwrap_err().code(), Code::OutOfRange);
    sentry.sign(self::request()).await.expect("sentry still answers");
}

#[tokio::test]
async fn refuses_peers_without_tls() {
    let sentry = start(&[]).await;
    let mut stream = TcpStream::connect(sentry.addresses.grpc).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer))
        .await
        .expect("still open");
    // A TLS alert may precede it.
    assert!(ended.is_err() || answer.len() < 16, "{answer:?}");
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let sentry = start(&[]).await;
    let mut client = sentry.client();
    client.sign_certificate(request()).await.unwrap();
    let _silent = TcpStream::connect(sentry.addresses.grpc).await.unwrap();
    let address = sentry.addresses.grpc;
    sentry.stop().await.unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "the port is still open"
    );
}
