//! A provided CA, and changes of its files.

use std::{path::Path, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::running::{Running, chain, eventually, prepare, request};

/// Writes a new root, issuer and key.
fn write_ca(folder: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let root_key = KeyPair::generate().unwrap();
    let root = params.self_signed(&root_key).unwrap();
    let issuer_key = KeyPair::generate().unwrap();
    let issuer = params
        .signed_by(&issuer_key, &Issuer::from_params(&params, &root_key))
        .unwrap();
    std::fs::write(folder.join("issuer.key"), issuer_key.serialize_pem()).unwrap();
    std::fs::write(folder.join("issuer.crt"), issuer.pem()).unwrap();
    std::fs::write(folder.join("ca.crt"), root.pem()).unwrap();
}

/// The issuer that signs now.
async fn issuer(sentry: &Running) -> Vec<u8> {
    chain(&sentry.sign(request()).await.unwrap())[1].to_vec()
}

#[tokio::test]
async fn uses_provided_ca_unchanged() {
    let sentry = prepare(&[]);
    write_ca(sentry.credentials.path());
    let before = std::fs::read(sentry.credentials.path().join("issuer.crt")).unwrap();
    let sentry = sentry.start().await;
    let certificate = outrigger_identity::pem::parse_certificates(&before).unwrap();
    assert_eq!(issuer(&sentry).await, certificate[0].to_vec());
    assert_eq!(
        std::fs::read(sentry.credentials.path().join("issuer.crt")).unwrap(),
        before
    );
    assert_eq!(sentry.metric("dapr_sentry_issuercert_changed_total").await, 0.0);
}

#[tokio::test]
async fn mismatched_ca_fails_start() {
    let sentry = prepare(&[]);
    write_ca(sentry.credentials.path());
    let other = tempfile::tempdir().unwrap();
    write_ca(other.path());
    std::fs::copy(
        other.path().join("issuer.key"),
        sentry.credentials.path().join("issuer.key"),
    )
    .unwrap();
    let refusal = sentry.refusal().await;
    assert!(
        refusal.contains("issuer.key") && refusal.contains("not the private half"),
        "{refusal}"
    );
}

#[tokio::test]
async fn reloads_ca_without_interruption() {
    let sentry = prepare(&[]);
    write_ca(sentry.credentials.path());
    let sentry = sentry.start().await;
    let mut connected = sentry.client();
    connected.sign_certificate(request()).await.unwrap();
    let first = issuer(&sentry).await;

    // Broken material is not loaded.
    std::fs::write(sentry.credentials.path().join("issuer.key"), "broken").unwrap();
    eventually(async || sentry.metric("dapr_sentry_issuercert_changed_total").await == 1.0).await;
    let old_root = sentry.root();
    let old = connected.sign_certificate(request()).await.unwrap().into_inner();
    assert_eq!(chain(&old)[1].to_vec(), first);
    assert_eq!(*old.trust_chain_certificates[0], *old_root);

    write_ca(sentry.credentials.path());
    let replaced = async || {
        let response = connected.sign_certificate(request()).await.unwrap().into_inner();
        chain(&response)[1].to_vec() != first
    };
    eventually(replaced).await;
    assert_ne!(sentry.root(), old_root);
    // The server's own certificate comes from the new CA too.
    sentry
        .sign(request())
        .await
        .expect("clients with the new root are served");
    eventually(async || sentry.metric("dapr_sentry_issuercert_changed_total").await >= 2.0).await;
}

#[tokio::test]
async fn exports_issuer_expiry() {
    let sentry = prepare(&[]).start().await;
    let expiry = sentry.metric("dapr_sentry_issuercert_expiry_timestamp").await;
    let year = Duration::from_secs(365 * 24 * 3600);
    let wanted = (std::time::SystemTime::now() + year)
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!((expiry - wanted.as_secs_f64()).abs() < 60.0, "{expiry}");
}

#[tokio::test]
async fn missing_configuration_fails_start() {
    let sentry = prepare(&[]);
    std::fs::remove_file(sentry.configuration_file()).unwrap();
    assert!(sentry.refusal().await.contains("sentry.yaml"));
    sentry.configure("{workloadCertTTL: soon}");
    assert!(sentry.refusal().await.contains("workloadCertTTL"));
}

#[tokio::test]
async fn port_in_use_fails_start() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let refusal = prepare(&[&format!("-port={port}")]).refusal().await;
    let wanted = format!("the gRPC server cannot listen on 127.0.0.1:{port} (--port)");
    assert!(refusal.starts_with(&wanted), "{refusal}");
}

#[tokio::test]
async fn pipe_as_file_fails_start() {
    for name in ["ca.crt", "issuer.key"] {
        let sentry = prepare(&[]);
        write_ca(sentry.credentials.path());
        let path = sentry.credentials.path().join(name);
        std::fs::remove_file(&path).unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let refusal = sentry.refusal().await;
        assert!(
            refusal.contains(name) && refusal.contains("named pipe"),
            "{refusal}"
        );
    }
    let sentry = prepare(&[]);
    std::fs::remove_file(sentry.configuration_file()).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(sentry.configuration_file())
        .status();
    assert!(made.unwrap().success());
    let refusal = sentry.refusal().await;
    assert!(
        refusal.contains("sentry.yaml") && refusal.contains("named pipe"),
        "{refusal}"
    );
}

#[tokio::test]
async fn incomplete_ca_fails_start_unchanged() {
    for name in ["ca.crt", "issuer.crt", "issuer.key"] {
        let sentry = prepare(&[]);
        write_ca(sentry.credentials.path());
        std::fs::remove_file(sentry.credentials.path().join(name)).unwrap();
        let refusal = sentry.refusal().await;
        let helpful = refusal.contains("restore it") && refusal.contains("move all of them away");
        assert!(
            refusal.contains(&format!("{name} is missing")) && helpful,
            "{refusal}"
        );
        assert_eq!(std::fs::read_dir(sentry.credentials.path()).unwrap().count(), 2);
    }
}

#[tokio::test]
async fn vanished_files_keep_ca_in_use() {
    let sentry = prepare(&[]).start().await;
    let mut connected = sentry.client();
    let first = chain(&connected.sign_certificate(request()).await.unwrap().into_inner())[1].to_vec();
    let names = ["ca.crt", "issuer.crt", "issuer.key"];
    for name in names {
        std::fs::remove_file(sentry.credentials.path().join(name)).unwrap();
    }
    // Its creation was the first change. The reload of the second is over when the third begins.
    eventually(async || sentry.metric("dapr_sentry_issuercert_changed_total").await >= 2.0).await;
    std::fs::write(sentry.credentials.path().join("something"), "").unwrap();
    eventually(async || sentry.metric("dapr_sentry_issuercert_changed_total").await >= 3.0).await;
    let again = connected.sign_certificate(request()).await.unwrap().into_inner();
    assert_eq!(chain(&again)[1].to_vec(), first);
    for name in names {
        let made = sentry.credentials.path().join(name).exists();
        assert!(!made, "{name} was made anew");
    }
}
