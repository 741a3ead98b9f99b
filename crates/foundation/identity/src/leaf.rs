//! The identity in a leaf certificate, and the X.509-SVID rules.

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{GeneralName, X509Certificate};

use crate::id::{self, IdError, SpiffeId};
use crate::pem;

/// Why a leaf certificate is not an X.509-SVID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeafError {
    /// The peer sent no certificate.
    #[error("no certificate was presented")]
    Missing,
    /// The certificate, or a relevant extension, cannot be decoded.
    #[error("the certificate cannot be decoded: {0}")]
    Encoding(String),
    /// A leaf must have exactly one URI name.
    #[error("the certificate has {0} URI names instead of one SPIFFE ID")]
    UriCount(usize),
    /// The URI name is not a valid SPIFFE ID.
    #[error("the certificate's URI name is refused: {0}")]
    Id(#[from] IdError),
    /// The leaf is marked as a CA.
    #[error("{0}: the certificate is marked as a CA, which a workload must not be")]
    IsCa(String),
    /// The leaf may sign certificates or revocation lists.
    #[error("{0}: the certificate may sign certificates or revocation lists, which a workload must not")]
    MaySign(String),
}

/// The identity in the first certificate of a chain that a handshake has already verified.
///
/// Decodes the leaf and checks nothing else. Call it once per connection, with the peer's certificates.
///
/// # Errors
/// If there is no certificate, or it does not have exactly one URI of the form `spiffe://<trust
/// domain>/ns/<namespace>/<app id>`.
pub fn peer_id(chain: &[CertificateDer<'_>]) -> Result<SpiffeId, LeafError> {
    let leaf = chain.first().ok_or(LeafError::Missing)?;
    let parsed = pem::decode(leaf).map_err(LeafError::Encoding)?;
    Ok(uri(&parsed)?.parse()?)
}

/// Checks the X.509-SVID rules of a leaf, except signature and validity, and returns its SPIFFE ID.
pub(crate) fn check(certificate: &X509Certificate<'_>) -> Result<String, LeafError> {
    let uri = uri(certificate)?;
    id::split(uri)?;
    let constraints = certificate.basic_constraints().map_err(encoding)?;
    if constraints.is_some_and(|constraints| constraints.value.ca) {
        return Err(LeafError::IsCa(uri.to_owned()));
    }
    let usage = certificate.key_usage().map_err(encoding)?;
    if usage.is_some_and(|usage| usage.value.key_cert_sign() || usage.value.crl_sign()) {
        return Err(LeafError::MaySign(uri.to_owned()));
    }
    Ok(uri.to_owned())
}

/// Start and end of the validity.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> Result<(Timestamp, Timestamp), LeafError> {
    let validity = certificate.validity();
    let second =
        |seconds| Timestamp::from_second(seconds).map_err(|error| LeafError::Encoding(error.to_string()));
    Ok((
        second(validity.not_before.timestamp())?,
        second(validity.not_after.timestamp())?,
    ))
}

fn uri<'a>(certificate: &'a X509Certificate<'_>) -> Result<&'a str, LeafError> {
    let names = certificate.subject_alternative_name().map_err(encoding)?;
    let names = names
        .map(|extension| extension.value.general_names.as_slice())
        .unwrap_or_default();
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.count()) {
        (Some(uri), 0) => Ok(uri),
        (first, rest) => Err(LeafError::UriCount(usize::from(first.is_some()) + rest)),
    }
}

fn encoding(error: impl std::fmt::Display) -> LeafError {
    LeafError::Encoding(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Algorithm, Authority};

    #[test]
    fn damaged_certificates_do_not_panic() {
        let authority = Authority::new("td", Algorithm::P256);
        let chain = authority.workload("ns", "app").chain;
        assert_eq!(peer_id(&chain).unwrap().as_str(), "spiffe://td/ns/ns/app");
        for position in 0..chain[0].len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = chain[0].to_vec();
                bytes[position] ^= flip;
                let _ = peer_id(&[bytes.into()]);
            }
            assert!(
                peer_id(&[chain[0][..position].to_vec().into()]).is_err(),
                "cut at {position}"
            );
        }
        assert_eq!(peer_id(&[]), Err(LeafError::Missing));
        assert_eq!(peer_id(&[authority.root]), Err(LeafError::UriCount(0)));
    }
}
