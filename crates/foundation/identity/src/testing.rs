//! Certificate authorities for tests, with the profile of Dapr's sentry, and ways to bend it.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
    SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use time::{Duration, OffsetDateTime};

use crate::{Svid, TrustBundle, pem};

/// Key and signature algorithm of an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA with P-256 and SHA-256; what sentry generates.
    P256,
    /// ECDSA with P-384 and SHA-384.
    P384,
    /// ECDSA with P-521 and SHA-512.
    P521,
    /// Ed25519.
    Ed25519,
    /// RSA 2048, PKCS #1 v1.5 with SHA-256.
    Rsa,
}

impl Algorithm {
    fn rcgen(self) -> &'static SignatureAlgorithm {
        match self {
            Self::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Self::P521 => &rcgen::PKCS_ECDSA_P521_SHA512,
            Self::Ed25519 => &rcgen::PKCS_ED25519,
            Self::Rsa => &rcgen::PKCS_RSA_SHA256,
        }
    }
}

/// What goes into a leaf certificate.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// URI names.
    pub uris: Vec<String>,
    /// Whether the certificate claims to be an authority.
    pub is_ca: bool,
    /// Key usages.
    pub usages: Vec<KeyUsagePurpose>,
    /// Extended key usages.
    pub extended_usages: Vec<ExtendedKeyUsagePurpose>,
    /// Start of validity, relative to now.
    pub from: Duration,
    /// End of validity, relative to now.
    pub until: Duration,
}

impl Leaf {
    /// The profile sentry gives to a workload.
    pub fn workload(uri: &str) -> Self {
        Self {
            uris: vec![uri.to_owned()],
            is_ca: false,
            usages: vec![
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyEncipherment,
            ],
            extended_usages: vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
            from: Duration::minutes(-15),
            until: Duration::hours(24),
        }
    }

    fn params(self) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = match self.is_ca {
            true => IsCa::Ca(BasicConstraints::Unconstrained),
            false => IsCa::ExplicitNoCa,
        };
        params.key_usages = self.usages;
        params.extended_key_usages = self.extended_usages;
        let uris = self
            .uris
            .into_iter()
            .map(|uri| SanType::URI(uri.try_into().expect("a URI is ASCII")));
        params.subject_alt_names = uris.collect();
        // A DNS name beside the URI must not matter.
        params
            .subject_alt_names
            .push(SanType::DnsName("other.example".try_into().expect("ASCII")));
        set_validity(&mut params, self.from, self.until);
        params
    }
}

/// A certificate chain (leaf first, without the root) and its private key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate and its issuer, in the order of the handshake.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key of the leaf.
    pub key: PrivateKeyDer<'static>,
}

impl Issued {
    /// As the identity of a workload.
    pub fn into_svid(self) -> Svid {
        Svid::new(self.chain, self.key).expect("the issued identity is complete")
    }
}

/// A root and an issuer below it.
#[derive(Debug)]
pub struct Authority {
    /// The self-signed root.
    pub root: CertificateDer<'static>,
    /// The intermediate that signs workloads.
    pub issuer: CertificateDer<'static>,
    trust_domain: String,
    root_key: KeyPair,
    issuer_key: KeyPair,
    issuer_params: CertificateParams,
}

impl Authority {
    /// A new authority; workloads issued by it are in `trust_domain`.
    pub fn new(trust_domain: &str, algorithm: Algorithm) -> Self {
        Self::lasting(trust_domain, algorithm, Duration::days(365))
    }

    /// As [`Authority::new`], with an end of the root's validity relative to now.
    pub fn lasting(trust_domain: &str, algorithm: Algorithm, until: Duration) -> Self {
        let root_key = KeyPair::generate_for(algorithm.rcgen()).expect("key generation");
        let issuer_key = KeyPair::generate_for(algorithm.rcgen()).expect("key generation");
        let root_params = authority_params(trust_domain, until);
        let issuer_name = format!("spiffe://{trust_domain}/ns/default/dapr-sentry");
        let issuer_params = authority_params(&issuer_name, Duration::days(365));
        let root = root_params.self_signed(&root_key).expect("self-signing");
        let issuer = issuer_params
            .signed_by(&issuer_key, &Issuer::from_params(&root_params, &root_key))
            .expect("signing the issuer");
        Self {
            root: root.into(),
            issuer: issuer.into(),
            trust_domain: trust_domain.to_owned(),
            root_key,
            issuer_key,
            issuer_params,
        }
    }

    /// The trust anchor of all certificates of this CA, PEM.
    pub fn root_pem(&self) -> String {
        pem::encode_certificates([&self.root])
    }

    /// The private key of the root.
    pub fn root_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.root_key.serialize_der()).expect("a generated key")
    }

    /// A bundle with this root alone.
    pub fn bundle(&self) -> TrustBundle {
        TrustBundle::from_pem(self.root_pem().as_bytes()).expect("a generated root")
    }

    /// An identity with the profile of sentry.
    pub fn workload(&self, namespace: &str, app_id: &str) -> Issued {
        self.issue(Leaf::workload(&format!(
            "spiffe://{}/ns/{namespace}/{app_id}",
            self.trust_domain
        )))
    }

    /// An identity with any profile, on a new P-256 key.
    pub fn issue(&self, leaf: Leaf) -> Issued {
        let key = KeyPair::generate().expect("key generation");
        let chain = self.sign(leaf, &key);
        Issued {
            chain,
            key: PrivateKeyDer::try_from(key.serialize_der()).expect("a generated key"),
        }
    }

    /// Signs the public key of a PEM certificate request; returns the chain as PEM.
    pub fn sign_request(&self, request: &[u8], leaf: Leaf) -> String {
        let text = std::str::from_utf8(request).expect("PEM is text");
        let request = CertificateSigningRequestParams::from_pem(text).expect("a valid certificate request");
        pem::encode_certificates(&self.sign(leaf, &request.public_key))
    }

    fn sign(&self, leaf: Leaf, key: &impl PublicKeyData) -> Vec<CertificateDer<'static>> {
        let issuer = Issuer::from_params(&self.issuer_params, &self.issuer_key);
        let certificate = leaf.params().signed_by(key, &issuer).expect("signing a leaf");
        vec![certificate.into(), self.issuer.clone()]
    }
}

fn authority_params(organization: &str, until: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, Duration::minutes(-15), until);
    params
}

fn set_validity(params: &mut CertificateParams, from: Duration, until: Duration) {
    let now = OffsetDateTime::now_utc();
    // An end before the usual start still leaves a valid interval.
    params.not_before = now + from.min(until - Duration::hours(1));
    params.not_after = now + until;
}
