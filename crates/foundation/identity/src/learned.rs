//! Roots that the authority sends with each certificate. A sidecar configured with fixed roots thus trusts
//! the next root before any peer presents a certificate of it.

use rustls::pki_types::CertificateDer;

use crate::bundle::{BundleError, TrustAnchors, TrustBundle};
use crate::pem;

/// Extends trust anchors configured as text by the authority's roots.
#[derive(Debug)]
pub(crate) struct LearnedRoots {
    /// Configured at startup, and always trusted.
    configured: Vec<CertificateDer<'static>>,
    anchors: TrustAnchors,
}

impl LearnedRoots {
    /// The current `anchors` stay trusted.
    ///
    /// # Errors
    /// If they cannot be parsed.
    pub(crate) fn new(anchors: TrustAnchors) -> Result<Self, BundleError> {
        let configured = pem::parse_certificates(anchors.current().pem().as_bytes())?;
        Ok(Self { configured, anchors })
    }

    /// Replaces the learned roots by those of a response. This gives the authority no new power: it was
    /// verified against the anchors, and its certificates are trusted in any case.
    pub(crate) fn learn(&self, trust_chain: &[impl AsRef<[u8]>]) {
        let bundle = match self.bundle(trust_chain) {
            Ok(bundle) => bundle,
            Err(problem) => {
                tracing::warn!(
                    "cannot use the root certificates that sentry sent, keeping those in use: {problem}"
                );
                return;
            }
        };
        let before = self.anchors.current();
        let known = pem::parse_certificates(before.pem().as_bytes()).unwrap_or_default();
        let named = pem::parse_certificates(bundle.pem().as_bytes()).unwrap_or_default();
        // Differences in comments of the configured text do not matter.
        if known != named {
            tracing::info!(
                "sentry sent new root certificates: {} are trusted now, {} were before",
                bundle.len(),
                before.len()
            );
            self.anchors.replace(bundle);
        }
    }

    fn bundle(&self, trust_chain: &[impl AsRef<[u8]>]) -> Result<TrustBundle, String> {
        let mut roots = self.configured.clone();
        let (mut named, mut skipped) = (0, 0);
        for chain in trust_chain {
            for root in pem::parse_certificates(chain.as_ref()).map_err(|error| error.to_string())? {
                if roots.contains(&root) {
                    named += 1;
                } else if !pem::is_self_signed(&root) {
                    skipped += 1;
                } else {
                    named += 1;
                    roots.push(root);
                }
            }
        }
        if skipped > 0 && named == 0 {
            return Err("none of them is self-signed".to_owned());
        }
        if skipped > 0 {
            tracing::warn!(
                "sentry sent {skipped} root certificates that are not self-signed: they are not trusted, the others \
                 are; remove them from sentry's ca.crt"
            );
        }
        TrustBundle::from_pem(pem::encode_certificates(&roots).as_bytes()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Algorithm, Authority};

    fn authority() -> Authority {
        Authority::new("td", Algorithm::P256)
    }

    fn roots(anchors: &TrustAnchors) -> Vec<CertificateDer<'static>> {
        pem::parse_certificates(anchors.current().pem().as_bytes()).unwrap()
    }

    #[test]
    fn trusts_last_and_configured_roots() {
        let (start, next, later) = (authority(), authority(), authority());
        let anchors = TrustAnchors::new(start.bundle());
        let learned = LearnedRoots::new(anchors.clone()).unwrap();
        learned.learn(&[format!("{}{}", start.root_pem(), next.root_pem())]);
        assert_eq!(roots(&anchors), [start.root.clone(), next.root.clone()]);
        learned.learn(&[next.root_pem(), later.root_pem()]);
        assert_eq!(roots(&anchors), [start.root.clone(), next.root, later.root]);
        learned.learn(&[] as &[String]);
        assert_eq!(roots(&anchors), [start.root]);
    }

    #[test]
    fn ignores_invalid_roots() {
        let (start, next) = (authority(), authority());
        let anchors = TrustAnchors::new(start.bundle());
        let learned = LearnedRoots::new(anchors.clone()).unwrap();
        learned.learn(&[next.root_pem()]);
        let before = roots(&anchors);
        let issuer = pem::encode_certificates([&next.issuer]);
        for bad in ["nothing".to_owned(), issuer] {
            learned.learn(&[bad]);
            assert_eq!(roots(&anchors), before);
        }
    }

    #[test]
    fn skips_non_root_certificates() {
        let (start, partner, next) = (authority(), authority(), authority());
        let configured = format!("{}{}", start.root_pem(), partner.root_pem());
        let anchors = TrustAnchors::new(TrustBundle::from_pem(configured.as_bytes()).unwrap());
        let learned = LearnedRoots::new(anchors.clone()).unwrap();
        let mut wanted = roots(&anchors);
        wanted.push(next.root.clone());
        let issuer = pem::encode_certificates([&next.issuer]);
        learned.learn(&[format!("{configured}{issuer}{}", next.root_pem())]);
        assert_eq!(roots(&anchors), wanted);
    }

    #[test]
    fn equal_roots_do_not_notify() {
        let start = authority();
        let anchors = TrustAnchors::new(start.bundle());
        let mut followed = anchors.subscribe();
        let learned = LearnedRoots::new(anchors).unwrap();
        learned.learn(&[start.root_pem()]);
        assert!(!followed.has_changed().unwrap());
        learned.learn(&[authority().root_pem()]);
        assert!(followed.has_changed().unwrap());
        followed.mark_unchanged();
    }
}
