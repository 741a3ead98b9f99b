use std::time::Duration as StdDuration;

use outrigger_identity::pem;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use time::{Duration, OffsetDateTime};
use x509_parser::oid_registry::OID_SIG_ED25519;
use x509_parser::prelude::{GeneralName, X509Certificate, X509Version};

use super::{load, *};
use crate::material::{Fault, File};

const SKEW: Duration = Duration::minutes(15);

fn sentry() -> SpiffeId {
    "spiffe://td.example/ns/dapr/dapr-sentry".parse().unwrap()
}

fn sign(authority: &X509Authority, dns: &[String]) -> Issued {
    let key = KeyPair::generate().unwrap();
    let id = "spiffe://public/ns/default/myapp".parse().unwrap();
    let public_key = key.subject_public_key_info();
    authority
        .sign(&Request {
            public_key: &public_key,
            id: &id,
            dns,
            ttl: Duration::hours(24),
            skew: SKEW,
        })
        .unwrap()
}

fn usage(certificate: &X509Certificate<'_>) -> u16 {
    certificate.key_usage().unwrap().unwrap().value.flags
}

/// Bits of key usages, in the parser's order.
const DIGITAL_SIGNATURE: u16 = 1;
const CERT_SIGN: u16 = 1 << 5;
const CRL_SIGN: u16 = 1 << 6;

fn lifetime(certificate: &X509Certificate<'_>) -> i64 {
    certificate.validity().not_after.timestamp() - certificate.validity().not_before.timestamp()
}

#[test]
fn generated_authority_matches_contract() {
    let generated = generate(&sentry(), SKEW, OffsetDateTime::now_utc()).unwrap();
    let [root] = &pem::parse_certificates(&generated.root).unwrap()[..] else {
        panic!("one root")
    };
    let [issuer] = &pem::parse_certificates(&generated.issuer).unwrap()[..] else {
        panic!("one issuer")
    };
    let (root, issuer) = (parse(root).unwrap(), parse(issuer).unwrap());
    assert_eq!(root.subject().to_string(), "O=td.example");
    assert_eq!(
        issuer.subject().to_string(),
        "O=spiffe://td.example/ns/dapr/dapr-sentry"
    );
    assert_eq!(issuer.issuer(), root.subject());
    assert_eq!(usage(&root), DIGITAL_SIGNATURE | CERT_SIGN);
    assert_eq!(usage(&issuer), DIGITAL_SIGNATURE | CERT_SIGN | CRL_SIGN);
    for certificate in [&root, &issuer] {
        let key = &certificate.public_key().algorithm.algorithm;
        assert_eq!(*key, OID_SIG_ED25519);
        assert_eq!(certificate.signature_algorithm.algorithm, OID_SIG_ED25519);
        let constraints = certificate.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, None);
        assert!(certificate.extended_key_usage().unwrap().is_none());
        assert!(certificate.subject_alternative_name().unwrap().is_none());
        assert_eq!(
            lifetime(certificate),
            (Duration::days(365) + SKEW).whole_seconds()
        );
        assert!(certificate.raw_serial().len() <= 17);
    }
    let (tag, key) = pem::decode_block(&generated.key).unwrap();
    // The version follows the header of the sequence.
    assert_eq!((tag.as_str(), &key[2..5]), ("PRIVATE KEY", &[2, 1, 0][..]));
    load(&generated).unwrap();
}

