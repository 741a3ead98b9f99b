//! A private key that signs tokens.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, RsaEncoding, RsaKeyPair},
};
use rustls_pki_types::PrivateKeyDer;
use serde::Serialize;
use serde_json::json;

use super::{Algorithm, encode_segment, key::PublicKey};

/// Signs tokens with one key and one algorithm.
#[derive(Debug)]
pub(super) struct Signer {
    key: PrivateKey,
    algorithm: Algorithm,
    /// The encoded header of every token.
    header: String,
}

#[derive(Debug)]
enum PrivateKey {
    Rsa(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    /// `public` is the public half of `key`; it must support the algorithm.
    pub(super) fn new(
        key: &PrivateKeyDer<'_>,
        public: &PublicKey,
        algorithm: Algorithm,
        kid: &str,
    ) -> Result<Self, String> {
        if algorithm.key_kind() != public.kind() {
            return Err(format!(
                "algorithm {algorithm} needs a key of type {}, this one is {}",
                algorithm.key_kind(),
                public.kind()
            ));
        }
        let header = json!({"alg": algorithm.as_str(), "kid": kid, "typ": "JWT"}).to_string();
        let key =
            PrivateKey::load(key, algorithm).map_err(|error| format!("the key cannot be used: {error}"))?;
        Ok(Self {
            key,
            algorithm,
            header: encode_segment(header.as_bytes()),
        })
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// A signed token in compact form; `None` if signing fails.
    pub(super) fn sign(&self, claims: &impl Serialize) -> Option<String> {
        let claims = serde_json::to_vec(claims).ok()?;
        let mut token = format!("{}.{}", self.header, encode_segment(&claims));
        let signature = self.key.sign(self.algorithm, token.as_bytes())?;
        token.push('.');
        token.push_str(&encode_segment(&signature));
        Some(token)
    }
}

impl PrivateKey {
    fn load(key: &PrivateKeyDer<'_>, algorithm: Algorithm) -> Result<Self, String> {
        let der = key.secret_der();
        let is_pkcs8 = matches!(key, PrivateKeyDer::Pkcs8(_));
        if let Some(curve) = curve(algorithm) {
            return EcdsaKeyPair::from_private_key_der(curve, der)
                .map(Self::Ecdsa)
                .map_err(|error| error.to_string());
        }
        if algorithm == Algorithm::EdDsa {
            return Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
                .map(Self::Ed25519)
                .map_err(|error| error.to_string());
        }
        let pair = if is_pkcs8 {
            RsaKeyPair::from_pkcs8(der)
        } else {
            RsaKeyPair::from_der(der)
        };
        pair.map(Self::Rsa).map_err(|error| error.to_string())
    }

    fn sign(&self, algorithm: Algorithm, message: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(rsa_encoding(algorithm), &random, message, &mut signature)
                    .ok()?;
                Some(signature)
            }
            Self::Ecdsa(key) => Some(key.sign(&random, message).ok()?.as_ref().to_vec()),
            Self::Ed25519(key) => Some(key.try_sign(message).ok()?.as_ref().to_vec()),
        }
    }
}

fn curve(algorithm: Algorithm) -> Option<&'static EcdsaSigningAlgorithm> {
    match algorithm {
        Algorithm::Es256 => Some(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        Algorithm::Es384 => Some(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        Algorithm::Es512 => Some(&signature::ECDSA_P521_SHA512_FIXED_SIGNING),
        _ => None,
    }
}

fn rsa_encoding(algorithm: Algorithm) -> &'static dyn RsaEncoding {
    match algorithm {
        Algorithm::Rs384 => &signature::RSA_PKCS1_SHA384,
        Algorithm::Rs512 => &signature::RSA_PKCS1_SHA512,
        Algorithm::Ps256 => &signature::RSA_PSS_SHA256,
        Algorithm::Ps384 => &signature::RSA_PSS_SHA384,
        Algorithm::Ps512 => &signature::RSA_PSS_SHA512,
        _ => &signature::RSA_PKCS1_SHA256,
    }
}
