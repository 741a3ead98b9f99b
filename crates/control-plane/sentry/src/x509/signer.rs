//! The issuer's private key as a signer of certificates.

use std::sync::Arc;

use rustls::{SignatureScheme, sign::SigningKey};
use rustls_pki_types::PrivateKeyDer;

/// Signature schemes of certificates, one per kind of key, with the DER of their algorithm identifiers.
const SCHEMES: &[(SignatureScheme, &[u8])] = &[
    (
        SignatureScheme::ECDSA_NISTP256_SHA256,
        &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
    ),
    (
        SignatureScheme::ECDSA_NISTP384_SHA384,
        &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
    ),
    (
        SignatureScheme::ECDSA_NISTP521_SHA512,
        &[0x30, 0x0a, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4],
    ),
    (
        SignatureScheme::RSA_PKCS1_SHA256,
        &[
            0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b, 5, 0,
        ],
    ),
    (SignatureScheme::ED25519, &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70]),
];

/// Why a signature cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// Signing failed.
    #[error("signing failed: {0}")]
    Sign(String),
    /// The system's random number generator failed.
    #[error("the system's source of random numbers failed")]
    Random,
}

/// A private key and the scheme with which it signs certificates.
#[derive(Debug)]
pub(super) struct Signer {
    key: Arc<dyn SigningKey>,
    scheme: SignatureScheme,
    algorithm: &'static [u8],
}

impl Signer {
    pub(super) fn new(key: PrivateKeyDer<'static>) -> Result<Self, SigningKeyRejected> {
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)
            .map_err(|error| SigningKeyRejected(error.to_string()))?;
        SCHEMES
            .iter()
            .find(|(scheme, _)| key.choose_scheme(&[*scheme]).is_some())
            .map(|&(scheme, algorithm)| Self {
                key: key.clone(),
                scheme,
                algorithm,
            })
            .ok_or_else(|| SigningKeyRejected("not an RSA, ECDSA or Ed25519 key".to_owned()))
    }

    /// DER of the algorithm identifier of this signer's signatures.
    pub(super) fn algorithm(&self) -> &'static [u8] {
        self.algorithm
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SigningError> {
        self.key
            .choose_scheme(&[self.scheme])
            .ok_or_else(|| SigningError::Sign("the key no longer supports its signature scheme".to_owned()))?
            .sign(message)
            .map_err(|error| SigningError::Sign(error.to_string()))
    }
}

/// The type of the private key is not supported.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct SigningKeyRejected(String);
