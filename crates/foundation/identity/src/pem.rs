//! Certificates and private keys in PEM, and shared checks of workloads and the authority.

use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::provider;

/// Tag of a certificate block.
const CERTIFICATE: &str = "CERTIFICATE";

/// Why PEM data was rejected.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// Invalid PEM, or a damaged block.
    #[error("not valid PEM: {0}")]
    Syntax(String),
    /// The data does not start with a certificate block.
    #[error("no certificates found; expected one or more \"BEGIN CERTIFICATE\" blocks")]
    NoCertificates,
    /// No private key block.
    #[error(
        "no private key found; expected a \"BEGIN PRIVATE KEY\", \"BEGIN EC PRIVATE KEY\" or \"BEGIN RSA PRIVATE KEY\" block"
    )]
    NoKey,
    /// Certificate number `index` (from 0) cannot be decoded.
    #[error("certificate {index} cannot be decoded: {cause}")]
    Certificate {
        /// Position in the data, from 0.
        index: usize,
        /// The decoder's error.
        cause: String,
    },
    /// The private key is unusable.
    #[error("the private key cannot be used: {0}")]
    Key(String),
    /// Certificate number `index` (from 0) of a chain is not signed by the next one.
    #[error("certificate chain is not valid: certificate {index} is not signed by the one after it")]
    BrokenChain {
        /// Position in the chain, from 0.
        index: usize,
    },
}

/// All certificates at the start of `pem`, in order. Like Dapr, stops at the first block of another type.
///
/// # Errors
/// If there is none, or one cannot be decoded.
pub fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let blocks = ::pem::parse_many(pem).map_err(|error| PemError::Syntax(error.to_string()))?;
    let certificates: Vec<_> = blocks
        .into_iter()
        .take_while(|block| block.tag() == CERTIFICATE)
        .map(|block| CertificateDer::from(block.into_contents()))
        .collect();
    if certificates.is_empty() {
        return Err(PemError::NoCertificates);
    }
    for (index, certificate) in certificates.iter().enumerate() {
        decode(certificate).map_err(|cause| PemError::Certificate { index, cause })?;
    }
    Ok(certificates)
}

/// Like [`parse_certificates`], for a chain with the leaf first: each certificate must be signed by the
/// next one.
///
/// # Errors
/// As [`parse_certificates`], and [`PemError::BrokenChain`].
pub fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let chain = parse_certificates(pem)?;
    match chain
        .windows(2)
        .position(|pair| !is_signed_by(&pair[0], &pair[1]))
    {
        Some(index) => Err(PemError::BrokenChain { index }),
        None => Ok(chain),
    }
}

/// Encodes `certificates` as PEM blocks, in order, without comments.
pub fn encode_certificates<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'a>>) -> String {
    certificates
        .into_iter()
        .map(|certificate| encode(CERTIFICATE, certificate.as_ref()))
        .collect()
}

/// The first private key in `pem` (types `PRIVATE KEY`, `EC PRIVATE KEY`, `RSA PRIVATE KEY`).
///
/// # Errors
/// If there is none, or it is not an RSA, ECDSA or Ed25519 key.
pub fn parse_private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, PemError> {
    let blocks = ::pem::parse_many(pem).map_err(|error| PemError::Syntax(error.to_string()))?;
    let key = blocks
        .into_iter()
        .find_map(|block| match block.tag() {
            "PRIVATE KEY" => Some(PrivateKeyDer::Pkcs8(block.into_contents().into())),
            "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(block.into_contents().into())),
            "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(block.into_contents().into())),
            _ => None,
        })
        .ok_or(PemError::NoKey)?;
    public_key_of(&key)?;
    Ok(key)
}

/// Encodes `key` as a PEM block of its type.
pub fn encode_private_key(key: &PrivateKeyDer<'_>) -> String {
    let tag = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    encode(tag, key.secret_der())
}

/// Encodes one PEM block with Unix line endings.
pub fn encode(tag: &str, contents: &[u8]) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    ::pem::encode_config(&::pem::Pem::new(tag, contents), config)
}

/// The contents and tag of the first PEM block of any type.
///
/// # Errors
/// [`PemError::Syntax`] if `pem` has no complete block.
pub fn decode_block(pem: &[u8]) -> Result<(String, Vec<u8>), PemError> {
    let block = ::pem::parse(pem).map_err(|error| PemError::Syntax(error.to_string()))?;
    Ok((block.tag().to_owned(), block.into_contents()))
}

/// The public half of `key`, as DER `SubjectPublicKeyInfo`.
///
/// # Errors
/// [`PemError::Key`] if the key is invalid or of an unsupported type.
pub fn public_key_of(key: &PrivateKeyDer<'_>) -> Result<Vec<u8>, PemError> {
    let signer = provider::crypto()
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|error| PemError::Key(error.to_string()))?;
    signer
        .public_key()
        .map(|spki| spki.as_ref().to_vec())
        .ok_or_else(|| PemError::Key("its public half cannot be derived".to_owned()))
}

/// Whether `key` is the private half of the public key in `certificate`.
///
/// # Errors
/// If either cannot be decoded.
pub fn key_matches(key: &PrivateKeyDer<'_>, certificate: &CertificateDer<'_>) -> Result<bool, PemError> {
    let parsed = decode(certificate).map_err(|cause| PemError::Certificate { index: 0, cause })?;
    Ok(public_key_of(key)? == parsed.tbs_certificate.subject_pki.raw)
}

/// The DNS names of `certificate`, as spelled there.
///
/// # Errors
/// [`PemError::Certificate`] if it cannot be decoded.
pub fn dns_names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, PemError> {
    let failed = |cause| PemError::Certificate { index: 0, cause };
    let parsed = decode(certificate).map_err(failed)?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| failed(error.to_string()))?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    Ok(dns.collect())
}

