//! Operations of providers that hold their keys in memory.

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{
    CryptoProvider, Error, Kind, Result,
    crypto::{Parameters, PublicKey, Sealed, Secret},
};
use outrigger_offload::{INLINE, offload};

use super::{
    algorithms::{Encryption, Signature, mismatch},
    asymmetric, jwk,
    key::{Asymmetric, Key, Material},
    symmetric,
};

/// A source of keys.
#[async_trait]
pub(super) trait KeySource: Send + Sync + 'static {
    /// The key of this name; `NotFound` if there is none.
    async fn key(&self, name: &str) -> Result<Arc<Key>>;

    /// Stops the source's tasks.
    async fn close(&self) {}
}

/// A provider with the keys of `S`.
pub(super) struct Local<S>(pub(super) S);

pub(super) fn not_found() -> Error {
    Error::new(Kind::NotFound, "key not found")
}

/// Nominal size of a private-key operation: it takes milliseconds for any message length.
const PRIVATE: usize = usize::MAX;

/// Owned [`Parameters`] for another thread.
struct Owned {
    key: String,
    algorithm: String,
    nonce: Vec<u8>,
    associated_data: Vec<u8>,
}

impl Owned {
    fn of(with: Parameters<'_>) -> Self {
        Self {
            key: with.key.to_owned(),
            algorithm: with.algorithm.to_owned(),
            nonce: with.nonce.to_vec(),
            associated_data: with.associated_data.to_vec(),
        }
    }

    fn borrowed(&self) -> Parameters<'_> {
        Parameters {
            key: &self.key,
            algorithm: &self.algorithm,
            nonce: &self.nonce,
            associated_data: &self.associated_data,
        }
    }
}

impl Key {
    /// Nominal size of decrypting a message of `length` bytes.
    fn cost(&self, length: usize) -> usize {
        match self.material {
            Material::Symmetric(_) => length,
            Material::Asymmetric(_) => PRIVATE,
        }
    }

    fn asymmetric(&self) -> Result<&Asymmetric> {
        match &self.material {
            Material::Asymmetric(key) => Ok(key),
            Material::Symmetric(_) => Err(mismatch()),
        }
    }

    fn seal(&self, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
        let algorithm = Encryption::named(with.algorithm)?;
        match &self.material {
            Material::Symmetric(key) => symmetric::encrypt(algorithm, key, plaintext, with),
            Material::Asymmetric(key) => asymmetric::encrypt(algorithm, key, plaintext, with),
        }
    }

    fn open(&self, message: &Sealed, with: Parameters<'_>) -> Result<Secret> {
        let algorithm = Encryption::named(with.algorithm)?;
        match &self.material {
            Material::Symmetric(key) => symmetric::decrypt(algorithm, key, message, with),
            Material::Asymmetric(key) => asymmetric::decrypt(algorithm, key, message, with),
        }
    }
}

impl<S: KeySource> Local<S> {
    async fn seal(&self, operation: &str, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
        let key = self.key_for(operation, with.key, with.algorithm).await?;
        // Authenticating costs as much as encrypting.
        let size = plaintext.len() + with.associated_data.len();
        if size <= INLINE {
            return key.seal(plaintext, with);
        }
        let (plaintext, with) = (Secret::new(plaintext.to_vec()), Owned::of(with));
        offload(size, move || key.seal(&plaintext, with.borrowed())).await
    }

    async fn open(&self, operation: &str, message: &Sealed, with: Parameters<'_>) -> Result<Secret> {
        let key = self.key_for(operation, with.key, with.algorithm).await?;
        let size = key.cost(message.ciphertext.len() + with.associated_data.len());
        if size <= INLINE {
            return key.open(message, with);
        }
        let (message, with) = (message.clone(), Owned::of(with));
        offload(size, move || key.open(&message, with.borrowed())).await
    }

    async fn key_for(&self, operation: &str, key: &str, algorithm: &str) -> Result<Arc<Key>> {
        let found = self.0.key(key).await.map_err(|error| {
            let text = "failed to retrieve the key";
            Error::new(error.kind(), text).because(error)
        })?;
        found.check(operation, algorithm)?;
        Ok(found)
    }
}

#[async_trait]
impl<S: KeySource> CryptoProvider for Local<S> {
    async fn public_key(&self, key: &str) -> Result<PublicKey> {
        let found = self.0.key(key).await?;
        // The error must not reveal that a symmetric key exists.
        let half = found.asymmetric().map_err(|_| not_found())?;
        let jwk = jwk::public(&found, half).ok_or_else(mismatch)?;
        Ok(PublicKey {
            id: found.id.clone().unwrap_or_else(|| key.to_owned()),
            spki: half.spki.clone(),
            jwk,
        })
    }

    async fn encrypt(&self, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
        self.seal("encrypt", plaintext, with).await
    }

    async fn decrypt(&self, message: &Sealed, with: Parameters<'_>) -> Result<Secret> {
        self.open("decrypt", message, with).await
    }

    async fn wrap_key(&self, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
        self.seal("wrapKey", plaintext, with).await
    }

    async fn unwrap_key(&self, wrapped: &Sealed, with: Parameters<'_>) -> Result<Secret> {
        self.open("unwrapKey", wrapped, with).await
    }

    async fn sign(&self, digest: &[u8], algorithm: &str, key: &str) -> Result<Vec<u8>> {
        let key = self.key_for("sign", key, algorithm).await?;
        let (algorithm, digest) = (Signature::named(algorithm)?, digest.to_vec());
        let sign = move || asymmetric::sign(algorithm, key.asymmetric()?, &digest);
        offload(PRIVATE, sign).await
    }

    async fn verify(&self, digest: &[u8], signature: &[u8], algorithm: &str, key: &str) -> Result<bool> {
        let key = self.key_for("verify", key, algorithm).await?;
        let algorithm = Signature::named(algorithm)?;
        if digest.len() <= INLINE {
            return asymmetric::verify(algorithm, key.asymmetric()?, digest, signature);
        }
        let (digest, signature) = (digest.to_vec(), signature.to_vec());
        let size = digest.len();
        let verify = move || asymmetric::verify(algorithm, key.asymmetric()?, &digest, &signature);
        offload(size, verify).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
