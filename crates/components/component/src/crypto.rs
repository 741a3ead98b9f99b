//! Cryptography providers: operations with keys that stay where they are kept.
//!
//! Algorithms have the names of RFC 7518 (`A256KW`, `RSA-OAEP-256`, `ES256`, …), plus Dapr's own for what that lacks:
//! `A256CBC`, `A256CBC-NOPAD`, `C20P`, `XC20P`.

use async_trait::async_trait;
use zeroize::Zeroizing;

use crate::Result;

/// What an operation is done with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parameters<'a> {
    /// The key: how providers name keys differs.
    pub key: &'a str,
    /// E.g. `A256KW`.
    pub algorithm: &'a str,
    /// Nonce or initialisation vector; empty where the algorithm has none.
    pub nonce: &'a [u8],
    /// What an authenticated cipher covers without encrypting it; the label of RSA-OAEP.
    pub associated_data: &'a [u8],
}

/// An encrypted message, or a wrapped key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sealed {
    /// What came of the plaintext; as long as it, plus padding where the algorithm pads.
    pub ciphertext: Vec<u8>,
    /// The authentication tag; empty where the algorithm has none.
    pub tag: Vec<u8>,
}

/// Bytes that are wiped when they are dropped.
pub type Secret = Zeroizing<Vec<u8>>;

/// The public half of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The id the provider gives it; the name it was asked by where it has none.
    pub id: String,
    /// `SubjectPublicKeyInfo`, DER.
    pub spki: Vec<u8>,
    /// The same as a JSON Web Key.
    pub jwk: String,
}

/// Does cryptographic operations with keys it keeps.
///
/// Errors: kind `NotFound` for a key that is not there, `InvalidRequest` for an algorithm, a nonce, a length or a
/// tag that cannot be right, and for a message that does not decrypt, without saying at which step it failed.
#[async_trait]
pub trait CryptoProvider: Send + Sync {
    /// The public half of an asymmetric key; symmetric keys are not found here.
    async fn public_key(&self, key: &str) -> Result<PublicKey>;

    /// Encrypts a small message.
    async fn encrypt(&self, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed>;

    /// Decrypts a small message.
    async fn decrypt(&self, message: &Sealed, with: Parameters<'_>) -> Result<Secret>;

    /// Wraps a key: a symmetric one as its bytes, another as DER.
    async fn wrap_key(&self, key: &[u8], with: Parameters<'_>) -> Result<Sealed>;

    /// Decrypts a key that was wrapped with the key and algorithm of `with`.
    async fn unwrap_key(&self, wrapped: &Sealed, with: Parameters<'_>) -> Result<Secret>;

    /// Signs a digest; with `EdDSA` the message itself.
    async fn sign(&self, digest: &[u8], algorithm: &str, key: &str) -> Result<Vec<u8>>;

    /// Whether the signature is right.
    async fn verify(&self, digest: &[u8], signature: &[u8], algorithm: &str, key: &str) -> Result<bool>;

    /// Whether the provider answers.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Ends what the provider runs.
    async fn close(&self) {}
}
