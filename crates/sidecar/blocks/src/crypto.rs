//! Cryptography: documents of any size in the scheme `dapr.io/enc/v1`, and single operations with the keys of
//! a provider. Keys stay with their provider; documents are encrypted in the sidecar.

mod document;
mod scheme;
mod segments;
mod subtle;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::Stream;
use outrigger_component::crypto::{Parameters, Sealed};
use outrigger_component::{CryptoProvider, Error};
use outrigger_policy::resiliency::ComponentKind;
use outrigger_redact::Secrets;
use outrigger_runtime::components::{Category, OpenError, Opened, Opening};
use outrigger_runtime::registry::{Registration, Registry};
use outrigger_runtime::resilience::Resilience;
use outrigger_transport::body::BoxError;

pub use document::Output;
#[cfg(feature = "fuzzing")]
pub use document::fuzz_document_header;
pub use scheme::{Cipher, Wrapping};

use self::scheme::{FileKey, MAX_HEADER, Manifest, NoKey};
use self::segments::Direction;
use super::outbound::{Cause, FamilyNames, Operation, Outbound};

const FAMILIES: FamilyNames = FamilyNames {
    count: "component_crypto_count",
    latencies: "component_crypto_latencies",
};

/// Why an encryption, decryption or signature failed.
#[derive(Debug)]
pub enum CryptoError {
    /// The sidecar has no cryptography provider.
    NotConfigured,
    /// The request is invalid.
    BadRequest(String),
    /// There is no provider with this name.
    NotFound(String),
    /// The key could not be retrieved.
    Key {
        /// The key.
        name: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The operation failed before any output.
    Operation(String),
    /// The operation failed after some output.
    Stream(String),
    /// Not offered by this sidecar.
    Unimplemented,
}

/// How to encrypt a document.
#[derive(Clone, Debug, Default)]
pub struct EncryptOptions {
    /// Name of the key at the provider.
    key: String,
    /// How the file key is wrapped.
    algorithm: String,
    /// The document cipher; empty for the default.
    pub cipher: String,
    /// Whether the document omits the name of its decryption key.
    pub omit_key: bool,
    /// Name of the decryption key; empty if it is the encryption key.
    pub decryption_key: String,
}

/// A missing mandatory option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingOption {
    /// Name of the key at the provider.
    Key,
    /// How the file key is wrapped.
    Algorithm,
}

/// All cryptography providers of the sidecar.
pub struct Crypto {
    providers: Registry<Provider>,
    subtle: bool,
    resilience: Arc<Resilience>,
}

impl Crypto {
    /// No providers yet; later ones are called under the policies and metrics of `resilience`. `subtle`:
    /// whether apps may use single key operations.
    pub fn new(subtle: bool, resilience: Arc<Resilience>) -> Self {
        Self {
            providers: Registry::default(),
            subtle,
            resilience,
        }
    }

    /// Adds or replaces a provider.
    fn insert(&self, name: &str, component: Arc<dyn CryptoProvider>, hidden: Secrets) -> Registration {
        let provider = Provider::new(name, component, &self.resilience, hidden);
        self.providers.insert(name, provider)
    }

    /// The provider of this name.
    ///
    /// # Errors
    /// [`CryptoError::NotConfigured`], [`CryptoError::BadRequest`], [`CryptoError::NotFound`].
    pub fn provider(&self, name: &str) -> Result<Arc<Provider>, CryptoError> {
        if self.providers.is_empty() {
            return Err(CryptoError::NotConfigured);
        }
        if name.is_empty() {
            return Err(CryptoError::BadRequest("missing component name".to_owned()));
        }
        let found = self.providers.get(name);
        found.ok_or_else(|| CryptoError::NotFound(name.to_owned()))
    }
}

impl Category for Crypto {
    fn name(&self) -> &'static str {
        "crypto"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let component = opening.start(&opening.catalog().crypto).await?;
            let (name, closing) = (opening.name().to_owned(), Arc::clone(&component));
            let hidden = opening.hidden();
            Ok(
                Opened::new(Vec::new()).part(move || self.insert(&name, component, hidden), async move {
                    closing.close().await
                }),
            )
        })
    }
}

/// A provider with its policy and metrics.
pub struct Provider {
    component: Arc<dyn CryptoProvider>,
    outbound: Outbound,
    get: Operation,
    operation: Operation,
}

impl Provider {
    fn new(name: &str, component: Arc<dyn CryptoProvider>, resilience: &Resilience, hidden: Secrets) -> Self {
        let registry = &resilience.metrics.all().registry;
        let operation = |operation| Operation::new(registry, FAMILIES, name, operation);
        Self {
            component,
            outbound: Outbound::new(name, ComponentKind::Crypto, resilience, hidden),
            get: operation("get"),
            operation: operation("crypto_op"),
        }
    }

