//! Handshakes over an in-memory stream, with valid and invalid certificates of every kind.
use std::sync::Arc;

use outrigger_identity::testing::{Algorithm, Authority, Issued, Leaf};
use outrigger_identity::{
    Expect, Identity, Svid, TrustAnchors, TrustBundle, anonymous_client_config, peer_id, server_name,
};
use outrigger_tls::{NameCheck, Verifier, WithName};
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use rustls::{ClientConfig, ProtocolVersion, ServerConfig};
use time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

type Ends = (client::TlsStream<DuplexStream>, server::TlsStream<DuplexStream>);

/// Both ends of a connection after an exchange of one byte each way, or the error of either side.
async fn connect(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Result<Ends, String> {
    let (near, far) = tokio::io::duplex(1 << 16);
    let dial = async {
        let mut stream = TlsConnector::from(client)
            .connect(server_name("127.0.0.1"), near)
            .await?;
        stream.write_all(b"?").await?;
        // With TLS 1.3 the server verifies the client's certificate after the client has finished.
        stream.read_exact(&mut [0]).await?;
        Ok::<_, std::io::Error>(stream)
    };
    let accept = async {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        stream.read_exact(&mut [0]).await?;
        stream.write_all(b"!").await?;
        Ok::<_, std::io::Error>(stream)
    };
    match tokio::join!(dial, accept) {
        (Ok(near), Ok(far)) => Ok((near, far)),
        (near, far) => Err(format!("client: {:?}; server: {:?}", near.err(), far.err())),
    }
}

fn identity(authority: &Authority, issued: Issued) -> Identity {
    Identity::new(issued.into_svid(), TrustAnchors::new(authority.bundle()))
}

fn exact(id: &str) -> Expect {
    Expect::Exact(id.parse().unwrap())
}

fn path(namespace: &str, app_id: &str) -> Expect {
    Expect::Path {
        namespace: namespace.into(),
        app_id: app_id.into(),
    }
}

/// A handshake between `caller` in `ns` and a server with the certificate `issued`.
async fn call(authority: &Authority, issued: Issued, expect: Expect) -> Result<Ends, String> {
    let caller = identity(authority, authority.workload("ns", "caller"));
    let server = identity(authority, issued);
    connect(caller.client_config(expect), server.server_config()).await
}

#[tokio::test]
async fn accepts_peer_over_tls13_and_h2() {
    let authority = Authority::new("public", Algorithm::P256);
    for expect in [
        exact("spiffe://public/ns/ns/target"),
        path("ns", "target"),
        Expect::Any,
    ] {
        let (near, far) = call(&authority, authority.workload("ns", "target"), expect)
            .await
            .unwrap();
        let near = near.get_ref().1;
        assert_eq!(near.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        assert_eq!(near.alpn_protocol(), Some(&b"h2"[..]));
        let suite = near.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let caller = peer_id(far.get_ref().1.peer_certificates().unwrap()).unwrap();
        assert_eq!(caller.as_str(), "spiffe://public/ns/ns/caller");
    }
}

#[tokio::test]
async fn accepts_tls12() {
    let authority = Authority::new("public", Algorithm::Ed25519);
    for algorithm in LEAF_ALGORITHMS {
        let issue = |app_id| issue(&authority, app_id, algorithm);
        let target = identity(&authority, issue("target"));
        let old = restrict_to_tls12(&authority, issue("caller"));
        let (near, _) = connect(old, target.server_config()).await.unwrap();
        let version = near.get_ref().1.protocol_version();
        assert_eq!(version, Some(ProtocolVersion::TLSv1_2), "{algorithm:?}");
    }
}

/// Kinds of keys of workloads of v1.18, of v1.17, and of webhooks.
const LEAF_ALGORITHMS: [Algorithm; 3] = [Algorithm::Ed25519, Algorithm::P256, Algorithm::Rsa];

fn issue(authority: &Authority, app_id: &str, algorithm: Algorithm) -> Issued {
    let id = format!("spiffe://public/ns/ns/{app_id}");
    authority.issue_with(Leaf::workload(&id), algorithm)
}

#[tokio::test]
async fn accepts_peers_with_other_keys() {
    let authority = Authority::new("public", Algorithm::P256);
    for client in LEAF_ALGORITHMS {
        for server in LEAF_ALGORITHMS {
            let caller = identity(&authority, issue(&authority, "caller", client));
            let target = identity(&authority, issue(&authority, "target", server));
            let config = caller.client_config(path("ns", "target"));
            let met = connect(config, target.server_config()).await;
            assert!(met.is_ok(), "{client:?} to {server:?}: {:?}", met.err());
        }
    }
}

/// Another kind of client: TLS 1.2 only, with an ordinary certificate verifier.
fn restrict_to_tls12(authority: &Authority, issued: Issued) -> Arc<ClientConfig> {
    let own = anonymous_client_config(TrustAnchors::new(authority.bundle()), path("ns", "target"));
    let provider = Arc::clone(own.crypto_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.root.clone()).unwrap();
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    // The one DNS name in the test certificates.
    let name = NameCheck::Expect(server_name("other.example"));
    let verifier = Verifier::new(WithName(verifier.build().unwrap(), name), &provider);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(issued.chain, issued.key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[tokio::test]
async fn accepts_all_authority_key_types() {
    for algorithm in [
        Algorithm::P256,
        Algorithm::P384,
        Algorithm::P521,
        Algorithm::Ed25519,
        Algorithm::Rsa,
    ] {
        let authority = Authority::new("public", algorithm);
        let outcome = call(
            &authority,
            authority.workload("ns", "target"),
            path("ns", "target"),
        )
        .await;
        assert!(outcome.is_ok(), "{algorithm:?}: {:?}", outcome.err());
    }
}

#[tokio::test]
async fn checks_extended_key_usages() {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, CodeSigning, ServerAuth};
    let authority = Authority::new("public", Algorithm::P256);
    let issue = |app_id: &str, usages: &[ExtendedKeyUsagePurpose]| {
        let mut leaf = Leaf::workload(&format!("spiffe://public/ns/ns/{app_id}"));
        leaf.extended_usages = usages.to_vec();
        identity(&authority, authority.issue(leaf))
    };
    // The usages, and whether they allow use as a server and as a client.
    for (usages, as_server, as_client) in [
        (&[][..], true, true),
        (&[Any], true, true),
        (&[CodeSigning, Any], true, true),
        (&[ServerAuth, ClientAuth], true, true),
        (&[CodeSigning], false, false),
        (&[ServerAuth], true, false),
        (&[CodeSigning, ClientAuth], false, true),
    ] {
        let good = issue("good", &[ServerAuth, ClientAuth]);
        let other = issue("other", usages);
        let outcome = connect(good.client_config(path("ns", "other")), other.server_config()).await;
        assert_eq!(outcome.is_ok(), as_server, "{usages:?} as a server");
        if let Err(error) = outcome {
            let says = error.contains("spiffe://public/ns/ns/other: the extended key usage");
            assert!(says && error.contains("a server"), "{error}");
        }
        let outcome = connect(other.client_config(path("ns", "good")), good.server_config()).await;
        assert_eq!(outcome.is_ok(), as_client, "{usages:?} as a client");
        if let Err(error) = outcome {
            assert!(error.contains("a client"), "{error}");
        }
    }
}

#[tokio::test]
async fn rejects_id_with_extra_segments() {
    let authority = Authority::new("public", Algorithm::P256);
    let longer = authority.issue(Leaf::workload("spiffe://public/ns/ns/target/x"));
    assert!(
        peer_id(&longer.chain)
            .unwrap_err()
            .to_string()
            .contains("malformed SPIFFE ID")
    );
}

#[tokio::test]
async fn rejects_and_names_wrong_peer() {
    let authority = Authority::new("public", Algorithm::P256);
    for expect in [
        path("ns", "other"),
        path("other", "target"),
        exact("spiffe://public/ns/ns/other"),
        exact("spiffe://elsewhere/ns/ns/target"),
    ] {
        let error = call(&authority, authority.workload("ns", "target"), expect.clone())
            .await
            .unwrap_err();
        assert!(
            error.contains("the peer is spiffe://public/ns/ns/target"),
            "{error}"
        );
        assert!(error.contains(&format!("expected {expect}")), "{error}");
    }
}

#[tokio::test]
async fn accepts_other_trust_domain_of_same_anchors() {
    let authority = Authority::new("public", Algorithm::P256);
    let elsewhere = || authority.issue(Leaf::workload("spiffe://elsewhere/ns/ns/target"));
    call(&authority, elsewhere(), path("ns", "target")).await.unwrap();
    call(&authority, elsewhere(), exact("spiffe://public/ns/ns/target"))
        .await
        .unwrap_err();
}

/// A server certificate with one defect, and a part of the client's error.
fn bad_leaves() -> Vec<(Leaf, &'static str)> {
    let good = || Leaf::workload("spiffe://public/ns/ns/target");
    let with_uris = |uris: &[&str]| {
        let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
        Leaf { uris, ..good() }
    };
    let with_usage = |usage| Leaf {
        usages: vec![KeyUsagePurpose::DigitalSignature, usage],
        ..good()
    };
    vec![
        (
            Leaf {
                is_ca: true,
                ..good()
            },
            "marked as a CA",
        ),
        (with_usage(KeyUsagePurpose::KeyCertSign), "may sign certificates"),
        (with_usage(KeyUsagePurpose::CrlSign), "may sign certificates"),
        (
            with_uris(&["spiffe://public/ns/ns/target", "spiffe://public/ns/ns/b"]),
            "2 URI names",
        ),
        (
            with_uris(&["spiffe://public/ns/ns/target", "https://x.example"]),
            "2 URI names",
        ),
        (with_uris(&[]), "0 URI names"),
        (with_uris(&["https://public/ns/ns/target"]), "not a SPIFFE ID"),
        (with_uris(&["spiffe://PUBLIC/ns/ns/target"]), "trust domain"),
        (
            Leaf {
                until: Duration::minutes(-1),
                ..good()
            },
            "outside its validity",
        ),
        (
            Leaf {
                from: Duration::minutes(1),
                ..good()
            },
            "outside its validity",
        ),
    ]
}

#[tokio::test]
async fn rejects_bad_server_certificates() {
    let authority = Authority::new("public", Algorithm::P256);
    let caller = identity(&authority, authority.workload("ns", "caller"));
    for (leaf, complaint) in bad_leaves() {
        // A server of another implementation, since ours would not start with such a certificate.
        let issued = authority.issue(leaf);
        let provider = Arc::clone(caller.server_config().crypto_provider());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(issued.chain, issued.key);
        let Ok(server) = server else {
            panic!("the server refuses its certificate ({complaint})")
        };
        let error = connect(caller.client_config(path("ns", "target")), Arc::new(server))
            .await
            .unwrap_err();
        assert!(error.contains(complaint), "expected {complaint:?}: {error}");
    }
}

#[tokio::test]
async fn rejects_bad_client_certificates() {
    let authority = Authority::new("public", Algorithm::P256);
    let server = identity(&authority, authority.workload("ns", "target"));
    for (leaf, complaint) in bad_leaves() {
        let issued = authority.issue(leaf);
        let client = restrict_to_tls12(&authority, issued);
        let error = connect(client, server.server_config()).await.unwrap_err();
        assert!(error.contains(complaint), "expected {complaint:?}: {error}");
    }
}

#[tokio::test]
async fn rejects_client_without_certificate() {
    let authority = Authority::new("public", Algorithm::P256);
    let server = identity(&authority, authority.workload("ns", "target"));
    let anonymous = || {
        anonymous_client_config(
            TrustAnchors::new(authority.bundle()),
            exact("spiffe://public/ns/ns/target"),
        )
    };
    connect(anonymous(), server.server_config()).await.unwrap_err();
    let (_, far) = connect(anonymous(), server.server_config_no_client_auth())
        .await
        .unwrap();
    assert!(far.get_ref().1.peer_certificates().is_none());
}

#[tokio::test]
async fn server_accepts_one_client_only() {
    let authority = Authority::new("public", Algorithm::P256);
    let one = identity(&authority, authority.workload("ns", "dapr-placement"));
    let other = identity(&authority, authority.workload("ns", "app"));
    let server = || one.server_config_for(exact("spiffe://public/ns/ns/dapr-placement"));
    connect(one.client_config(Expect::Any), server()).await.unwrap();
    connect(other.client_config(Expect::Any), server())
        .await
        .unwrap_err();
}

#[tokio::test]
async fn rejects_strangers_on_both_sides() {
    let ours = Authority::new("public", Algorithm::P256);
    let theirs = Authority::new("public", Algorithm::P256);
    let here = identity(&ours, ours.workload("ns", "here"));
    let there = identity(&theirs, theirs.workload("ns", "there"));
    let error = connect(here.client_config(path("ns", "there")), there.server_config())
        .await
        .unwrap_err();
    assert!(error.contains("not signed by any trusted root"), "{error}");
    let trusting = Identity::new(ours.workload("ns", "here").into_svid(), both(&ours, &theirs));
    let error = connect(trusting.client_config(path("ns", "there")), there.server_config())
        .await
        .unwrap_err();
    assert!(
        error.contains("spiffe://public/ns/ns/here: the certificate is not signed by any trusted root"),
        "{error}"
    );
}

fn both(one: &Authority, two: &Authority) -> TrustAnchors {
    TrustAnchors::new(overlap(one, two))
}

fn overlap(one: &Authority, two: &Authority) -> TrustBundle {
    TrustBundle::from_pem(format!("{}{}", one.root_pem(), two.root_pem()).as_bytes()).unwrap()
}

#[tokio::test]
async fn rotates_roots_with_overlap() {
    let (old, new) = (
        Authority::new("public", Algorithm::P256),
        Authority::new("public", Algorithm::P256),
    );
    let here = identity(&old, old.workload("ns", "here"));
    let there = identity(&old, old.workload("ns", "there"));
    let (client, server) = (here.client_config(path("ns", "there")), there.server_config());
    let serial = async || {
        let (near, _) = connect(client.clone(), server.clone()).await.unwrap();
        near.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let first = serial().await;

    // Both roots everywhere, then new certificates one by one, then the old root is removed.
    here.anchors().replace(overlap(&old, &new));
    there.anchors().replace(overlap(&old, &new));
    assert_eq!(serial().await, first);
    let mut renewals = there.subscribe();
    there.replace(new.workload("ns", "there").into_svid());
    assert!(renewals.has_changed().unwrap());
    assert_eq!(renewals.borrow_and_update().chain(), there.svid().chain());
    assert_ne!(serial().await, first);
    here.replace(new.workload("ns", "here").into_svid());
    serial().await;
    here.anchors().replace(new.bundle());
    there.anchors().replace(new.bundle());
    serial().await;

    let late = identity(&old, old.workload("ns", "late"));
    connect(late.client_config(path("ns", "there")), server.clone())
        .await
        .unwrap_err();
}

#[tokio::test]
async fn expired_root_vouches_for_none() {
    let authority = Authority::lasting("public", Algorithm::P256, Duration::minutes(-1));
    let error = call(
        &authority,
        authority.workload("ns", "target"),
        path("ns", "target"),
    )
    .await
    .unwrap_err();
    assert!(error.contains("not signed by any trusted root"), "{error}");
}

#[test]
fn identity_requires_matching_key_and_id() {
    let authority = Authority::new("public", Algorithm::P256);
    let (one, two) = (authority.workload("ns", "one"), authority.workload("ns", "two"));
    assert!(Svid::new(one.chain, two.key).is_err());
    let odd = authority.issue(Leaf::workload("spiffe://public/workload"));
    assert!(Svid::new(odd.chain, odd.key).is_err());
    assert!(Svid::new(Vec::new(), authority.workload("ns", "x").key).is_err());
}
