//! Verification of a peer in a TLS handshake by the X.509-SVID rules: the chain must lead to a trust
//! anchor, and the leaf must have one SPIFFE ID. DNS names are ignored.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use outrigger_tls::{Check, Presented, Verifier};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::{CertificateError, OtherError};
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, RequiredEkuNotFoundContext,
};

use crate::bundle::TrustAnchors;
use crate::id::SpiffeId;
use crate::leaf::{self, LeafError};
use crate::{pem, provider};

/// The acceptable peers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Expect {
    /// Any workload that the trust anchors vouch for.
    Any,
    /// Exactly this identity; used by clients of the control plane.
    Exact(SpiffeId),
    /// This namespace and app ID in any trust domain; used between sidecars.
    Path {
        /// Namespace of the peer.
        namespace: String,
        /// App id of the peer.
        app_id: String,
    },
}

impl Expect {
    /// Whether `id`, a syntactically valid SPIFFE ID, is acceptable.
    fn accepts(&self, id: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(expected) => expected.as_str() == id,
            Self::Path { namespace, app_id } => {
                let path = crate::id::split(id).map_or("", |(_, path)| path);
                let mut segments = path.split('/');
                [
                    segments.next(),
                    segments.next(),
                    segments.next(),
                    segments.next(),
                    segments.next(),
                ] == [Some(""), Some("ns"), Some(namespace), Some(app_id), None]
            }
        }
    }
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any SPIFFE ID"),
            Self::Exact(id) => write!(f, "{id}"),
            Self::Path { namespace, app_id } => {
                write!(f, "spiffe://<any trust domain>/ns/{namespace}/{app_id}")
            }
        }
    }
}

/// Why a peer was rejected.
#[derive(thiserror::Error)]
pub enum PeerError {
    /// The leaf is not an X.509-SVID.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// The chain does not lead to a trust anchor.
    #[error(
        "{id}: the certificate is not signed by any trusted root ({cause}); both sides must be issued by the same CA, \
         check the trust anchors of this process"
    )]
    Untrusted {
        /// The SPIFFE ID in the peer's certificate.
        id: String,
        /// The verification error.
        cause: webpki::Error,
    },
    /// The peer's certificate, or one above it, is not currently valid.
    #[error(
        "{id}: the certificate is outside its validity ({cause}); check the clocks and whether renewal works"
    )]
    Validity {
        /// The SPIFFE ID in the peer's certificate.
        id: String,
        /// The verification error.
        cause: webpki::Error,
    },
    /// The certificate, or one above it, does not permit this use.
    #[error(
        "{id}: the extended key usage of the certificate does not allow its use as that of a {role}; issue it with \
         serverAuth and clientAuth, or without extended key usage"
    )]
    Usage {
        /// The SPIFFE ID in the peer's certificate.
        id: String,
        /// `server` or `client`.
        role: &'static str,
    },
    /// A trusted peer, but not an expected one.
    #[error("the peer is {presented}, expected {expected}")]
    Unexpected {
        /// The SPIFFE ID in the peer's certificate.
        presented: String,
        /// The acceptable SPIFFE IDs.
        expected: Expect,
    },
}

impl PeerError {
    /// Finds the reason why this side rejected the peer, in `error` (of a TLS connect or accept) and its
    /// sources.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner)))) =
                error.downcast_ref()
            {
                return inner.downcast_ref();
            }
            // The source of an I/O error skips the error that it wraps.
            next = match error
                .downcast_ref::<std::io::Error>()
                .and_then(std::io::Error::get_ref)
            {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        None
    }
}

impl fmt::Debug for PeerError {
    /// The TLS library logs errors of verifiers in this form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) type PeerVerifier = Verifier<PeerCheck>;

/// Verifies peers with the trust anchors current at the time of the handshake.
pub(crate) fn verifier(anchors: TrustAnchors, expect: Expect) -> Arc<PeerVerifier> {
    Arc::new(Verifier::new(PeerCheck { anchors, expect }, provider::crypto()))
}

#[derive(Debug)]
pub(crate) struct PeerCheck {
    anchors: TrustAnchors,
    expect: Expect,
}

impl Check for PeerCheck {
    fn check(&self, presented: &Presented<'_>) -> Result<(), rustls::Error> {
        self.accept(presented)
            .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))).into())
    }
}

