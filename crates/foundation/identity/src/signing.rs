//! Signatures by workload identities that are verified later, at the time of the signature, with a stored
//! certificate chain. A handshake is verified in `verify`.

use std::time::Duration;

use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use sha2::{Digest as _, Sha256};
use webpki::{EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, RawPublicKeyEntity};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bundle::TrustAnchors;
use crate::id::{IdError, SpiffeId};
use crate::leaf::{self, LeafError};
use crate::provider;
use crate::svid::Svid;

/// The signatures over a SHA-256 digest: Ed25519 signs the digest, the others hash the message themselves.
const SCHEMES: [SignatureScheme; 3] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::RSA_PKCS1_SHA256,
];

/// Why a signature was not made, or was rejected.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The key of the identity cannot sign SHA-256 digests.
    #[error("the key of the identity is not an Ed25519, ECDSA P-256 or RSA key")]
    UnusableKey,
    /// The key of the identity failed to sign.
    #[error("the key of the identity cannot sign: {0}")]
    Sign(rustls::Error),
    /// The chain has no certificate.
    #[error("the certificate chain is empty")]
    NoCertificate,
    /// The leaf is not an X.509-SVID, or a certificate of the chain cannot be decoded.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// The leaf's identity is not that of a workload.
    #[error("the certificate's identity is refused: {0}")]
    Id(#[from] IdError),
    /// The signature is not that of the leaf's key over this message.
    #[error("the signature does not match")]
    Mismatch,
    /// The chain does not lead to a trust anchor, or not at that time.
    #[error(
        "{id}: the certificate is not vouched for by a trust anchor at the time of the signature ({cause})"
    )]
    Untrusted {
        /// The identity in the leaf.
        id: SpiffeId,
        /// The verification error.
        cause: webpki::Error,
    },
}

impl Svid {
    /// Signs the SHA-256 digest of `message`: Ed25519; ECDSA P-256 in ASN.1 DER; or RSA PKCS #1 v1.5.
    ///
    /// # Errors
    /// [`SignatureError::UnusableKey`], [`SignatureError::Sign`].
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignatureError> {
        let signer = self.certified().key.choose_scheme(&SCHEMES);
        let signer = signer.ok_or(SignatureError::UnusableKey)?;
        let signed = match signer.scheme() {
            SignatureScheme::ED25519 => signer.sign(&Sha256::digest(message)),
            _ => signer.sign(message),
        };
        signed.map_err(SignatureError::Sign)
    }

    /// The certificates of the chain one after another, leaf first; input of [`SignerChain::parse`].
    pub fn chain_der(&self) -> Vec<u8> {
        let certificates = self.chain().iter();
        certificates
            .flat_map(|certificate| certificate.iter().copied())
            .collect()
    }
}

/// The certificate chain of a signer.
#[derive(Debug, Clone)]
pub struct SignerChain {
    certificates: Vec<CertificateDer<'static>>,
    /// The leaf's public key, DER.
    key: Vec<u8>,
    id: SpiffeId,
    /// First and last second of the leaf's validity, since 1970.
    validity: (i64, i64),
}

impl SignerChain {
    /// Decodes certificates that follow one another, leaf first. Checks the form of the leaf, not who vouches
    /// for it.
    ///
    /// # Errors
    /// [`SignatureError::NoCertificate`], [`SignatureError::Leaf`], [`SignatureError::Id`].
    pub fn parse(der: &[u8]) -> Result<Self, SignatureError> {
        let mut certificates = Vec::new();
        let mut rest = der;
        while !rest.is_empty() {
            let (after, _) =
                X509Certificate::from_der(rest).map_err(|error| LeafError::Encoding(error.to_string()))?;
            let (certificate, after) = rest.split_at(rest.len() - after.len());
            certificates.push(CertificateDer::from(certificate.to_vec()));
            rest = after;
        }
        let first = certificates.first().ok_or(SignatureError::NoCertificate)?;
        let (_, parsed) =
            X509Certificate::from_der(first).map_err(|error| LeafError::Encoding(error.to_string()))?;
        let id = leaf::check(&parsed)?.parse()?;
        let (from, until) = leaf::validity(&parsed)?;
        Ok(Self {
            key: parsed.tbs_certificate.subject_pki.raw.to_vec(),
            id,
            validity: (from.as_second(), until.as_second()),
            certificates,
        })
    }

    /// The identity in the leaf.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// First and last second of the leaf's validity, since 1970.
    pub fn validity(&self) -> (i64, i64) {
        self.validity
    }

    /// Whether the leaf is valid in this second since 1970.
    pub fn is_valid_at(&self, second: i64) -> bool {
        let (from, until) = self.validity;
        (from..=until).contains(&second)
    }

    /// Checks a signature by the leaf's key over the SHA-256 digest of `message`; see [`Svid::sign`].
    ///
    /// # Errors
    /// [`SignatureError::Mismatch`].
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), SignatureError> {
        let key = SubjectPublicKeyInfoDer::from(self.key.as_slice());
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| SignatureError::Mismatch)?;
        let digest = Sha256::digest(message);
        let known = provider::crypto().signature_verification_algorithms.mapping;
        let usable = known.iter().filter(|(scheme, _)| SCHEMES.contains(scheme));
        let mut matches = usable.flat_map(|(scheme, algorithms)| {
            let signed = match *scheme {
                SignatureScheme::ED25519 => digest.as_slice(),
                _ => message,
            };
            algorithms.iter().map(move |algorithm| (*algorithm, signed))
        });
        match matches.any(|(algorithm, signed)| key.verify_signature(algorithm, signed, signature).is_ok()) {
            true => Ok(()),
            false => Err(SignatureError::Mismatch),
        }
    }

    /// Checks that the anchors vouch for the chain in this second since 1970, for any extended key usage.
    ///
    /// # Errors
    /// [`SignatureError::Untrusted`].
    pub fn check_trust(&self, anchors: &TrustAnchors, second: i64) -> Result<(), SignatureError> {
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let at = UnixTime::since_unix_epoch(since);
        let algorithms = provider::crypto().signature_verification_algorithms.all;
        let (leaf, intermediates) = self
            .certificates
            .split_first()
            .ok_or(SignatureError::NoCertificate)?;
        let verified = anchors.current().with_valid_at(at, |anchors| {
            let leaf = EndEntityCert::try_from(leaf)?;
            let path = leaf.verify_for_usage(algorithms, anchors, intermediates, at, AnyUsage, None, None);
            path.map(drop)
        });
        verified.map_err(|cause| SignatureError::Untrusted {
            id: self.id.clone(),
            cause,
        })
    }
}

