//! The identity document of this process: certificate chain, private key and optionally a JWT.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::id::SpiffeId;
use crate::jwt::JwtSvid;
use crate::leaf::{self, LeafError};
use crate::{pem, provider};

/// Why a chain and a key do not form an identity.
#[derive(Debug, thiserror::Error)]
pub enum SvidError {
    /// The leaf has no valid identity.
    #[error("the issued certificate is refused: {0}")]
    Leaf(#[from] LeafError),
    /// The key does not match the leaf, or is unusable.
    #[error("the issued certificate and the private key do not match: {0}")]
    Key(rustls::Error),
}

/// A certificate chain with its private key.
pub struct Svid {
    id: SpiffeId,
    certified: Arc<CertifiedKey>,
    key: PrivateKeyDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    jwt: Option<JwtSvid>,
    /// Tokens by their only audience.
    audience_jwts: HashMap<String, JwtSvid>,
}

impl Svid {
    /// Builds an identity. `chain` starts with the leaf and omits the root.
    ///
    /// # Errors
    /// If the leaf does not have exactly one Dapr SPIFFE ID, or `key` does not match it.
    pub fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, SvidError> {
        let id = leaf::peer_id(&chain)?;
        // `peer_id` rejects an empty chain.
        let parsed = pem::decode(&chain[0]).map_err(LeafError::Encoding)?;
        let (not_before, not_after) = leaf::validity(&parsed)?;
        let certified =
            CertifiedKey::from_der(chain, key.clone_key(), provider::crypto()).map_err(SvidError::Key)?;
        Ok(Self {
            id,
            certified: Arc::new(certified),
            key,
            not_before,
            not_after,
            jwt: None,
            audience_jwts: HashMap::new(),
        })
    }

    /// The same identity with a JWT.
    #[must_use]
    pub fn with_jwt(self, jwt: JwtSvid) -> Self {
        Self {
            jwt: Some(jwt),
            ..self
        }
    }

    /// The same identity with tokens for one audience each.
    #[must_use]
    pub fn with_audience_jwts(self, audience_jwts: HashMap<String, JwtSvid>) -> Self {
        Self {
            audience_jwts,
            ..self
        }
    }

    /// The SPIFFE ID of the certificate.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// The certificate chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// The private key of the leaf.
    pub fn key(&self) -> &PrivateKeyDer<'static> {
        &self.key
    }

    /// Start of the leaf's validity.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// End of the leaf's validity.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// The JWT issued with the certificate for all audiences, if any.
    pub fn jwt(&self) -> Option<&JwtSvid> {
        self.jwt.as_ref()
    }

    /// The JWT for `audience` alone, or the common one if that is also for `audience`: Dapr's sentry of v1.17
    /// issues only that one.
    pub fn jwt_for(&self, audience: &str) -> Option<&JwtSvid> {
        let common = || self.jwt().filter(|jwt| jwt.is_for(audience));
        self.audience_jwts.get(audience).or_else(common)
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for Svid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Svid")
            .field("id", &self.id)
            .field("not_before", &self.not_before)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