    async fn run<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.outbound.run(&self.operation, attempt).await
    }

    /// Encrypts `input`.
    ///
    /// # Errors
    /// [`CryptoError::Operation`]; after the first output, [`CryptoError::Stream`] in the stream.
    pub async fn encrypt<S>(&self, options: &EncryptOptions, input: S) -> Result<Output, CryptoError>
    where
        S: Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static,
    {
        let failed = |text: String| CryptoError::Operation(text);
        let unsupported = |option: &str, what: &str, name: &str| {
            let name = name.to_uppercase();
            failed(format!(
                "option {option} is not valid: {what} {name} is not supported"
            ))
        };
        let wrapping = Wrapping::named(&options.algorithm)
            .ok_or_else(|| unsupported("Algorithm", "algorithm", &options.algorithm))?;
        let cipher = match options.cipher.as_str() {
            "" => Cipher::default(),
            name => Cipher::named(name).ok_or_else(|| unsupported("Cipher", "cipher", name))?,
        };
        let (file_key, prefix) = FileKey::random().map_err(|error| failed(error.to_string()))?;
        let wrapped = self.wrap(&file_key, wrapping, &options.key).await?;
        let manifest = Manifest {
            key: options.named_key().to_owned(),
            wrapping,
            file_key: wrapped,
            cipher,
            prefix: prefix.to_vec(),
        };
        let manifest = serde_json::to_string(&manifest)
            .map_err(|error| failed(format!("failed to encode JSON manifest: {error}")))?;
        let header = file_key
            .sign(&manifest)
            .map_err(|error| failed(error.to_string()))?;
        if header.len() > MAX_HEADER {
            return Err(failed("failed to sign header: header is too long".to_owned()));
        }
        let segments = file_key.segments(cipher, prefix);
        let segments = segments.map_err(|error| failed(error.to_string()))?;
        Ok(document::pump(
            header.into(),
            &[],
            input,
            segments,
            Direction::Encrypt,
        ))
    }

    async fn wrap(&self, file_key: &FileKey, wrapping: Wrapping, key: &str) -> Result<Vec<u8>, CryptoError> {
        let with = Parameters {
            key,
            algorithm: wrapping.name(),
            ..Parameters::default()
        };
        let wrapped = self.run(|| self.component.wrap_key(file_key.bytes(), with)).await;
        let wrapped = wrapped
            .map_err(|cause| CryptoError::Operation(format!("failed to wrap the file key: {cause}")))?;
        Ok(wrapped.ciphertext)
    }

    /// Decrypts `input` with `key`, or with the key that the document names.
    ///
    /// # Errors
    /// [`CryptoError::Operation`]; after the first output, [`CryptoError::Stream`] in the stream. A missing
    /// key is indistinguishable from a wrong one.
    pub async fn decrypt<S>(&self, key: &str, mut input: S) -> Result<Output, CryptoError>
    where
        S: Stream<Item = Result<Bytes, BoxError>> + Send + Unpin + 'static,
    {
        let failed = |text: &str| CryptoError::Operation(text.to_owned());
        let header = document::read_header(&mut input).await?;
        let (manifest, prefix) =
            Manifest::parse(&header.manifest).ok_or_else(|| failed("invalid header: invalid manifest"))?;
        let key = if key.is_empty() { &manifest.key } else { key };
        if key.is_empty() {
            return Err(failed(
                "document's manifest does not contain a key name, and no key name was provided",
            ));
        }
        let file_key = self.unwrap(&manifest, key).await;
        let file_key = file_key.map_err(|error| failed(&error.to_string()))?;
        let mac = STANDARD
            .decode(&header.mac)
            .map_err(|_| failed("failed to decode header's signature: it is not base64"))?;
        if !file_key.verifies(&header.manifest, &mac) {
            return Err(failed("failed to validate the document's signature"));
        }
        let segments = file_key.segments(manifest.cipher, prefix);
        let segments = segments.map_err(|error| failed(&error.to_string()))?;
        Ok(document::pump(
            Bytes::new(),
            &header.rest,
            input,
            segments,
            Direction::Decrypt,
        ))
    }

    async fn unwrap(&self, manifest: &Manifest, key: &str) -> Result<FileKey, NoKey> {
        let with = Parameters {
            key,
            algorithm: manifest.wrapping.name(),
            ..Parameters::default()
        };
        let wrapped = Sealed {
            ciphertext: manifest.file_key.clone(),
            tag: Vec::new(),
        };
        match self.run(|| self.component.unwrap_key(&wrapped, with)).await {
            Ok(unwrapped) => FileKey::of(Some(&unwrapped)),
            Err(cause) => {
                tracing::debug!(target: "dapr.runtime.crypto", "the file key was not unwrapped: {cause}");
                FileKey::of(None)
            }
        }
    }
}

impl EncryptOptions {
    /// Options with the mandatory values.
    ///
    /// # Errors
    /// [`MissingOption`] if one is empty.
    pub fn new(key: impl Into<String>, algorithm: impl Into<String>) -> Result<Self, MissingOption> {
        let (key, algorithm) = (key.into(), algorithm.into());
        if key.is_empty() {
            return Err(MissingOption::Key);
        }
        if algorithm.is_empty() {
            return Err(MissingOption::Algorithm);
        }
        Ok(Self {
            key,
            algorithm,
            ..Self::default()
        })
    }

    fn named_key(&self) -> &str {
        if self.omit_key {
            ""
        } else if self.decryption_key.is_empty() {
            &self.key
        } else {
            &self.decryption_key
        }
    }
}

#[cfg(test)]
mod tests;