#[test]
fn workload_certificate_matches_contract() {
    let authority = load(&generate(&sentry(), SKEW, OffsetDateTime::now_utc()).unwrap()).unwrap();
    let issued = sign(&authority, &["a.svc".to_owned(), "b.svc".to_owned()]);
    assert_eq!(issued.chain.len(), 2, "leaf and issuer");
    let leaf = parse(&issued.chain[0]).unwrap();
    let issuer = parse(&issued.chain[1]).unwrap();

    assert_eq!(leaf.version(), X509Version::V3);
    assert_eq!(leaf.subject().as_raw(), [0x30, 0]);
    assert_eq!(leaf.issuer().as_raw(), issuer.subject().as_raw());
    assert_eq!(leaf.signature_algorithm, leaf.tbs_certificate.signature);
    assert!(pem::is_signed_by(&issued.chain[0], &issued.chain[1]));
    assert_eq!(lifetime(&leaf), (Duration::hours(24) + SKEW).whole_seconds());
    assert_eq!(
        leaf.validity().not_after.timestamp(),
        issued.not_after.unix_timestamp()
    );
    assert_eq!(usage(&leaf), DIGITAL_SIGNATURE);
    let purposes = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.server_auth && purposes.client_auth && !purposes.any);
    assert!(!leaf.basic_constraints().unwrap().unwrap().value.ca);
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical);
    let wanted = [
        GeneralName::URI("spiffe://public/ns/default/myapp"),
        GeneralName::DNSName("a.svc"),
        GeneralName::DNSName("b.svc"),
    ];
    assert_eq!(names.value.general_names, wanted);
    let id = outrigger_identity::peer_id(&issued.chain).unwrap();
    assert_eq!(id.as_str(), "spiffe://public/ns/default/myapp");
}

#[test]
fn serial_numbers_are_unique() {
    let authority = load(&generate(&sentry(), SKEW, OffsetDateTime::now_utc()).unwrap()).unwrap();
    let serial = |issued: Issued| parse(&issued.chain[0]).unwrap().raw_serial().to_vec();
    assert_ne!(serial(sign(&authority, &[])), serial(sign(&authority, &[])));
}

/// Certificates of an organisation's CA.
struct Own {
    root: rcgen::Certificate,
    issuer: rcgen::Certificate,
    root_key: KeyPair,
    issuer_key: KeyPair,
    root_params: CertificateParams,
}

impl Own {
    fn new(
        algorithm: &'static rcgen::SignatureAlgorithm,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Self {
        let root_key = KeyPair::generate_for(algorithm).unwrap();
        let root_params = ca("root");
        let root = root_params.self_signed(&root_key).unwrap();
        let issuer_key = KeyPair::generate_for(algorithm).unwrap();
        let mut issuer_params = ca("issuer");
        change(&mut issuer_params);
        let parent = Issuer::new(root_params.clone(), &root_key);
        let issuer = issuer_params.signed_by(&issuer_key, &parent).unwrap();
        drop(parent);
        Self {
            root,
            issuer,
            root_key,
            issuer_key,
            root_params,
        }
    }

    fn pem(&self) -> Pem {
        Pem {
            root: self.root.pem().into(),
            issuer: self.issuer.pem().into(),
            key: self.issuer_key.serialize_pem().into(),
        }
    }
}

fn ca(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = OffsetDateTime::now_utc() - StdDuration::from_secs(60);
    params.not_after = OffsetDateTime::now_utc() + StdDuration::from_secs(3600);
    params
}

fn fault(pem: &Pem) -> Fault {
    load(pem).expect_err("the material was accepted")
}

#[test]
fn signs_with_every_issuer_algorithm() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let authority = load(&Own::new(algorithm, |_| {}).pem()).unwrap();
        let issued = sign(&authority, &[]);
        assert!(
            pem::is_signed_by(&issued.chain[0], &issued.chain[1]),
            "{algorithm:?}"
        );
    }
}

#[test]
fn drops_comments_and_trailing_root() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let mut material = own.pem();
    material.root = format!("# our root\n{0}\n# the same again\n{0}", own.root.pem()).into();
    material.issuer = format!("# issuer\n{}{}", own.issuer.pem(), own.root.pem()).into();
    let authority = load(&material).unwrap();
    assert!(!authority.trust_anchors().contains('#'));
    assert_eq!(authority.trust_anchors().matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(sign(&authority, &[]).chain.len(), 2);
}

