//! Generates an authority: a root whose key is discarded after it signed one issuer.

use aws_lc_rs::signature::Ed25519KeyPair;
use outrigger_identity::{SpiffeId, pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use time::{Duration, OffsetDateTime};

use super::{Pem, SigningError, random_serial, whole_seconds};

/// Lifetime of a generated root and of its issuer.
const LIFETIME: Duration = Duration::days(365);

/// Why an authority cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// No random serial number.
    #[error(transparent)]
    Serial(#[from] SigningError),
    /// No random key.
    #[error("cannot generate a key: {0}")]
    Key(#[from] aws_lc_rs::error::Unspecified),
    /// A certificate cannot be generated.
    #[error("cannot generate a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// Generates a root for the trust domain of `sentry` and an issuer named after `sentry`, valid from `now` on.
pub(crate) fn generate(sentry: &SpiffeId, skew: Duration, now: OffsetDateTime) -> Result<Pem, GenerateError> {
    let root_key = new_key()?;
    let root_usages = [KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let root = authority(sentry.trust_domain(), &root_usages, skew, now)?;
    let root_certificate = root.self_signed(&root_key)?;

    let issuer_key = new_key()?;
    let issuer_usages = [root_usages.as_slice(), &[KeyUsagePurpose::CrlSign]].concat();
    let mut issuer = authority(sentry.as_str(), &issuer_usages, skew, now)?;
    issuer.use_authority_key_identifier_extension = true;
    let issuer_certificate = issuer.signed_by(&issuer_key, &Issuer::new(root, root_key))?;

    Ok(Pem {
        root: pem::encode("CERTIFICATE", root_certificate.der()).into(),
        issuer: pem::encode("CERTIFICATE", issuer_certificate.der()).into(),
        key: pem::encode("PRIVATE KEY", issuer_key.serialized_der()).into(),
    })
}

/// An Ed25519 key in version 1 of PKCS #8: OpenSSL 3.0 reads no later version.
fn new_key() -> Result<KeyPair, GenerateError> {
    let pkcs8 = Ed25519KeyPair::generate()?.to_pkcs8v1()?;
    Ok(KeyPair::try_from(pkcs8.as_ref())?)
}

fn authority(
    organization: &str,
    usages: &[KeyUsagePurpose],
    skew: Duration,
    now: OffsetDateTime,
) -> Result<CertificateParams, GenerateError> {
    let now = whole_seconds(now);
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, organization);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = usages.to_vec();
    params.not_before = now.saturating_sub(skew);
    params.not_after = now + LIFETIME;
    Ok(params)
}
