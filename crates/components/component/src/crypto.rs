//! Cryptography providers: operations with keys that stay with the provider.
//!
//! Algorithm names are those of RFC 7518 (`A256KW`, `RSA-OAEP-256`, `ES256`, ...), plus Dapr's additions:
//! `A256CBC`, `A256CBC-NOPAD`, `C20P`, `XC20P`.

use async_trait::async_trait;
use zeroize::Zeroizing;

use crate::Result;

/// Parameters of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parameters<'a> {
    /// Key name; its form depends on the provider.
    pub key: &'a str,
    /// E.g. `A256KW`.
    pub algorithm: &'a str,
    /// Nonce or initialisation vector; empty if the algorithm has none.
    pub nonce: &'a [u8],
    /// Authenticated but unencrypted data; the label of RSA-OAEP.
    pub associated_data: &'a [u8],
}

/// An encrypted message, or a wrapped key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sealed {
    /// As long as the plaintext, plus padding if the algorithm pads.
    pub ciphertext: Vec<u8>,
    /// Authentication tag; empty if the algorithm has none.
    pub tag: Vec<u8>,
}

/// Bytes wiped on drop.
pub type Secret = Zeroizing<Vec<u8>>;

/// The public half of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The provider's id of the key, or the requested name if it has none.
    pub id: String,
    /// `SubjectPublicKeyInfo`, DER.
    pub spki: Vec<u8>,
    /// The same key as a JSON Web Key.
    pub jwk: String,
}

/// Cryptographic operations with keys of the provider.
///
/// Errors: kind `NotFound` for an unknown key; `InvalidRequest` for an invalid algorithm, nonce, length or
/// tag, and for a message that fails to decrypt. The error does not say at which step decryption failed.
#[async_trait]
pub trait CryptoProvider: Send + Sync {
    /// The public half of an asymmetric key; `NotFound` for symmetric keys.
    async fn public_key(&self, key: &str) -> Result<PublicKey>;

    /// Encrypts a small message.
    async fn encrypt(&self, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed>;

    /// Decrypts a small message.
    async fn decrypt(&self, message: &Sealed, with: Parameters<'_>) -> Result<Secret>;

    /// Wraps a key: raw bytes if symmetric, else DER.
    async fn wrap_key(&self, key: &[u8], with: Parameters<'_>) -> Result<Sealed>;

    /// Unwraps a key that was wrapped with the same parameters.
    async fn unwrap_key(&self, wrapped: &Sealed, with: Parameters<'_>) -> Result<Secret>;

    /// Signs a digest; with `EdDSA`, the message itself.
    async fn sign(&self, digest: &[u8], algorithm: &str, key: &str) -> Result<Vec<u8>>;

    /// Whether the signature is valid.
    async fn verify(&self, digest: &[u8], signature: &[u8], algorithm: &str, key: &str) -> Result<bool>;

    /// Checks that the provider responds.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Stops the provider's tasks.
    async fn close(&self) {}
}
