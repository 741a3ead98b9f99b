//! Algorithms by name.

use aws_lc_rs::rsa::{
    OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512, OaepAlgorithm,
};
use outrigger_component::{Error, Result};

/// An encryption algorithm.
#[derive(Clone, Copy)]
pub(super) enum Encryption {
    /// AES-CBC.
    Cbc { key: usize, padded: bool },
    /// AES-GCM.
    Gcm { key: usize },
    /// AES-CBC with HMAC-SHA-2; each uses half of the key.
    CbcHmac { key: usize },
    /// AES key wrap.
    KeyWrap { key: usize },
    /// ChaCha20-Poly1305.
    ChaCha,
    /// ChaCha20-Poly1305 with a 24-byte nonce.
    XChaCha,
    /// RSAES-PKCS1-v1_5.
    RsaPkcs1,
    /// RSAES-OAEP.
    RsaOaep(&'static OaepAlgorithm),
}

impl Encryption {
    pub(super) fn named(name: &str) -> Result<Self> {
        let size = || match name.get(1..4) {
            Some("128") => 16,
            Some("192") => 24,
            _ => 32,
        };
        Ok(match name {
            "A128CBC" | "A192CBC" | "A256CBC" => Self::Cbc {
                key: size(),
                padded: true,
            },
            "A128CBC-NOPAD" | "A192CBC-NOPAD" | "A256CBC-NOPAD" => Self::Cbc {
                key: size(),
                padded: false,
            },
            "A128GCM" | "A192GCM" | "A256GCM" => Self::Gcm { key: size() },
            "A128CBC-HS256" | "A192CBC-HS384" | "A256CBC-HS512" => Self::CbcHmac { key: 2 * size() },
            "A128KW" | "A192KW" | "A256KW" => Self::KeyWrap { key: size() },
            "C20P" | "C20PKW" => Self::ChaCha,
            "XC20P" | "XC20PKW" => Self::XChaCha,
            "RSA1_5" => Self::RsaPkcs1,
            "RSA-OAEP" => Self::RsaOaep(&OAEP_SHA1_MGF1SHA1),
            "RSA-OAEP-256" => Self::RsaOaep(&OAEP_SHA256_MGF1SHA256),
            "RSA-OAEP-384" => Self::RsaOaep(&OAEP_SHA384_MGF1SHA384),
            "RSA-OAEP-512" => Self::RsaOaep(&OAEP_SHA512_MGF1SHA512),
            other => return Err(unsupported(other)),
        })
    }
}

/// The hash of a signature algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// A signature algorithm.
#[derive(Clone, Copy)]
pub(super) enum Signature {
    /// RSASSA-PKCS1-v1_5.
    RsaPkcs1(Hash),
    /// RSASSA-PSS.
    RsaPss(Hash),
    /// ECDSA on the curve matching the hash, DER encoded.
    Ecdsa(Hash),
    /// Ed25519.
    EdDsa,
}

impl Signature {
    pub(super) fn named(name: &str) -> Result<Self> {
        if name == "EdDSA" {
            return Ok(Self::EdDsa);
        }
        let hash = match name.get(2..) {
            Some("256") => Hash::Sha256,
            Some("384") => Hash::Sha384,
            Some("512") => Hash::Sha512,
            _ => return Err(unsupported(name)),
        };
        match &name[..2] {
            "RS" => Ok(Self::RsaPkcs1(hash)),
            "PS" => Ok(Self::RsaPss(hash)),
            "ES" => Ok(Self::Ecdsa(hash)),
            _ => Err(unsupported(name)),
        }
    }
}

fn unsupported(name: &str) -> Error {
    Error::invalid_request(format!("unsupported algorithm {name:?}"))
}

/// The key's kind or length does not match the algorithm.
pub(super) fn mismatch() -> Error {
    Error::invalid_request("key type mismatch: the algorithm needs a key of another type or length")
}

/// Decryption failed; the error does not say at which step.
pub(super) fn failed() -> Error {
    Error::invalid_request("message authentication failed")
}

/// A length is invalid.
pub(super) fn invalid(what: &str) -> Error {
    Error::invalid_request(format!("invalid {what}"))
}
