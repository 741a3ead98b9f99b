//! Trust bundles: parsed once, replaced as a whole on rotation.

use std::sync::Arc;

use rustls::pki_types::{TrustAnchor, UnixTime};
use tokio::sync::watch;

use crate::leaf::{self, LeafError};
use crate::pem::{self, PemError};

/// Why a trust bundle was rejected.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The bundle is empty.
    #[error("trust anchors are required")]
    Missing,
    /// Invalid PEM data.
    #[error("failed to decode trust anchors: {0}")]
    Pem(#[from] PemError),
    /// Certificate number `index` (from 0) is not a valid root of trust.
    #[error("trust anchor {index} cannot be used: {cause}")]
    Anchor {
        /// Position in the bundle, from 0.
        index: usize,
        /// The cause.
        cause: String,
    },
}

/// One or more root certificates, both old and new ones during a rotation. Applies to every trust domain.
#[derive(Debug)]
pub struct TrustBundle {
    anchors: Vec<TrustAnchor<'static>>,
    /// Validity of each anchor, in seconds since 1970.
    validity: Vec<(i64, i64)>,
    pem: String,
}

impl TrustBundle {
    /// Decodes PEM certificates and keeps the original text.
    ///
    /// # Errors
    /// If there is no certificate, or one of them is not a valid root of trust.
    pub fn from_pem(text: &[u8]) -> Result<Self, BundleError> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(BundleError::Missing);
        }
        let certificates = pem::parse_certificates(text)?;
        let mut anchors = Vec::with_capacity(certificates.len());
        let mut validity = Vec::with_capacity(certificates.len());
        for (index, certificate) in certificates.iter().enumerate() {
            let refuse = |cause: String| BundleError::Anchor { index, cause };
            let anchor =
                webpki::anchor_from_trusted_cert(certificate).map_err(|error| refuse(error.to_string()))?;
            anchors.push(anchor.to_owned());
            let parsed = pem::decode(certificate).map_err(refuse)?;
            let (from, until) =
                leaf::validity(&parsed).map_err(|error: LeafError| refuse(error.to_string()))?;
            validity.push((from.as_second(), until.as_second()));
        }
        Ok(Self {
            anchors,
            validity,
            pem: String::from_utf8_lossy(text).into_owned(),
        })
    }

    /// The PEM text of this bundle.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Number of root certificates.
    pub fn len(&self) -> usize {
        self.anchors.len()
    }

    /// Always false: a bundle has at least one root certificate.
    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Runs `verify` with the anchors valid at `now`.
    pub(crate) fn with_valid_at<T>(
        &self,
        now: UnixTime,
        verify: impl FnOnce(&[TrustAnchor<'static>]) -> T,
    ) -> T {
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let valid = |index: &usize| {
            let (from, until) = self.validity[*index];
            from <= now && now <= until
        };
        if (0..self.anchors.len()).all(|index| valid(&index)) {
            return verify(&self.anchors);
        }
        let anchors: Vec<_> = (0..self.anchors.len())
            .filter(valid)
            .map(|index| self.anchors[index].clone())
            .collect();
        verify(&anchors)
    }
}

/// The current trust bundle, shared by all verifiers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TrustAnchors {
    current: Arc<watch::Sender<Arc<TrustBundle>>>,
}

impl TrustAnchors {
    /// Anchors that change only through [`TrustAnchors::replace`].
    pub fn new(bundle: TrustBundle) -> Self {
        Self {
            current: Arc::new(watch::Sender::new(Arc::new(bundle))),
        }
    }

    /// The current bundle.
    pub fn current(&self) -> Arc<TrustBundle> {
        Arc::clone(&self.current.borrow())
    }

    /// Replaces the bundle for all later handshakes.
    pub fn replace(&self, bundle: TrustBundle) {
        self.current.send_replace(Arc::new(bundle));
    }

    /// Watches the bundle.
    pub fn subscribe(&self) -> watch::Receiver<Arc<TrustBundle>> {
        self.current.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{Algorithm, Authority};

    #[test]
    fn rejects_empty_bundle() {
        assert!(matches!(TrustBundle::from_pem(b" \n"), Err(BundleError::Missing)));
        assert!(matches!(TrustBundle::from_pem(b"x"), Err(BundleError::Pem(_))));
    }

    #[test]
    fn several_roots() {
        let text: String = [Algorithm::P256, Algorithm::Rsa]
            .map(|algorithm| Authority::new("td", algorithm).root_pem())
            .concat();
        let bundle = TrustBundle::from_pem(text.as_bytes()).unwrap();
        assert_eq!(bundle.len(), 2);
        assert_eq!(bundle.pem(), text);
    }

    #[test]
    fn ignores_expired_roots() {
        let fresh = Authority::new("td", Algorithm::P256).root_pem();
        let old = Authority::lasting("td", Algorithm::P256, time::Duration::minutes(-1)).root_pem();
        let bundle = TrustBundle::from_pem(format!("{old}{fresh}").as_bytes()).unwrap();
        assert_eq!(bundle.with_valid_at(UnixTime::now(), <[_]>::len), 1);
        let later = Duration::from_secs(UnixTime::now().as_secs() + 400 * 24 * 3600);
        assert_eq!(
            bundle.with_valid_at(UnixTime::since_unix_epoch(later), <[_]>::len),
            0
        );
    }

    #[tokio::test]
    async fn subscribers_see_replacement() {
        let anchors = TrustAnchors::new(Authority::new("one", Algorithm::P256).bundle());
        let mut follower = anchors.subscribe();
        let next = Authority::new("two", Algorithm::P256);
        anchors.replace(next.bundle());
        follower.changed().await.unwrap();
        assert_eq!(follower.borrow().pem(), next.root_pem());
        assert_eq!(anchors.current().pem(), next.root_pem());
    }
}