#[test]
fn copies_issuer_name_verbatim() {
    // A name with two attributes of one type, as in directories: DC=com, DC=example.
    let name = hex(
        "302e 31133011060a0992268993f22c6401191603636f6d 31173015060a0992268993f22c64011916076578616d706c65",
    );
    let leaf = leaf::Leaf {
        public_key: &KeyPair::generate().unwrap().subject_public_key_info(),
        uri: "spiffe://public/ns/default/myapp",
        dns: &[],
        not_before: OffsetDateTime::UNIX_EPOCH,
        not_after: OffsetDateTime::now_utc(),
    };
    let key = pem::parse_private_key(KeyPair::generate().unwrap().serialize_pem().as_bytes()).unwrap();
    let issuer = IssuerName {
        subject: name.clone(),
        key_id: None,
    };
    let certificate = leaf::issue(&leaf, &issuer, &Signer::new(key).unwrap()).unwrap();
    let parsed = parse(&certificate).unwrap();
    assert_eq!(parsed.issuer().as_raw(), name);
    assert_eq!(parsed.issuer().to_string(), "DC=com, DC=example");
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn refuses_root_not_self_signed() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let found = fault(&Pem {
        root: own.issuer.pem().into(),
        ..own.pem()
    });
    assert_eq!(found.file, File::Root);
    assert!(found.problem.contains("not self-signed"), "{found:?}");
}

#[test]
fn refuses_material_without_pem() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let empty = Vec::new;
    assert_eq!(
        fault(&Pem {
            root: empty(),
            ..own.pem()
        })
        .file,
        File::Root
    );
    assert_eq!(
        fault(&Pem {
            issuer: empty(),
            ..own.pem()
        })
        .file,
        File::Issuer
    );
    assert_eq!(
        fault(&Pem {
            key: empty(),
            ..own.pem()
        })
        .file,
        File::IssuerKey
    );
    assert_eq!(
        fault(&Pem {
            key: own.root.pem().into(),
            ..own.pem()
        })
        .file,
        File::IssuerKey
    );
}

#[test]
fn refuses_chain_of_another_root() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    // The same name with another key.
    let other = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let found = fault(&Pem {
        root: other.root.pem().into(),
        ..own.pem()
    });
    assert!(
        found.file == File::Issuer && found.problem.contains("does not end at"),
        "{found:?}"
    );
}

#[test]
fn refuses_misordered_chain() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let found = fault(&Pem {
        issuer: format!("{}{}", own.root.pem(), own.issuer.pem()).into(),
        ..own.pem()
    });
    assert_eq!(found.file, File::Issuer);
}

#[test]
fn refuses_key_of_another_certificate() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let found = fault(&Pem {
        key: own.root_key.serialize_pem().into(),
        ..own.pem()
    });
    assert!(
        found.file == File::IssuerKey && found.problem.contains("private half"),
        "{found:?}"
    );
}

#[test]
fn refuses_expired_certificates() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |params| {
        params.not_after = OffsetDateTime::now_utc() - StdDuration::from_secs(1);
    });
    let found = fault(&own.pem());
    assert!(
        found.file == File::Issuer && found.problem.contains("expired at"),
        "{found:?}"
    );
}

#[test]
fn refuses_issuer_without_sign_usage() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |params| {
        params.is_ca = IsCa::NoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    });
    let found = fault(&own.pem());
    assert!(
        found.file == File::Issuer && found.problem.contains("may not sign"),
        "{found:?}"
    );
}

#[test]
fn checks_path_length_of_chain() {
    let root_key = KeyPair::generate().unwrap();
    let root_params = ca("root");
    let root = root_params.self_signed(&root_key).unwrap();
    let middle_key = KeyPair::generate().unwrap();
    let mut middle_params = ca("middle");
    middle_params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let middle = middle_params
        .signed_by(&middle_key, &Issuer::new(root_params, root_key))
        .unwrap();
    let issuer_key = KeyPair::generate().unwrap();
    let issuer = ca("issuer")
        .signed_by(&issuer_key, &Issuer::new(middle_params, middle_key))
        .unwrap();
    let found = fault(&Pem {
        root: root.pem().into(),
        issuer: format!("{}{}", issuer.pem(), middle.pem()).into(),
        key: issuer_key.serialize_pem().into(),
    });
    assert!(
        found.problem.contains("allows 0 CA certificates below it"),
        "{found:?}"
    );
}

#[test]
fn root_may_issue_directly() {
    let own = Own::new(&rcgen::PKCS_ECDSA_P256_SHA256, |_| {});
    let authority = load(&Pem {
        issuer: own.root.pem().into(),
        key: own.root_key.serialize_pem().into(),
        ..own.pem()
    })
    .unwrap();
    assert_eq!(sign(&authority, &[]).chain.len(), 1, "a root is never sent");
    assert!(!own.root_params.key_usages.is_empty());
}
