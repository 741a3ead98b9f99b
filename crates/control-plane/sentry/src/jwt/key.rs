//! Public keys in JWK and X.509 form.

use aws_lc_rs::{
    digest::{SHA256, digest},
    signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm},
};
use serde_json::{Map, Value, json};
use x509_parser::{
    oid_registry,
    prelude::{FromDer, SubjectPublicKeyInfo},
    public_key::PublicKey as Spki,
};

use super::{Algorithm, decode_segment, encode_segment};

/// The type of a key, which determines its algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rsa => "RSA",
            Self::P256 => "ECDSA P-256",
            Self::P384 => "ECDSA P-384",
            Self::P521 => "ECDSA P-521",
            Self::Ed25519 => "Ed25519",
        })
    }
}

/// A public key that verifies signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PublicKey {
    /// Modulus and exponent, big-endian without leading zeros.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// An uncompressed point: the byte 4, then both coordinates.
    Ec { kind: KeyKind, point: Vec<u8> },
    /// 32 bytes.
    Ed25519(Vec<u8>),
}

/// JWK names of curves, and the size of a coordinate in bytes.
const CURVES: [(KeyKind, &str, usize); 3] = [
    (KeyKind::P256, "P-256", 32),
    (KeyKind::P384, "P-384", 48),
    (KeyKind::P521, "P-521", 66),
];

impl PublicKey {
    pub(super) fn kind(&self) -> KeyKind {
        match self {
            Self::Rsa { .. } => KeyKind::Rsa,
            Self::Ec { kind, .. } => *kind,
            Self::Ed25519(_) => KeyKind::Ed25519,
        }
    }

    /// Parses a DER `SubjectPublicKeyInfo`.
    pub(super) fn from_spki(der: &[u8]) -> Option<Self> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        if info.algorithm.algorithm == oid_registry::OID_SIG_ED25519 {
            return Some(Self::Ed25519(info.subject_public_key.data.to_vec()));
        }
        match info.parsed().ok()? {
            Spki::RSA(rsa) => Some(Self::Rsa {
                n: without_zeros(rsa.modulus),
                e: without_zeros(rsa.exponent),
            }),
            Spki::EC(point) => {
                let point = point.data().to_vec();
                let (kind, ..) = CURVES
                    .into_iter()
                    .find(|(.., size)| point.len() == 2 * size + 1)?;
                Some(Self::Ec { kind, point })
            }
            _ => None,
        }
    }

    /// Parses the members of a JWK. `Ok(None)` for key types without supported signatures.
    pub(super) fn from_jwk(jwk: &Map<String, Value>) -> Result<Option<Self>, String> {
        let member = |name: &str| {
            jwk.get(name)
                .and_then(Value::as_str)
                .and_then(decode_segment)
                .ok_or_else(|| format!("member \"{name}\" is missing or is not base64url"))
        };
        let text = |name: &str| jwk.get(name).and_then(Value::as_str).unwrap_or_default();
        match text("kty") {
            "RSA" => Ok(Some(Self::Rsa {
                n: without_zeros(&member("n")?),
                e: without_zeros(&member("e")?),
            })),
            "EC" => {
                let curve = text("crv");
                let Some((kind, _, size)) = CURVES.into_iter().find(|(_, name, _)| *name == curve) else {
                    return Ok(None);
                };
                let mut point = vec![4];
                point.extend(fixed(&member("x")?, size)?);
                point.extend(fixed(&member("y")?, size)?);
                Ok(Some(Self::Ec { kind, point }))
            }
            "OKP" if text("crv") == "Ed25519" => Ok(Some(Self::Ed25519(fixed(&member("x")?, 32)?))),
            "" => Err("member \"kty\" is missing".to_owned()),
            _ => Ok(None),
        }
    }

    /// The members of the JWK that form the key, in thumbprint order.
    fn members(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Rsa { n, e } => {
                vec![
                    ("e", encode_segment(e)),
                    ("kty", "RSA".into()),
                    ("n", encode_segment(n)),
                ]
            }
            Self::Ec { kind, point } => {
                // The table has every kind of curve, and points have its sizes.
                let (curve, size) = CURVES
                    .iter()
                    .find(|(k, ..)| k == kind)
                    .map_or(("", 0), |(_, name, size)| (*name, *size));
                let (x, y) = point[1..].split_at(size);
                vec![
                    ("crv", curve.into()),
                    ("kty", "EC".into()),
                    ("x", encode_segment(x)),
                    ("y", encode_segment(y)),
                ]
            }
            Self::Ed25519(x) => {
                vec![
                    ("crv", "Ed25519".into()),
                    ("kty", "OKP".into()),
                    ("x", encode_segment(x)),
                ]
            }
        }
    }

    /// The key as a JWK with id and algorithm.
    pub(super) fn to_jwk(&self, kid: &str, algorithm: Algorithm) -> Value {
        let mut jwk: Map<String, Value> = self
            .members()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::String(value)))
            .collect();
        jwk.insert("kid".into(), json!(kid));
        jwk.insert("alg".into(), json!(algorithm.as_str()));
        jwk.insert("use".into(), json!("sig"));
        Value::Object(jwk)
    }

    /// SHA-256 thumbprint (RFC 7638).
    pub(super) fn thumbprint(&self) -> Vec<u8> {
        // No member needs escaping.
        let members: Vec<String> = self
            .members()
            .iter()
            .map(|(name, value)| format!("\"{name}\":\"{value}\""))
            .collect();
        digest(&SHA256, format!("{{{}}}", members.join(",")).as_bytes())
            .as_ref()
            .to_vec()
    }

    /// Whether `signature` is this key's signature of `message`.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if algorithm.key_kind() != self.kind() {
            return false;
        }
        match self {
            Self::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(rsa_parameters(algorithm), message, signature)
                .is_ok(),
            Self::Ec { kind, point } => {
                let parameters: &'static dyn VerificationAlgorithm = match kind {
                    KeyKind::P384 => &signature::ECDSA_P384_SHA384_FIXED,
                    KeyKind::P521 => &signature::ECDSA_P521_SHA512_FIXED,
                    _ => &signature::ECDSA_P256_SHA256_FIXED,
                };
                UnparsedPublicKey::new(parameters, point)
                    .verify(message, signature)
                    .is_ok()
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&signature::ED25519, key)
                .verify(message, signature)
                .is_ok(),
        }
    }
}

fn rsa_parameters(algorithm: Algorithm) -> &'static RsaParameters {
    match algorithm {
        Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => &signature::RSA_PKCS1_2048_8192_SHA256,
    }
}

fn without_zeros(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().skip_while(|byte| *byte == 0).collect()
}

/// Left-pads with zeros, because some producers shorten coordinates.
fn fixed(bytes: &[u8], size: usize) -> Result<Vec<u8>, String> {
    let digits = if bytes.len() > size {
        without_zeros(bytes)
    } else {
        bytes.to_vec()
    };
    if digits.len() > size {
        return Err(format!("a coordinate has {} bytes, want {size}", digits.len()));
    }
    let mut out = vec![0; size - digits.len()];
    out.extend(digits);
    Ok(out)
}
