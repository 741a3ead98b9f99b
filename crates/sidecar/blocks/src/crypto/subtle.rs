//! Single key operations. The reason of a failure is logged but not returned: an app that forwards untrusted
//! input must not become a decryption oracle.

use std::sync::Arc;

use outrigger_component::crypto::{Parameters, Sealed};
use outrigger_wire::runtime::v1 as proto;
use pem::{EncodeConfig, LineEnding, Pem};
use proto::subtle_get_key_request::KeyFormat;

use super::{Crypto, CryptoError, Provider};
use crate::outbound::Cause;

type Outcome<T> = Result<T, CryptoError>;

fn hide_cause(what: &'static str) -> impl Fn(Cause) -> CryptoError {
    move |cause| {
        tracing::debug!(target: "dapr.runtime.crypto", "failed to {what}: {cause}");
        CryptoError::Operation(format!("failed to {what}"))
    }
}

/// Parameters from the fields that all requests share.
macro_rules! parameters {
    ($request:expr) => {
        Parameters {
            key: &$request.key_name,
            algorithm: &$request.algorithm,
            nonce: &$request.nonce,
            associated_data: &$request.associated_data,
        }
    };
}

/// Single operations; each returns [`CryptoError::Unimplemented`] if they are disabled.
impl Crypto {
    fn subtle(&self, name: &str) -> Outcome<Arc<Provider>> {
        if self.subtle {
            self.provider(name)
        } else {
            Err(CryptoError::Unimplemented)
        }
    }

    /// The public part of a key.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn get_key(&self, request: proto::SubtleGetKeyRequest) -> Outcome<proto::SubtleGetKeyResponse> {
        let provider = self.subtle(&request.component_name)?;
        let format = KeyFormat::try_from(request.format)
            .map_err(|_| CryptoError::BadRequest("invalid key format".to_owned()))?;
        let attempt = || provider.component.public_key(&request.name);
        let found = provider.outbound.run(&provider.get, attempt).await;
        let key = found.map_err(|cause| CryptoError::Key {
            name: request.name.clone(),
            cause: cause.to_string(),
        })?;
        Ok(proto::SubtleGetKeyResponse {
            name: key.id,
            public_key: match format {
                KeyFormat::Pem => {
                    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
                    pem::encode_config(&Pem::new("PUBLIC KEY", key.spki), config)
                }
                KeyFormat::Json => key.jwk,
            },
        })
    }

    /// Encrypts a message.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn encrypt(
        &self,
        request: proto::SubtleEncryptRequest,
    ) -> Outcome<proto::SubtleEncryptResponse> {
        let provider = self.subtle(&request.component_name)?;
        let with = parameters!(request);
        let attempt = || provider.component.encrypt(&request.plaintext, with);
        let sealed = provider.run(attempt).await.map_err(hide_cause("encrypt"))?;
        Ok(proto::SubtleEncryptResponse {
            ciphertext: sealed.ciphertext.into(),
            tag: sealed.tag.into(),
        })
    }

    /// Decrypts a message.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn decrypt(
        &self,
        request: proto::SubtleDecryptRequest,
    ) -> Outcome<proto::SubtleDecryptResponse> {
        let provider = self.subtle(&request.component_name)?;
        let with = parameters!(request);
        let sealed = Sealed {
            ciphertext: request.ciphertext.to_vec(),
            tag: request.tag.to_vec(),
        };
        let attempt = || provider.component.decrypt(&sealed, with);
        let plain = provider.run(attempt).await.map_err(hide_cause("decrypt"))?;
        Ok(proto::SubtleDecryptResponse {
            plaintext: plain.to_vec().into(),
        })
    }

    /// Wraps a key.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn wrap_key(
        &self,
        request: proto::SubtleWrapKeyRequest,
    ) -> Outcome<proto::SubtleWrapKeyResponse> {
        let provider = self.subtle(&request.component_name)?;
        let with = parameters!(request);
        let attempt = || provider.component.wrap_key(&request.plaintext_key, with);
        let wrapped = provider.run(attempt).await.map_err(hide_cause("wrap key"))?;
        Ok(proto::SubtleWrapKeyResponse {
            wrapped_key: wrapped.ciphertext.into(),
            tag: wrapped.tag.into(),
        })
    }

    /// Unwraps a key.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn unwrap_key(
        &self,
        request: proto::SubtleUnwrapKeyRequest,
    ) -> Outcome<proto::SubtleUnwrapKeyResponse> {
        let provider = self.subtle(&request.component_name)?;
        let with = parameters!(request);
        let wrapped = Sealed {
            ciphertext: request.wrapped_key.to_vec(),
            tag: request.tag.to_vec(),
        };
        let attempt = || provider.component.unwrap_key(&wrapped, with);
        let key = provider.run(attempt).await.map_err(hide_cause("unwrap key"))?;
        Ok(proto::SubtleUnwrapKeyResponse {
            plaintext_key: key.to_vec().into(),
        })
    }

    /// Signs a digest.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn sign(&self, request: proto::SubtleSignRequest) -> Outcome<proto::SubtleSignResponse> {
        let provider = self.subtle(&request.component_name)?;
        let (algorithm, key) = (&request.algorithm, &request.key_name);
        let attempt = || provider.component.sign(&request.digest, algorithm, key);
        let signature = provider.run(attempt).await.map_err(hide_cause("sign"))?;
        Ok(proto::SubtleSignResponse {
            signature: signature.into(),
        })
    }

    /// Whether a signature is valid.
    ///
    /// # Errors
    /// [`CryptoError`].
    pub async fn verify(&self, request: proto::SubtleVerifyRequest) -> Outcome<proto::SubtleVerifyResponse> {
        let provider = self.subtle(&request.component_name)?;
        let (algorithm, key) = (&request.algorithm, &request.key_name);
        let component = &provider.component;
        let attempt = || component.verify(&request.digest, &request.signature, algorithm, key);
        let valid = provider
            .run(attempt)
            .await
            .map_err(hide_cause("verify signature"))?;
        Ok(proto::SubtleVerifyResponse { valid })
    }
}