impl PeerCheck {
    fn accept(&self, presented: &Presented<'_>) -> Result<(), PeerError> {
        let role = match presented.server_name {
            Some(_) => Role::Server,
            None => Role::Client,
        };
        let parsed = pem::decode(presented.leaf).map_err(LeafError::Encoding)?;
        let id = leaf::check(&parsed)?;
        let bundle = self.anchors.current();
        match bundle.with_valid_at(presented.now, |anchors| verify_chain(role, presented, anchors)) {
            Ok(()) if self.expect.accepts(&id) => Ok(()),
            Ok(()) => Err(PeerError::Unexpected {
                presented: id,
                expected: self.expect.clone(),
            }),
            Err(cause @ (webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. })) => {
                Err(PeerError::Validity { id, cause })
            }
            Err(webpki::Error::RequiredEkuNotFoundContext(_)) => Err(PeerError::Usage {
                id,
                role: role.name(),
            }),
            Err(cause) => Err(PeerError::Untrusted { id, cause }),
        }
    }
}

/// Whether the anchors vouch for a chain, whose first certificate is the leaf. Expired chains may be
/// vouched for.
pub(crate) fn is_vouched(anchors: &TrustAnchors, chain: &[CertificateDer<'_>]) -> bool {
    let (anchors, expect) = (anchors.clone(), Expect::Any);
    chain.split_first().is_some_and(|(leaf, intermediates)| {
        let presented = Presented {
            leaf,
            intermediates,
            server_name: None,
            now: UnixTime::now(),
        };
        let accepted = PeerCheck { anchors, expect }.accept(&presented);
        !matches!(accepted, Err(PeerError::Untrusted { .. }))
    })
}

fn verify_chain(
    role: Role,
    presented: &Presented<'_>,
    anchors: &[TrustAnchor<'static>],
) -> Result<(), webpki::Error> {
    let algorithms = provider::crypto().signature_verification_algorithms.all;
    let Presented {
        leaf,
        intermediates,
        now,
        ..
    } = *presented;
    EndEntityCert::try_from(leaf)?
        .verify_for_usage(algorithms, anchors, intermediates, now, role, None, None)
        .map(drop)
}

/// Role of the peer in a handshake.
#[derive(Debug, Clone, Copy)]
enum Role {
    Server,
    Client,
}

/// The key purpose that allows every use (RFC 5280, 4.2.1.12).
const ANY_USAGE: &[usize] = &[2, 5, 29, 37, 0];

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    /// The key purpose of this role.
    fn purpose(self) -> &'static [usize] {
        match self {
            Self::Server => &[1, 3, 6, 1, 5, 5, 7, 3, 1],
            Self::Client => &[1, 3, 6, 1, 5, 5, 7, 3, 2],
        }
    }
}

/// A certificate without extended key usages allows all uses; one with them, only those.
impl ExtendedKeyUsageValidator for Role {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        // Reads to the end: an extension with unread bytes counts as malformed.
        let present = usages
            .map(|usage| usage.map(|usage| usage.to_decoded_oid()))
            .collect::<Result<Vec<_>, _>>()?;
        let allows = |usage: &Vec<usize>| usage == ANY_USAGE || usage == self.purpose();
        if present.is_empty() || present.iter().any(allows) {
            return Ok(());
        }
        let required = match self {
            Self::Server => KeyUsage::server_auth(),
            Self::Client => KeyUsage::client_auth(),
        };
        Err(webpki::Error::RequiredEkuNotFoundContext(
            RequiredEkuNotFoundContext { required, present },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_expected_ids() {
        let id = "spiffe://public/ns/shop/cart";
        let exact = |text: &str| Expect::Exact(text.parse().unwrap());
        let path = |namespace: &str, app_id: &str| Expect::Path {
            namespace: namespace.into(),
            app_id: app_id.into(),
        };
        assert!(Expect::Any.accepts(id));
        assert!(exact(id).accepts(id));
        assert!(!exact("spiffe://other/ns/shop/cart").accepts(id));
        assert!(path("shop", "cart").accepts(id));
        assert!(path("shop", "cart").accepts("spiffe://other/ns/shop/cart"));
        assert!(!path("shop", "cart").accepts("spiffe://other/ns/shop/cart/x"));
        assert!(!path("shop", "till").accepts(id));
        assert!(!path("", "cart").accepts(id));
        assert!(!path("shop", "cart").accepts("spiffe://public"));
    }
}
