//! A rotation of the CA with a small communicating fleet. Lifetimes are seconds; everything else is as in
//! production.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use outrigger_identity::{AnchorsSource, CaConfig, Expect, Identity, Mode, SecurityConfig, pem, server_name};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use time::OffsetDateTime;
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::running::{Running, TIMEOUT, eventually, prepare};

/// Remaining lifetime of the CA in seconds at the start of the test.
const LEFT: i64 = 24;

/// Writes a CA of P-256 keys, as Dapr's sentry made before v1.18, that expires soon, with the record that sentry generated it; returns its root.
fn write_old_ca(folder: &Path) -> String {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = now - time::Duration::HOUR;
    params.not_after = now + time::Duration::seconds(LEFT);
    let root_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let root = params.self_signed(&root_key).unwrap();
    let issuer_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let issuer = params
        .signed_by(&issuer_key, &Issuer::from_params(&params, &root_key))
        .unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, issuer.der());
    let made: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let record = format!("{{\"made\": \"{made}\"}}");
    for (name, text) in [
        ("ca-rotation.json", record),
        ("issuer.key", issuer_key.serialize_pem()),
        ("issuer.crt", issuer.pem()),
        ("ca.crt", root.pem()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    root.pem()
}

/// A sidecar that starts with this root and renews its certificate.
async fn sidecar(sentry: &Running, name: &str, root: &str, stop: &CancellationToken) -> Identity {
    let config = SecurityConfig {
        ca: CaConfig {
            sentry_address: sentry.addresses.grpc.to_string(),
            control_plane_trust_domain: "localhost".parse().unwrap(),
            control_plane_namespace: "default".to_owned(),
            app_id: name.to_owned(),
            namespace: Some("default".to_owned()),
            jwt_audiences: Vec::new(),
            mode: Mode::Standalone,
            token_file: None,
            env: Arc::new(|_| None),
        },
        anchors: AnchorsSource::Pem(root.to_owned()),
        directory: None,
        events: Arc::new(|_| {}),
    };
    let (identity, renewal) = outrigger_identity::start(config, stop).await.unwrap();
    tokio::spawn(renewal.run(stop.clone()));
    identity
}

/// A handshake in which both sides verify each other.
async fn meet(client: &Identity, server: &Identity) -> Result<(), std::io::Error> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let connector = TlsConnector::from(client.client_config(Expect::Any));
    let acceptor = TlsAcceptor::from(server.server_config());
    let (mut connected, mut accepted) = tokio::try_join!(
        connector.connect(server_name("localhost"), near),
        acceptor.accept(far)
    )?;
    // In TLS 1.3 a client learns of a refusal only after the handshake.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    accepted.write_all(b"x").await?;
    accepted.flush().await?;
    connected.read_exact(&mut [0]).await.map(drop)
}

fn ends(identity: &Identity) -> SystemTime {
    SystemTime::from(identity.svid().not_after())
}

/// Every valid certificate must be trusted.
async fn all_meet(fleet: &[&Identity]) {
    for client in fleet {
        for server in fleet {
            let until = ends(client).min(ends(server));
            if let Err(error) = meet(client, server).await {
                assert!(
                    until <= SystemTime::now(),
                    "{} and {}: {error}",
                    client.id(),
                    server.id()
                );
            }
        }
    }
}

#[tokio::test]
async fn fleet_stays_connected_during_rotation() {
    let prepared = prepare(&[]);
    prepared.configure("{workloadCertTTL: 2s, allowedClockSkew: 0s}");
    let root = write_old_ca(prepared.credentials.path());
    let old = pem::parse_certificates(root.as_bytes()).unwrap();
    let sentry = prepared.start().await;
    let stop = CancellationToken::new();
    let one = sidecar(&sentry, "one", &root, &stop).await;
    let two = sidecar(&sentry, "two", &root, &stop).await;
    let first = one.svid().chain()[1].clone();

    let begun = Instant::now();
    let mut phases = Vec::new();
    let mut late = None;
    loop {
        assert!(begun.elapsed() < TIMEOUT * 2, "it does not end: {phases:?}");
        let phase = sentry.metric("dapr_sentry_ca_rotation_phase").await;
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        all_meet(&[&one, &two]).await;
        if phase == 3.0 && late.is_none() {
            // Restarted with its original root.
            late = Some(sidecar(&sentry, "late", &root, &stop).await);
        }
        if phase == 1.0 {
            break;
        }
    }
    assert_eq!(phases, [2.0, 3.0, 1.0]);
    let bundle = pem::parse_certificates(&sentry.root()).unwrap();
    assert!(bundle.len() == 1 && bundle != old, "the old root is dropped");
    let (_, root) = X509Certificate::from_der(&bundle[0]).unwrap();
    assert_eq!(root.signature_algorithm.algorithm, OID_SIG_ED25519);
    let late = late.expect("it was started");
    eventually(async || [&one, &two, &late].iter().all(|it| it.svid().chain()[1] != first)).await;
    eventually(async || meet(&one, &late).await.is_ok() && meet(&late, &two).await.is_ok()).await;
    stop.cancel();
    sentry.stop().await.unwrap();
}
