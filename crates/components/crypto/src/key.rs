//! Keys from PEM, JSON Web Keys or raw bytes.

use aws_lc_rs::{
    encoding::AsDer,
    rsa,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1,
        ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1, ECDSA_P521_SHA512_ASN1_SIGNING, ED25519,
        EcdsaKeyPair, EcdsaSigningAlgorithm, EcdsaVerificationAlgorithm, Ed25519KeyPair, KeyPair,
        ParsedPublicKey,
    },
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use outrigger_component::{Error, Kind, Result, crypto::Secret};
use x509_parser::{certificate::X509Certificate, oid_registry, prelude::FromDer, x509::SubjectPublicKeyInfo};

use super::{algorithms::Hash, jwk};

/// A key and its permitted uses.
pub(super) struct Key {
    /// Key id in a set.
    pub(super) id: Option<String>,
    /// The key material.
    pub(super) material: Material,
    /// The only permitted algorithm, if any.
    pub(super) algorithm: Option<String>,
    /// `sig` or `enc`.
    pub(super) usage: Option<String>,
    /// `encrypt`, `wrapKey`, ...; empty permits all.
    pub(super) operations: Vec<String>,
}

pub(super) enum Material {
    Symmetric(Secret),
    Asymmetric(Asymmetric),
}

/// A public key, with its private key if known.
pub(super) struct Asymmetric {
    pub(super) kind: AsymmetricKind,
    /// `SubjectPublicKeyInfo`, DER.
    pub(super) spki: Vec<u8>,
    pub(super) private: Option<Private>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AsymmetricKind {
    Rsa,
    /// The curve matching the hash: P-256, P-384 or P-521.
    Ec(Hash),
    Ed25519,
}

pub(super) enum Private {
    Rsa {
        signing: rsa::KeyPair,
        decrypting: rsa::PrivateDecryptingKey,
    },
    Ec(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Format of a key file, guessed from its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Jwk,
    Pem,
    Unknown,
}

/// Curves by their matching hash.
const CURVES: [(Hash, &EcdsaSigningAlgorithm); 3] = [
    (Hash::Sha256, &ECDSA_P256_SHA256_ASN1_SIGNING),
    (Hash::Sha384, &ECDSA_P384_SHA384_ASN1_SIGNING),
    (Hash::Sha512, &ECDSA_P521_SHA512_ASN1_SIGNING),
];

fn curve_of(hash: Hash) -> &'static EcdsaVerificationAlgorithm {
    match hash {
        Hash::Sha256 => &ECDSA_P256_SHA256_ASN1,
        Hash::Sha384 => &ECDSA_P384_SHA384_ASN1,
        Hash::Sha512 => &ECDSA_P521_SHA512_ASN1,
    }
}

pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(Kind::InvalidRequest, what)
}

impl Key {
    fn of(material: Material) -> Self {
        Self {
            id: None,
            material,
            algorithm: None,
            usage: None,
            operations: Vec::new(),
        }
    }

    /// Parses a key file. Anything but PEM and a JSON Web Key is a symmetric key, in Base64 or raw.
    pub(super) fn parse(text: &[u8], format: Format) -> Result<Self> {
        // A raw symmetric key may start with any byte, so keys of the usual lengths are not parsed.
        let plain = matches!(text.len(), 16 | 24 | 32);
        match (format, text) {
            (_, []) => Err(wrong("the key is empty")),
            (Format::Jwk, _) => jwk::parse(text),
            (Format::Pem, _) => pem(text).map(Self::of),
            (Format::Unknown, [b'{', ..]) if !plain => jwk::parse(text),
            (Format::Unknown, _) if text.len() > 10 && text.starts_with(b"-----") => pem(text).map(Self::of),
            (Format::Unknown, _) => Ok(Self::of(Material::Symmetric(symmetric(text)))),
        }
    }

    /// Checks that `use`, `key_ops` and `alg` permit `operation` (`wrapKey`, `sign`, ...) with `algorithm`.
    pub(super) fn check(&self, operation: &str, algorithm: &str) -> Result<()> {
        let listed = self.operations.is_empty() || self.operations.iter().any(|o| o == operation);
        let needed = match operation {
            "sign" | "verify" => "sig",
            _ => "enc",
        };
        if !listed || self.usage.as_ref().is_some_and(|usage| usage != needed) {
            return Err(wrong(format!("key cannot perform the '{operation}' operation")));
        }
        if self.algorithm.as_ref().is_some_and(|only| only != algorithm) {
            return Err(wrong(format!("key cannot be used with algorithm '{algorithm}'")));
        }
        Ok(())
    }
}

/// Decodes either Base64 alphabet with or without padding; otherwise keeps the raw bytes.
fn symmetric(text: &[u8]) -> Secret {
    let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'='));
    let trimmed = &text[..end.map_or(0, |last| last + 1)];
    let decoded = [STANDARD_NO_PAD, URL_SAFE_NO_PAD]
        .iter()
        .find_map(|engine| engine.decode(trimmed).ok());
    Secret::new(decoded.unwrap_or_else(|| text.to_vec()))
}

