//! The X.509 part of the authority: its certificates, and those it issues to workloads.

mod der;
mod generate;
mod leaf;
mod load;
mod signer;

use outrigger_identity::SpiffeId;
use rustls_pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

use leaf::{IssuerName, Leaf};
use signer::Signer;

pub use generate::GenerateError;
pub(crate) use generate::generate;
pub(crate) use load::load;
#[cfg(test)]
pub(crate) use load::load_at;
pub use signer::SigningError;

/// The PEM files of the authority.
#[derive(Debug, Clone)]
pub(crate) struct Pem {
    /// The root bundle.
    pub root: Vec<u8>,
    /// The issuer's chain, issuer first.
    pub issuer: Vec<u8>,
    /// The issuer's private key.
    pub key: Vec<u8>,
}

/// A validated issuer with its trust anchors, which signs workload certificates.
#[derive(Debug)]
pub(crate) struct X509Authority {
    trust_anchors: String,
    chain: Vec<CertificateDer<'static>>,
    name: IssuerName,
    signer: Signer,
    not_after: OffsetDateTime,
}

/// The contents of a certificate to sign.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The workload's public key, a DER `SubjectPublicKeyInfo`.
    pub public_key: &'a [u8],
    /// The identity to certify.
    pub id: &'a SpiffeId,
    /// DNS names, for control plane services only.
    pub dns: &'a [String],
    /// Lifetime from now on.
    pub ttl: time::Duration,
    /// How far the validity is backdated, for peers with a slow clock.
    pub skew: time::Duration,
}

/// A signed workload certificate with its issuer's chain.
#[derive(Debug)]
pub(crate) struct Issued {
    /// Leaf first, without self-signed certificates: roots are never sent to clients.
    pub chain: Vec<CertificateDer<'static>>,
    /// Start of the leaf's validity.
    pub not_before: OffsetDateTime,
    /// End of the leaf's validity.
    pub not_after: OffsetDateTime,
}

impl X509Authority {
    /// The root bundle as PEM, without comments.
    pub(crate) fn trust_anchors(&self) -> &str {
        &self.trust_anchors
    }

    /// Expiry of the issuer's certificate.
    pub(crate) fn not_after(&self) -> OffsetDateTime {
        self.not_after
    }

    /// Signs a workload certificate. Its lifetime is not limited to the issuer's.
    pub(crate) fn sign(&self, request: &Request<'_>) -> Result<Issued, SigningError> {
        // Certificates have whole seconds.
        let now = whole_seconds(OffsetDateTime::now_utc());
        let leaf = Leaf {
            public_key: request.public_key,
            uri: request.id.as_str(),
            dns: request.dns,
            not_before: now.saturating_sub(request.skew),
            not_after: now.saturating_add(request.ttl),
        };
        let certificate = leaf::issue(&leaf, &self.name, &self.signer)?;
        let issuers = self
            .chain
            .iter()
            .filter(|issuer| !outrigger_identity::pem::is_self_signed(issuer));
        Ok(Issued {
            chain: std::iter::once(certificate).chain(issuers.cloned()).collect(),
            not_before: leaf.not_before,
            not_after: leaf.not_after,
        })
    }
}

/// Decodes a certificate without trailing bytes.
fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(certificate.as_ref()) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err("data follows the certificate".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn whole_seconds(at: OffsetDateTime) -> OffsetDateTime {
    at.replace_nanosecond(0).unwrap_or(at)
}

/// A random number in [0, 2^128), big-endian.
fn random_serial() -> Result<[u8; 16], SigningError> {
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| SigningError::Random)?;
    Ok(serial)
}

#[cfg(test)]
mod tests;