/// Accepts every well-formed list of extended key usages.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, usages: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        usages.into_iter().try_for_each(|usage| usage.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;
    use time::OffsetDateTime;

    use super::*;
    use crate::testing::{Algorithm, Authority, Leaf};

    const URI: &str = "spiffe://td/ns/shop/cart";

    fn now() -> i64 {
        OffsetDateTime::now_utc().unix_timestamp()
    }

    #[test]
    fn keys_of_each_kind_sign() {
        let authority = Authority::new("td", Algorithm::P256);
        let anchors = TrustAnchors::new(authority.bundle());
        for algorithm in [Algorithm::P256, Algorithm::Ed25519, Algorithm::Rsa] {
            let svid = authority.issue_with(Leaf::workload(URI), algorithm).into_svid();
            let signature = svid.sign(b"message").unwrap();
            let chain = SignerChain::parse(&svid.chain_der()).unwrap();
            assert_eq!(chain.id().as_str(), URI);
            chain.verify(b"message", &signature).unwrap();
            chain.check_trust(&anchors, now()).unwrap();
            assert!(chain.is_valid_at(now()));
            for (message, position) in [
                (&b"massage"[..], None),
                (b"message", Some(0)),
                (b"message", Some(9)),
            ] {
                let mut signature = signature.clone();
                position
                    .into_iter()
                    .for_each(|position: usize| signature[position] ^= 1);
                let refused = chain.verify(message, &signature);
                assert!(matches!(refused, Err(SignatureError::Mismatch)), "{algorithm:?}");
            }
        }
        let other = authority
            .issue_with(Leaf::workload(URI), Algorithm::P384)
            .into_svid();
        assert!(matches!(other.sign(b"message"), Err(SignatureError::UnusableKey)));
    }

    #[test]
    fn ed25519_signs_the_digest() {
        let authority = Authority::new("td", Algorithm::P256);
        let svid = authority
            .issue_with(Leaf::workload(URI), Algorithm::Ed25519)
            .into_svid();
        let PrivateKeyDer::Pkcs8(key) = svid.key() else {
            panic!("a generated key is PKCS #8");
        };
        let key = rcgen::KeyPair::try_from(key.secret_pkcs8_der()).unwrap();
        let by_hand = rcgen::SigningKey::sign(&key, &Sha256::digest(b"message")).unwrap();
        assert_eq!(svid.sign(b"message").unwrap(), by_hand);
    }

    #[test]
    fn trust_is_judged_at_time_of_signature() {
        let authority = Authority::new("td", Algorithm::P256);
        let expired = Leaf {
            from: time::Duration::hours(-3),
            until: time::Duration::hours(-2),
            ..Leaf::workload(URI)
        };
        let svid = authority.issue(expired).into_svid();
        let chain = SignerChain::parse(&svid.chain_der()).unwrap();
        let anchors = TrustAnchors::new(authority.bundle());
        let (from, until) = chain.validity();
        assert_eq!(until - from, 3600);
        assert!(chain.is_valid_at(until) && !chain.is_valid_at(until + 1) && !chain.is_valid_at(from - 1));
        let trusted = |anchors: &TrustAnchors, at| chain.check_trust(anchors, at);
        assert!(matches!(
            trusted(&anchors, now()),
            Err(SignatureError::Untrusted { .. })
        ));
        assert!(matches!(
            trusted(&anchors, -1),
            Err(SignatureError::Untrusted { .. })
        ));
        let other = TrustAnchors::new(Authority::new("td", Algorithm::P256).bundle());
        assert!(matches!(
            trusted(&other, until),
            Err(SignatureError::Untrusted { .. })
        ));
    }

    #[test]
    fn damaged_chains_are_refused() {
        assert!(matches!(
            SignerChain::parse(b""),
            Err(SignatureError::NoCertificate)
        ));
        let authority = Authority::new("td", Algorithm::P256);
        let chain = authority.workload("shop", "cart").into_svid().chain_der();
        for length in [1, chain.len() / 2, chain.len() - 1] {
            assert!(SignerChain::parse(&chain[..length]).is_err(), "{length}");
        }
        let trailing = [&chain[..], &[0]].concat();
        assert!(SignerChain::parse(&trailing).is_err());
        assert!(
            SignerChain::parse(&authority.root).is_err(),
            "a root is no workload"
        );
        let ca = Leaf {
            is_ca: true,
            ..Leaf::workload(URI)
        };
        let ca = authority.issue(ca);
        let ca: Vec<u8> = ca
            .chain
            .iter()
            .flat_map(|certificate| certificate.to_vec())
            .collect();
        assert!(matches!(
            SignerChain::parse(&ca),
            Err(SignatureError::Leaf(LeafError::IsCa(_)))
        ));
    }
}
