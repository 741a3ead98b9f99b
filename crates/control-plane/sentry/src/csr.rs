//! Parses certificate signing requests. Only the public key is used.

use outrigger_identity::pem;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use webpki::RawPublicKeyEntity;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CsrError {
    #[error("invalid certificate signing request")]
    Pem,
    #[error("failed to parse certificate signing request: {0}")]
    Parse(String),
    #[error("invalid signature")]
    Signature,
}

/// The public key (DER `SubjectPublicKeyInfo`) of a PEM request with a valid signature of that key.
pub(crate) fn public_key(csr: &[u8]) -> Result<Vec<u8>, CsrError> {
    let (tag, der) = pem::decode_block(csr).map_err(|_| CsrError::Pem)?;
    // Sidecars before Dapr 1.12 send the second one.
    if tag != "CERTIFICATE REQUEST" && tag != "CERTIFICATE" {
        return Err(CsrError::Pem);
    }
    let request = match X509CertificationRequest::from_der(&der) {
        Ok(([], request)) => request,
        Ok(_) => return Err(CsrError::Parse("trailing data".to_owned())),
        Err(error) => return Err(CsrError::Parse(error.to_string())),
    };
    let key = request.certification_request_info.subject_pki.raw;
    if is_signed_by(&request, key) {
        Ok(key.to_vec())
    } else {
        Err(CsrError::Signature)
    }
}

fn is_signed_by(request: &X509CertificationRequest<'_>, key: &[u8]) -> bool {
    let spki = SubjectPublicKeyInfoDer::from(key);
    let Ok(key) = RawPublicKeyEntity::try_from(&spki) else {
        return false;
    };
    let oid = request.signature_algorithm.algorithm.as_bytes();
    let message = request.certification_request_info.raw;
    webpki::ALL_VERIFICATION_ALGS
        .iter()
        .filter(|candidate| names(&candidate.signature_alg_id(), oid))
        .any(|candidate| {
            key.verify_signature(*candidate, message, &request.signature_value.data)
                .is_ok()
        })
}

/// Whether the contents of an algorithm identifier begin with this object identifier.
fn names(algorithm: &[u8], oid: &[u8]) -> bool {
    matches!(algorithm, [6, length, rest @ ..] if usize::from(*length) == oid.len() && rest.starts_with(oid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csr(algorithm: &'static rcgen::SignatureAlgorithm) -> (rcgen::KeyPair, Vec<u8>) {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let request = rcgen::CertificateParams::default()
            .serialize_request(&key)
            .unwrap();
        (key, request.der().to_vec())
    }

    #[test]
    fn accepts_usual_algorithms() {
        for algorithm in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ECDSA_P521_SHA512,
            &rcgen::PKCS_ED25519,
            &rcgen::PKCS_RSA_SHA256,
        ] {
            let (key, der) = csr(algorithm);
            for tag in ["CERTIFICATE REQUEST", "CERTIFICATE"] {
                let found = public_key(pem::encode(tag, &der).as_bytes());
                let want = rcgen::PublicKeyData::subject_public_key_info(&key);
                assert_eq!(found, Ok(want), "{algorithm:?}");
            }
        }
    }

    #[test]
    fn refuses_malformed_requests() {
        let (_, mut der) = csr(&rcgen::PKCS_ECDSA_P256_SHA256);
        assert_eq!(public_key(b"nonsense"), Err(CsrError::Pem));
        assert_eq!(
            public_key(pem::encode("PRIVATE KEY", &der).as_bytes()),
            Err(CsrError::Pem)
        );
        let broken = public_key(pem::encode("CERTIFICATE REQUEST", b"nonsense").as_bytes());
        assert!(matches!(broken, Err(CsrError::Parse(_))), "{broken:?}");
        der.push(0);
        let trailing = public_key(pem::encode("CERTIFICATE REQUEST", &der).as_bytes());
        assert_eq!(trailing, Err(CsrError::Parse("trailing data".to_owned())));
    }

    #[test]
    fn refuses_request_of_another_key() {
        let (_, one) = csr(&rcgen::PKCS_ED25519);
        let (_, two) = csr(&rcgen::PKCS_ED25519);
        // Both end with the 64 bytes of the signature.
        let mut mixed = one[..one.len() - 64].to_vec();
        mixed.extend_from_slice(&two[two.len() - 64..]);
        let found = public_key(pem::encode("CERTIFICATE REQUEST", &mixed).as_bytes());
        assert_eq!(found, Err(CsrError::Signature));
    }
}