fn pem(text: &[u8]) -> Result<Material> {
    let block = pem::parse(text).map_err(|error| wrong("not a valid PEM block").because(error))?;
    let der = block.contents();
    let asymmetric = match block.tag() {
        "PUBLIC KEY" => Asymmetric::from_spki(der),
        "RSA PUBLIC KEY" => rsa::PublicKey::from_der(der)
            .ok()
            .and_then(|key| Some(key.as_der().ok()?.as_ref().to_vec()))
            .and_then(|spki| Asymmetric::from_spki(&spki)),
        "CERTIFICATE" => X509Certificate::from_der(der)
            .ok()
            .and_then(|(_, certificate)| Asymmetric::from_spki(certificate.public_key().raw)),
        "RSA PRIVATE KEY" => rsa::KeyPair::from_der(der)
            .ok()
            .and_then(Asymmetric::from_rsa_pair),
        "EC PRIVATE KEY" => Asymmetric::from_ec_der(der),
        "PRIVATE KEY" => Asymmetric::from_pkcs8(der),
        tag => return Err(wrong(format!("a PEM block {tag:?} does not contain a key"))),
    };
    asymmetric.map(Material::Asymmetric).ok_or_else(|| {
        wrong("unusable key: RSA of 2048 to 8192 bits, P-256, P-384, P-521 and Ed25519 are supported")
    })
}

impl Asymmetric {
    /// Parses a public key; `None` if unsupported or invalid.
    pub(super) fn from_spki(spki: &[u8]) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(spki).ok()?;
        let algorithm = &info.algorithm;
        let kind = if algorithm.algorithm == oid_registry::OID_PKCS1_RSAENCRYPTION {
            AsymmetricKind::Rsa
        } else if algorithm.algorithm == oid_registry::OID_SIG_ED25519 {
            AsymmetricKind::Ed25519
        } else if algorithm.algorithm == oid_registry::OID_KEY_TYPE_EC_PUBLIC_KEY {
            let curve = algorithm.parameters.as_ref()?.as_oid().ok()?;
            AsymmetricKind::Ec(match curve {
                _ if curve == oid_registry::OID_EC_P256 => Hash::Sha256,
                _ if curve == oid_registry::OID_NIST_EC_P384 => Hash::Sha384,
                _ if curve == oid_registry::OID_NIST_EC_P521 => Hash::Sha512,
                _ => return None,
            })
        } else {
            return None;
        };
        let usable = match kind {
            // Parsing also checks the length.
            AsymmetricKind::Rsa => rsa::PublicEncryptingKey::from_der(spki).is_ok(),
            AsymmetricKind::Ec(hash) => ParsedPublicKey::new(curve_of(hash), spki).is_ok(),
            AsymmetricKind::Ed25519 => ParsedPublicKey::new(&ED25519, spki).is_ok(),
        };
        usable.then(|| Self {
            kind,
            spki: spki.to_vec(),
            private: None,
        })
    }

    pub(super) fn from_rsa_pair(signing: rsa::KeyPair) -> Option<Self> {
        let pkcs8 = signing.as_der().ok()?;
        let decrypting = rsa::PrivateDecryptingKey::from_pkcs8(pkcs8.as_ref()).ok()?;
        Some(Self {
            kind: AsymmetricKind::Rsa,
            spki: signing.public_key().as_der().ok()?.as_ref().to_vec(),
            private: Some(Private::Rsa { signing, decrypting }),
        })
    }

    pub(super) fn from_ec_pair(hash: Hash, pair: EcdsaKeyPair) -> Option<Self> {
        Some(Self {
            kind: AsymmetricKind::Ec(hash),
            spki: pair.public_key().as_der().ok()?.as_ref().to_vec(),
            private: Some(Private::Ec(pair)),
        })
    }

    pub(super) fn from_ed25519_pair(pair: Ed25519KeyPair) -> Option<Self> {
        Some(Self {
            kind: AsymmetricKind::Ed25519,
            spki: pair.public_key().as_der().ok()?.as_ref().to_vec(),
            private: Some(Private::Ed25519(pair)),
        })
    }

    fn from_ec_der(der: &[u8]) -> Option<Self> {
        CURVES.iter().find_map(|(hash, algorithm)| {
            let pair = EcdsaKeyPair::from_private_key_der(algorithm, der).ok()?;
            Self::from_ec_pair(*hash, pair)
        })
    }

    fn from_pkcs8(der: &[u8]) -> Option<Self> {
        if let Ok(pair) = rsa::KeyPair::from_pkcs8(der) {
            return Self::from_rsa_pair(pair);
        }
        match Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            Ok(pair) => Self::from_ed25519_pair(pair),
            Err(_) => Self::from_ec_der(der),
        }
    }
}