/// Whether `certificate` is validly signed by its own key.
pub fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    is_signed_by(certificate, certificate)
}

/// Whether `certificate` is validly signed by the key of `issuer`, and `issuer` may sign certificates.
pub fn is_signed_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let (Ok(certificate), Ok(issuer)) = (decode(certificate), decode(issuer)) else {
        return false;
    };
    may_sign(&issuer) && signature_holds(&certificate, &issuer)
}

/// A certificate without basic constraints and key usage (X.509 v1) may sign; otherwise both must allow it.
fn may_sign(issuer: &X509Certificate<'_>) -> bool {
    let is_ca = match issuer.basic_constraints() {
        Ok(Some(constraints)) => constraints.value.ca,
        Ok(None) => true,
        Err(_) => false,
    };
    let may_sign = match issuer.key_usage() {
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    is_ca && may_sign
}

fn signature_holds(certificate: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    let spki = SubjectPublicKeyInfoDer::from(issuer.tbs_certificate.subject_pki.raw);
    let Ok(issuer_key) = RawPublicKeyEntity::try_from(&spki) else {
        return false;
    };
    let oid = certificate.signature_algorithm.algorithm.as_bytes();
    provider::crypto()
        .signature_verification_algorithms
        .all
        .iter()
        .filter(|candidate| starts_with_oid(&candidate.signature_alg_id(), oid))
        .any(|candidate| {
            let message = certificate.tbs_certificate.as_ref();
            issuer_key
                .verify_signature(*candidate, message, &certificate.signature_value.data)
                .is_ok()
        })
}

/// Whether the DER contents of an algorithm identifier start with this object identifier (tag 6, short
/// length).
fn starts_with_oid(algorithm: &[u8], oid: &[u8]) -> bool {
    algorithm.first() == Some(&6)
        && algorithm.get(1).map(|length| usize::from(*length)) == Some(oid.len())
        && algorithm[2..].starts_with(oid)
}

/// Decodes one certificate without trailing data.
pub(crate) fn decode<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(certificate.as_ref()) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err("data follows the certificate".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Algorithm, Authority};

    #[test]
    fn stops_at_first_other_block() {
        let authority = Authority::new("td", Algorithm::P256);
        let one = authority.root_pem();
        let key = encode_private_key(&authority.root_key());
        let mixed = format!("# a comment\n{one}{one}{key}{one}");
        assert_eq!(parse_certificates(mixed.as_bytes()).unwrap().len(), 2);
        assert!(matches!(
            parse_certificates(key.as_bytes()),
            Err(PemError::NoCertificates)
        ));
        assert!(matches!(parse_certificates(b""), Err(PemError::NoCertificates)));
    }

    #[test]
    fn errors_name_certificate_position() {
        let good = Authority::new("td", Algorithm::P256).root_pem();
        let bad = encode(CERTIFICATE, b"not DER");
        let error = parse_certificates(format!("{good}{bad}").as_bytes()).unwrap_err();
        assert!(matches!(error, PemError::Certificate { index: 1, .. }), "{error}");
    }

    #[test]
    fn round_trip_drops_comments() {
        let pem = Authority::new("td", Algorithm::P256).root_pem();
        let again = encode_certificates(&parse_certificates(format!("hello\n{pem}").as_bytes()).unwrap());
        assert_eq!(again, pem);
    }

    #[test]
    fn keys_match_own_certificate_only() {
        for algorithm in [
            Algorithm::P256,
            Algorithm::P384,
            Algorithm::Ed25519,
            Algorithm::Rsa,
        ] {
            let mine = Authority::new("td", algorithm);
            let other = Authority::new("td", Algorithm::P256);
            let key = parse_private_key(encode_private_key(&mine.root_key()).as_bytes()).unwrap();
            assert!(key_matches(&key, &mine.root).unwrap(), "{algorithm:?}");
            assert!(!key_matches(&key, &other.root).unwrap(), "{algorithm:?}");
        }
    }

    #[test]
    fn verifies_signatures_of_all_key_types() {
        for algorithm in [
            Algorithm::P256,
            Algorithm::P384,
            Algorithm::P521,
            Algorithm::Ed25519,
            Algorithm::Rsa,
        ] {
            let authority = Authority::new("td", algorithm);
            let other = Authority::new("td", algorithm);
            assert!(is_self_signed(&authority.root), "{algorithm:?}");
            assert!(!is_self_signed(&authority.issuer), "{algorithm:?}");
            assert!(is_signed_by(&authority.issuer, &authority.root), "{algorithm:?}");
            assert!(!is_signed_by(&authority.issuer, &other.root), "{algorithm:?}");
        }
    }

    #[test]
    fn leaf_may_not_sign() {
        let authority = Authority::new("td", Algorithm::P256);
        let leaf = authority.workload("ns", "app");
        assert!(!is_signed_by(&leaf.chain[0], &leaf.chain[0]));
        assert!(is_signed_by(&leaf.chain[0], &authority.issuer));
    }

    #[test]
    fn rejects_misordered_chain() {
        let authority = Authority::new("td", Algorithm::P256);
        let good = encode_certificates([&authority.issuer, &authority.root]);
        assert_eq!(parse_chain(good.as_bytes()).unwrap().len(), 2);
        let bad = encode_certificates([&authority.root, &authority.issuer]);
        assert!(matches!(
            parse_chain(bad.as_bytes()),
            Err(PemError::BrokenChain { index: 0 })
        ));
    }

    #[test]
    fn rejects_garbage() {
        assert!(parse_private_key(b"").is_err());
        assert!(parse_private_key(encode("PRIVATE KEY", b"nope").as_bytes()).is_err());
        assert!(decode_block(b"nothing").is_err());
    }
}
